import type { Kysely } from "kysely";
import type { SandboxState } from "@torpor/protocol";
import type { ServerScope } from "../auth/tenant-scope.ts";
import type { Database } from "./open-database.ts";
import type { SandboxRecord } from "./sandbox-record.ts";
import type { Tables } from "./schema.ts";

/** One timed move of a sandbox, as its event has it. */
export interface TimedMove {
  sandboxId: string;
  template: string;
  at: number;
  what: "create" | "hibernate" | "wake";
  /** Null where nobody timed it. */
  tookMs: number | null;
  /** Of a hibernation. */
  imageBytes: number | null;
}

/** Events that are looked through, the newest: reading them takes a few milliseconds. */
const NEWEST_EVENTS = 5_000;
const NEWEST_OF_ONE = 1_000;
const MOVES = ["sandbox.running", "sandbox.hibernated"];

/** How long moves took, read from the log of events: it needs no place of its own, and a restart forgets nothing. */
export class TimingStore {
  readonly #db: Kysely<Tables>;

  constructor({ db }: Database) {
    this.#db = db;
  }

  /** The newest moves of all sandboxes, the newest first. */
  async newest(_scope: ServerScope): Promise<TimedMove[]> {
    const { last } = await this.#db
      .selectFrom("events")
      .select((query) => query.fn.max("seq").as("last"))
      .executeTakeFirstOrThrow();
    const rows = await this.#moves()
      .where("events.seq", ">", (last ?? 0) - NEWEST_EVENTS)
      .execute();
    return toMoves(rows);
  }

  /** The newest moves of one sandbox, the newest first. */
  async of(record: SandboxRecord): Promise<TimedMove[]> {
    const rows = await this.#moves()
      .where("events.sandbox_id", "=", record.id)
      .where("events.account", "=", record.account)
      .limit(NEWEST_OF_ONE)
      .execute();
    return toMoves(rows);
  }

  #moves() {
    return this.#db
      .selectFrom("events")
      .innerJoin("sandboxes", "sandboxes.id", "events.sandbox_id")
      .select(["events.sandbox_id", "events.at", "events.body", "sandboxes.template", "sandboxes.created_at"])
      .where("events.type", "in", MOVES)
      .orderBy("events.seq", "desc");
  }
}

interface MoveRow {
  sandbox_id: string;
  at: number;
  body: string;
  template: string;
  created_at: number;
}

/** @param rows the newest first */
function toMoves(rows: readonly MoveRow[]): TimedMove[] {
  /** Those that sleep without memory, at that point of the log. */
  const memoryless = new Set<string>();
  const oldestFirst = rows.toReversed().flatMap((row) => {
    const body = JSON.parse(row.body) as EventBody;
    // Of sleeps and wakes without memory nothing is to be learnt for those with it.
    const wasMemoryless = memoryless.delete(row.sandbox_id);
    if (body.state === "hibernated" && body.changes.image?.memory === false) {
      memoryless.add(row.sandbox_id);
      return [];
    }
    return wasMemoryless ? [] : toMove(row, body);
  });
  return oldestFirst.toReversed();
}

function toMove(
  { sandbox_id: sandboxId, at, template, created_at: createdAt }: MoveRow,
  { state, previous_state: from, changes }: EventBody,
): TimedMove[] {
  const common = { sandboxId, template, at, imageBytes: null };
  const tookMs = changes.took_ms ?? null;
  if (state === "hibernated")
    return [{ ...common, what: "hibernate", tookMs, imageBytes: changes.image?.size_bytes ?? null }];
  if (from === "waking") return [{ ...common, what: "wake", tookMs }];
  if (from === "creating") return [{ ...common, what: "create", tookMs: Math.max(0, at - createdAt) }];
  return [];
}

interface EventBody {
  state: SandboxState;
  previous_state: SandboxState | null;
  changes: { took_ms?: number; image?: { size_bytes: number; memory?: boolean } | null };
}
