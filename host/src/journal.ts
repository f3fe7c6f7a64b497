import Database from "better-sqlite3";
import type {
  Attestation,
  EndReason,
  HostEvent,
  Machine,
  MachineState,
  ResolvedMachineSpec,
} from "@torpor/protocol";

/** Everything the host must know of a machine after it was killed itself. */
export interface MachineEntry {
  id: string;
  slot: number | null;
  state: MachineState;
  spec: ResolvedMachineSpec;
  /** Incarnation in force: that of the spec at first, one more at each wake. */
  generation: number;
  /** Kept over sleep and wake. */
  machineId: string;
  /** What init is given beside the identity. */
  settings: { env: Record<string, string>; user: string; workdir: string };
  templateHash: string;
  driver: string;
  /** Sandbox process; null before it is started. */
  pid: number | null;
  startTime: number | null;
  address: string | null;
  accessToken: string;
  hostKey: string;
  deadlineUnixMs: number | null;
  lastActivityAt: number;
  /** What it wakes from, while hibernated or waking; being written, while hibernating. */
  image: { id: string; sizeBytes: number; createdAt: number } | null;
  createdAt: number;
  startedAt: number | null;
  endedAt: number | null;
  reason: EndReason | null;
  message: string | null;
  attestation: Attestation | null;
  source: Machine["source"];
}

interface Row {
  id: string;
  state: string;
  body: string;
}

/** Events kept for servers that come back; older ones they make up for by listing machines. */
const EVENTS_KEPT = 10_000;
/** Ended machines stay readable for 7 days. */
const ENDED_KEPT_MS = 7 * 24 * 3600 * 1000;

/**
 * The host's own durable memory (SQLite, WAL): machines with their deadlines, events, and small facts. Writes survive
 * `kill -9`; a power cut may lose the last moments, and takes all running machines with it.
 */
export class Journal {
  readonly #db: Database.Database;
  readonly #put: Database.Statement;
  readonly #addEvent: Database.Statement;

  constructor(path: string) {
    this.#db = new Database(path);
    this.#db.pragma("journal_mode = WAL");
    this.#db.pragma("synchronous = NORMAL");
    this.#db.pragma("busy_timeout = 5000");
    this.#db.exec(`
      CREATE TABLE IF NOT EXISTS machines (id TEXT PRIMARY KEY, state TEXT NOT NULL, ended_at INTEGER, body TEXT NOT NULL) STRICT;
      CREATE INDEX IF NOT EXISTS machines_state ON machines (state);
      CREATE TABLE IF NOT EXISTS events (seq INTEGER PRIMARY KEY AUTOINCREMENT, body TEXT NOT NULL) STRICT;
      CREATE TABLE IF NOT EXISTS facts (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
    `);
    this.#put = this.#db.prepare(
      "INSERT INTO machines (id, state, ended_at, body) VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET state = excluded.state, ended_at = excluded.ended_at, body = excluded.body",
    );
    this.#addEvent = this.#db.prepare("INSERT INTO events (body) VALUES (?)");
  }

  /** Writes a machine; durable against `kill -9` when this returns. */
  put(entry: MachineEntry): void {
    this.#put.run(entry.id, entry.state, entry.endedAt, JSON.stringify(entry));
  }

  get(id: string): MachineEntry | undefined {
    const row = this.#db.prepare<[string], Row>("SELECT id, state, body FROM machines WHERE id = ?").get(id);
    return row === undefined ? undefined : (JSON.parse(row.body) as MachineEntry);
  }

  /** Machines that have not ended. */
  living(): MachineEntry[] {
    return this.#db
      .prepare<[], Row>("SELECT id, state, body FROM machines WHERE state <> 'ended'")
      .all()
      .map((row) => JSON.parse(row.body) as MachineEntry);
  }

  /** Forgets machines that ended more than 7 days ago and all but the newest events. */
  prune(nowUnixMs: number): void {
    this.#db
      .prepare("DELETE FROM machines WHERE state = 'ended' AND ended_at < ?")
      .run(nowUnixMs - ENDED_KEPT_MS);
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

  close(): void {
    this.#db.close();
  }
}
