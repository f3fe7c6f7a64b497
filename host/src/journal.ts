import Database from "better-sqlite3";
import type {
  Attestation,
  EndReason,
  HostEvent,
  Incarnation,
  Machine,
  MachineState,
  ResolvedMachineSpec,
} from "@torpor/protocol";
import type { MachineMeter } from "./machine/meter.ts";

/** A moment on the clock that does not jump, see `machine/boot-moment.ts`. */
export interface BootMoment {
  /** The boot of the machine whose monotonic clock this is. */
  bootId: string;
  /** Milliseconds on that clock. */
  ms: number;
  /** Taken over from the wall clock after a boot: nothing falls due by it before this. */
  notBeforeMs?: number;
}

/** What was asked for, without what must not be kept in the clear. */
type KeptMachineSpec = Omit<ResolvedMachineSpec, "secrets">;

/** What a guest is told beside its identity. */
interface GuestSettings {
  env: Record<string, string>;
  user: string;
  workdir: string;
  /** What runs in it from its template on: a shell command, started anew by a wake from files alone. */
  start?: { command: string; user: string; workdir: string } | undefined;
  /** Sealed, see `secret-box.ts`; absent for none, and of a machine that has ended. */
  secrets?: string | undefined;
}

/** Everything the host must know of a machine after it was killed itself. */
export interface MachineEntry {
  id: string;
  slot: number | null;
  state: MachineState;
  spec: KeptMachineSpec;
  /** Incarnation in force: that of the spec at first, one more at each wake. */
  generation: number;
  /** Kept over sleep and wake. */
  machineId: string;
  /** What init is given beside the identity. */
  settings: GuestSettings;
  templateHash: string;
  driver: string;
  /** Sandbox process; null before it is started. */
  pid: number | null;
  startTime: number | null;
  address: string | null;
  accessToken: string;
  hostKey: string;
  /** What people are shown, and what holds after the machine was restarted. */
  deadlineUnixMs: number | null;
  /** The same moment as the host counts it. Null or absent without a deadline, or in a journal of an earlier version. */
  deadlineMoment?: BootMoment | null;
  /** The absolute end, as the host counts it; null or absent for none. */
  maxLifetimeMoment?: BootMoment | null;
  /** When it failed, once it has. */
  failedMoment?: BootMoment;
  lastActivityAt: number;
  /** What it wakes from, while hibernated or waking; being written, while hibernating. */
  image: {
    id: string;
    sizeBytes: number;
    createdAt: number;
    createdMoment?: BootMoment;
    /** Absent in a journal of an earlier version, which kept memory always. */
    memory?: boolean;
  } | null;
  createdAt: number;
  startedAt: number | null;
  endedAt: number | null;
  reason: EndReason | null;
  message: string | null;
  attestation: Attestation | null;
  source: Machine["source"];
  /** The physical machines it was given, the newest last; absent in a journal of an earlier version. */
  incarnations?: Incarnation[] | undefined;
  /** How long its last sleep and its last wake took. */
  tookMs?: { hibernate?: number; wake?: number } | undefined;
  /** What it held and used; absent in a journal of an earlier version. */
  meter?: MachineMeter | undefined;
}

interface Row {
  id: string;
  slot: number | null;
  body: string;
}

/** A record that is there and cannot be read: its machine must be taken to exist. */
export interface BrokenEntry {
  id: string;
  /** Undefined when even that is not known. */
  slot: number | null | undefined;
  error: Error;
}

/** Events kept for servers that come back; older ones they make up for by listing machines. */
const EVENTS_KEPT = 10_000;
/** Ended machines stay readable for 7 days, unless there are more of them than this: some 200 MB. */
const ENDED_KEPT_MS = 7 * 24 * 3600 * 1000;
const ENDED_KEPT = 100_000;
/** Turns counted for one write. */
const TURNS_RESERVED = 1_000;
/** What the write-ahead log is cut to when it has grown. */
const WAL_KEPT_BYTES = 16 * 1024 * 1024;

/**
 * The host's own durable memory (SQLite, WAL): machines with their deadlines, events, and small facts. Writes survive
 * `kill -9`; a power cut may lose the last moments, and takes all running machines with it.
 */
export class Journal {
  readonly #db: Database.Database;
  readonly #put: Database.Statement;
  readonly #addEvent: Database.Statement;
  #turn = 0;
  #reservedTurns = 0;

  constructor(path: string) {
    this.#db = new Database(path);
    this.#db.pragma("journal_mode = WAL");
    this.#db.pragma("synchronous = NORMAL");
    this.#db.pragma("busy_timeout = 5000");
    this.#db.pragma("secure_delete = ON"); // what is overwritten or deleted, as an ended machine's environment, is zeroed
    this.#db.pragma(`journal_size_limit = ${WAL_KEPT_BYTES}`);
    this.#db.exec(`
      CREATE TABLE IF NOT EXISTS machines (id TEXT PRIMARY KEY, state TEXT NOT NULL, ended_at INTEGER, body TEXT NOT NULL) STRICT;
      CREATE INDEX IF NOT EXISTS machines_state ON machines (state);
      CREATE TABLE IF NOT EXISTS events (seq INTEGER PRIMARY KEY AUTOINCREMENT, body TEXT NOT NULL) STRICT;
      CREATE TABLE IF NOT EXISTS facts (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
    `);
    // Beside the body, so that the slot of a record that cannot be read is known to be somebody's. -1 for none.
    const columns = this.#db
      .prepare<[], { name: string }>("SELECT name FROM pragma_table_info('machines')")
      .all();
    if (!columns.some(({ name }) => name === "slot"))
      this.#db.exec("ALTER TABLE machines ADD COLUMN slot INTEGER");
    this.#put = this.#db.prepare(
      "INSERT INTO machines (id, state, slot, ended_at, body) VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET state = excluded.state, slot = excluded.slot, ended_at = excluded.ended_at, body = excluded.body",
    );
    this.#addEvent = this.#db.prepare("INSERT INTO events (body) VALUES (?)");
  }

  /** Writes a machine; durable against `kill -9` when this returns. */
  put(entry: MachineEntry): void {
    this.#put.run(entry.id, entry.state, entry.slot ?? NO_SLOT, entry.endedAt, JSON.stringify(entry));
  }

  /** @throws Error when there is a record and it cannot be read: that is not the same as none */
  get(id: string): MachineEntry | undefined {
    const row = this.#db.prepare<[string], Row>("SELECT id, slot, body FROM machines WHERE id = ?").get(id);
    return row === undefined ? undefined : parseEntry(row);
  }

  /** Machines that have not ended. One that cannot be read does not hide the others, and is not left out. */
  living(): { entries: MachineEntry[]; broken: BrokenEntry[] } {
    const entries: MachineEntry[] = [];
    const broken: BrokenEntry[] = [];
    const rows = this.#db.prepare<[], Row>("SELECT id, slot, body FROM machines WHERE state <> 'ended'");
    for (const row of rows.all()) {
      try {
        entries.push(parseEntry(row));
      } catch (error) {
        const slot = row.slot === NO_SLOT ? null : (row.slot ?? undefined);
        broken.push({ id: row.id, slot, error: error instanceof Error ? error : new Error(String(error)) });
      }
    }
    return { entries, broken };
  }

  /** Forgets a machine altogether. */
  remove(id: string): void {
    this.#db.prepare("DELETE FROM machines WHERE id = ?").run(id);
  }

  /** Forgets machines that ended more than 7 days ago, or are too many, and all but the newest events. */
  prune(nowUnixMs: number): void {
    this.#db
      .prepare("DELETE FROM machines WHERE state = 'ended' AND ended_at < ?")
      .run(nowUnixMs - ENDED_KEPT_MS);
    this.#db
      .prepare(
        "DELETE FROM machines WHERE id IN (SELECT id FROM machines WHERE state = 'ended' ORDER BY ended_at DESC LIMIT -1 OFFSET ?)",
      )
      .run(ENDED_KEPT);
    this.#db.prepare("DELETE FROM events WHERE seq <= (SELECT max(seq) FROM events) - ?").run(EVENTS_KEPT);
  }

  addEvent(event: Omit<HostEvent, "seq">): HostEvent {
    const { lastInsertRowid } = this.#addEvent.run(JSON.stringify(event));
    return { ...event, seq: Number(lastInsertRowid) };
  }

  /** At most 500 events after `seq`, oldest first. */
  eventsAfter(seq: number): HostEvent[] {
    return this.#db
      .prepare<[number], { seq: number; body: string }>(
        "SELECT seq, body FROM events WHERE seq > ? ORDER BY seq LIMIT 500",
      )
      .all(seq)
      .map((row) => ({ ...(JSON.parse(row.body) as Omit<HostEvent, "seq">), seq: row.seq }));
  }

  lastEventSeq(): number {
    return this.#db.prepare<[], { seq: number | null }>("SELECT max(seq) AS seq FROM events").get()?.seq ?? 0;
  }

  fact(key: string): unknown {
    const row = this.#db
      .prepare<[string], { value: string }>("SELECT value FROM facts WHERE key = ?")
      .get(key);
    return row === undefined ? undefined : JSON.parse(row.value);
  }

  setFact(key: string, value: unknown): void {
    this.#db
      .prepare(
        "INSERT INTO facts (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
      )
      .run(key, JSON.stringify(value));
  }

  /** Empties the write-ahead log into the database, so that what was overwritten is gone from the disk too. */
  settle(): void {
    this.#db.pragma("wal_checkpoint(TRUNCATE)");
  }

  /** Counts up, never the same number twice, over restarts too; leaves out some at each. @throws when it cannot be written */
  nextTurn(): number {
    if (this.#turn >= this.#reservedTurns) {
      const reserved = Number(this.fact("turns") ?? 0);
      this.setFact("turns", reserved + TURNS_RESERVED);
      this.#turn = reserved;
      this.#reservedTurns = reserved + TURNS_RESERVED;
    }
    this.#turn += 1;
    return this.#turn;
  }

  close(): void {
    this.#db.close();
  }
}

/** A column that is NULL was written by a version that did not know of it. */
const NO_SLOT = -1;

/** Enough is looked at to know whose machine it is and where it stands. */
function parseEntry({ id, body }: Row): MachineEntry {
  const entry = JSON.parse(body) as MachineEntry | null;
  const whole =
    typeof entry === "object" && entry !== null && entry.id === id && typeof entry.state === "string";
  if (!whole || typeof entry.spec !== "object" || entry.spec === null)
    throw new Error(`the journal's record of machine ${id} is not one: ${body.slice(0, 200)}`);
  return entry;
}
