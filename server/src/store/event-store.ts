import { type Kysely, sql, type Transaction } from "kysely";
import { systemClock, type Clock } from "@torpor/base";
import {
  CodedError,
  EVENT_TYPES,
  eventId,
  type EventType,
  type SandboxEvent,
  type SandboxState,
} from "@torpor/protocol";
import type { ServerScope, TenantScope } from "../auth/tenant-scope.ts";
import { type BudgetRecord, markBudget } from "./budget-store.ts";
import { parseJsonColumn } from "./json-column.ts";
import { KeptQueries } from "./kept-queries.ts";
import type { Database } from "./open-database.ts";
import type { SandboxRecord } from "./sandbox-record.ts";
import type { SandboxChanges } from "./sandbox-changes.ts";
import type { WebhookRecord } from "./webhook-store.ts";
import type { Tables } from "./schema.ts";

/** Who is told of a record's moves. */
export interface EventWriter {
  /** Adds the event of a move to the transaction that makes it. `from` is null for a record that is new. */
  append(
    transaction: Transaction<Tables>,
    after: SandboxRecord,
    from: SandboxState | null,
    changes: SandboxChanges,
  ): Promise<void>;
  /** The transaction is committed. */
  committed(): void;
}

/** Whose events are read: a caller's, or those a webhook is for. */
type EventScope = TenantScope | WebhookRecord;

export interface EventFilter {
  /** Events after this number. */
  after: number;
  sandboxId?: string;
  tenant?: string;
  limit: number;
}

/** An event with its number in the log. */
export interface LoggedEvent {
  seq: number;
  event: SandboxEvent;
}

/** What is kept of an event. */
type EventBody = Omit<SandboxEvent, "id" | "name" | "metadata">;

/** Any number that is ours alone: PostgreSQL's advisory locks are named by numbers. */
const APPEND_LOCK = 7_266_355_041;

/**
 * The log of what happened to sandboxes. Numbers follow the order of commits: on SQLite because it has one writer, on
 * PostgreSQL because a lock is held from the taking of a number to the commit. So a reader that has come to one number
 * never finds a smaller one later.
 */
export class EventStore implements EventWriter {
  readonly #db: Kysely<Tables>;
  readonly #kind: Database["kind"];
  readonly #clock: Clock;
  readonly #onCommitted: () => void;
  readonly #queries = new KeptQueries();

  constructor(database: Database, clock: Clock = systemClock, onCommitted: () => void = () => {}) {
    this.#db = database.db;
    this.#kind = database.kind;
    this.#clock = clock;
    this.#onCommitted = onCommitted;
  }

  async append(
    transaction: Transaction<Tables>,
    after: SandboxRecord,
    from: SandboxState | null,
    changes: SandboxChanges,
  ): Promise<void> {
    const type: EventType = from === after.state ? "sandbox.updated" : `sandbox.${after.state}`;
    await this.#lock(transaction);
    await this.#insert(transaction, after, type, from, wireChanges(changes));
  }

  /** On PostgreSQL numbers are taken in the order of commits too. */
  async #lock(transaction: Transaction<Tables>): Promise<void> {
    if (this.#kind === "postgres")
      await sql`select pg_advisory_xact_lock(${sql.lit(APPEND_LOCK)})`.execute(transaction);
  }

  async #insert(
    transaction: Transaction<Tables>,
    after: SandboxRecord,
    type: EventType,
    from: SandboxState | null,
    changes: Record<string, unknown>,
  ): Promise<void> {
    const at = this.#clock.now();
    const body: EventBody = {
      type,
      at: new Date(at).toISOString(),
      sandbox_id: after.id,
      tenant: after.tenant,
      generation: after.generation,
      state: after.state,
      previous_state: from,
      reason: after.reason,
      changes,
    };
    const { account, tenant, id } = after;
    await this.#write(transaction, { account, tenant, sandbox_id: id, type, at, body });
  }

  /**
   * Tells of something that moved no record, if it was not told of this sandbox since `since`.
   *
   * @returns whether it was told now
   */
  async tellOnce(
    record: SandboxRecord,
    type: "sandbox.idle_awake",
    changes: Record<string, unknown>,
    since: number,
  ): Promise<boolean> {
    const told = await this.#db.transaction().execute(async (transaction) => {
      await this.#lock(transaction);
      const before = await transaction
        .selectFrom("events")
        .select("seq")
        .where("sandbox_id", "=", record.id)
        .where("type", "=", type)
        .where("at", ">=", since)
        .limit(1)
        .executeTakeFirst();
      if (before !== undefined) return false;
      await this.#insert(transaction, record, type, record.state, changes);
      return true;
    });
    if (told) this.committed();
    return told;
  }

  committed(): void {
    this.#onCommitted();
  }

  /**
   * Notes how far a budget is, and tells of it in the same transaction.
   *
   * @param type none when there is nothing new to tell. @returns false when the budget is not as the caller saw it any more
   */
  async tellOfBudget(
    budget: BudgetRecord,
    to: { warnedAt: number | null; exhaustedUntil: number | null },
    type: "budget.warning" | "budget.exhausted" | undefined,
    { spent, renewsAt }: { spent: number; renewsAt: number },
  ): Promise<boolean> {
    const { account, tenant, amount, period } = budget;
    const at = this.#clock.now();
    const isMarked = await this.#db.transaction().execute(async (transaction) => {
      if (!(await markBudget(transaction, budget, to))) return false;
      if (type === undefined) return true;
      await this.#lock(transaction);
      const body: EventBody = {
        type,
        at: new Date(at).toISOString(),
        sandbox_id: null,
        tenant,
        generation: null,
        state: null,
        previous_state: null,
        reason: null,
        changes: { amount, period, spent, renews_at: new Date(renewsAt).toISOString() },
      };
      await this.#write(transaction, { account, tenant: tenant ?? "", sandbox_id: "", type, at, body });
      return true;
    });
    if (isMarked && type !== undefined) this.#onCommitted();
    return isMarked;
  }

  async #write(
    transaction: Transaction<Tables>,
    {
      body,
      ...columns
    }: {
      account: string;
      tenant: string;
      sandbox_id: string;
      type: EventType;
      at: number;
      body: EventBody;
    },
  ): Promise<void> {
    const { account, tenant, sandbox_id, type, at } = columns;
    const row = { account, tenant, sandbox_id, type, at, body: JSON.stringify(body) };
    await this.#queries.run(transaction, "insert", Object.values(row), () =>
      transaction.insertInto("events").values(row),
    );
  }

  /** Number of the newest event; 0 before the first. */
  async lastSeq(): Promise<number> {
    const row = await this.#db
      .selectFrom("events")
      .select((query) => query.fn.max("seq").as("seq"))
      .executeTakeFirst();
    return row?.seq ?? 0;
  }

  /** The largest number below everything that is kept: what comes after it can be read without a gap. */
  async floor(): Promise<number> {
    const row = await this.#db
      .selectFrom("events")
      .select((query) => query.fn.min("seq").as("seq"))
      .executeTakeFirst();
    return row?.seq == null ? 0 : row.seq - 1;
  }

  /**
   * Says that events after `after` can be given without a gap.
   *
   * @throws CodedError events_expired when some are no longer kept, or when no such event was ever written here
   */
  async requireKept(after: number): Promise<void> {
    const [floor, last] = [await this.floor(), await this.lastSeq()];
    if (after < floor) {
      throw new CodedError(
        "events_expired",
        `cannot resume after ${eventId(after)}: events up to ${eventId(floor)} are no longer kept, so some may have been missed; read the state with GET /v1/sandboxes, then go on with after=oldest or after=now`,
        { details: { after: eventId(after), oldest_id: eventId(floor + 1), newest_id: eventId(last) } },
      );
    }
    if (after > last) {
      throw new CodedError(
        "events_expired",
        `cannot resume after ${eventId(after)}: the newest event here is ${eventId(last)}, so that id is from another store; read the state with GET /v1/sandboxes, then go on with after=oldest or after=now`,
        { details: { after: eventId(after), newest_id: eventId(last) } },
      );
    }
  }

  /** Events in order, the caller's alone. */
  async read(scope: EventScope, filter: EventFilter): Promise<LoggedEvent[]> {
    let query = this.#visible(scope).where("events.seq", ">", filter.after);
    if (filter.tenant !== undefined) query = query.where("events.tenant", "=", filter.tenant);
    if (filter.sandboxId !== undefined) query = query.where("events.sandbox_id", "=", filter.sandboxId);
    const rows = await query.orderBy("events.seq").limit(filter.limit).execute();
    return rows.map((row) => ({ seq: row.seq, event: toEvent(row) }));
  }

  /** The events of these numbers that are still kept. */
  async byNumber(scope: EventScope, numbers: readonly number[]): Promise<Map<number, SandboxEvent>> {
    if (numbers.length === 0) return new Map();
    const rows = await this.#visible(scope)
      .where("events.seq", "in", [...numbers])
      .execute();
    return new Map(rows.map((row) => [row.seq, toEvent(row)]));
  }

  /** With what is kept of the sandbox alone, which would be the same in every one of its events. */
  #visible(scope: EventScope) {
    const query = this.#db
      .selectFrom("events")
      .leftJoin("sandboxes", "sandboxes.id", "events.sandbox_id")
      .select(["events.seq", "events.body", "sandboxes.name", "sandboxes.metadata"])
      .where("events.account", "=", scope.account);
    return scope.tenant === null ? query : query.where("events.tenant", "=", scope.tenant);
  }

  /**
   * Forgets at most `limit` events that are older than `before` or beyond the newest `keep`; never the newest one, from
   * which it is known what is kept.
   *
   * @returns how many
   */
  async purge(_scope: ServerScope, before: number, keep: number, limit: number): Promise<number> {
    const last = await this.lastSeq();
    const result = await this.#db
      .deleteFrom("events")
      .where("seq", "in", (query) =>
        query
          .selectFrom("events")
          .select("seq")
          .where("seq", "<", last)
          .where((where) => where.or([where("at", "<", before), where("seq", "<=", last - keep)]))
          .orderBy("seq")
          .limit(limit),
      )
      .executeTakeFirst();
    return Number(result.numDeletedRows);
  }
}

function toEvent({
  seq,
  body,
  name,
  metadata,
}: {
  seq: number;
  body: string;
  name: string | null;
  metadata: unknown;
}): SandboxEvent {
  const kept = metadata === null ? {} : (parseJsonColumn(metadata) as Record<string, string>);
  return { id: eventId(seq), ...(JSON.parse(body) as EventBody), name, metadata: kept };
}

/** Whether `text` is the type of an event. */
export function isEventType(text: string): text is EventType {
  return EVENT_TYPES.some((type) => type === text);
}

const isoOrNull = (unixMs: number | null): string | null =>
  unixMs === null ? null : new Date(unixMs).toISOString();

/** The changes as the API names them; what an event tells by itself (reason, generation) and proofs are left out. */
function wireChanges(changes: SandboxChanges): Record<string, unknown> {
  const wire: Record<string, unknown> = {};
  if (changes.expiresAt !== undefined) wire["expires_at"] = isoOrNull(changes.expiresAt);
  if (changes.startedAt !== undefined) wire["started_at"] = isoOrNull(changes.startedAt);
  if (changes.endedAt !== undefined) wire["ended_at"] = isoOrNull(changes.endedAt);
  if (changes.image !== undefined) wire["image"] = changes.image;
  if (changes.driver !== undefined) wire["driver"] = changes.driver;
  if (changes.onExpire !== undefined) wire["on_expire"] = changes.onExpire;
  if (changes.persistent !== undefined) wire["persistent"] = changes.persistent;
  if (changes.idleTimeoutSeconds !== undefined) wire["idle_timeout_seconds"] = changes.idleTimeoutSeconds;
  if (changes.onIdle !== undefined) wire["on_idle"] = changes.onIdle;
  if (changes.retentionSeconds !== undefined) wire["retention_seconds"] = changes.retentionSeconds;
  if (changes.autoWake !== undefined) wire["auto_wake"] = changes.autoWake;
  if (changes.hibernateMemory !== undefined) wire["hibernate_memory"] = changes.hibernateMemory;
  if (changes.network !== undefined) wire["network"] = changes.network;
  if (changes.tookMs !== undefined) wire["took_ms"] = changes.tookMs;
  return wire;
}
