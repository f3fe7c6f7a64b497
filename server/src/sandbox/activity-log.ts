import type { Clock, Log } from "@torpor/base";
import type { SandboxRecord } from "../store/sandbox-record.ts";
import type { SandboxStore } from "../store/sandbox-store.ts";

/** How stale a recorded `last_activity_at` may be: one write per sandbox and this long, however busy it is. */
const WRITE_EVERY_MS = 5_000;

/** Owner activity, gathered in memory and written behind, so that work on a sandbox costs no write of its own. */
export class ActivityLog {
  readonly #store: SandboxStore;
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #pending = new Map<string, { record: SandboxRecord; activeAt: number }>();
  #cancelWrite: (() => void) | undefined;

  constructor(store: SandboxStore, clock: Clock, log: Log) {
    this.#store = store;
    this.#clock = clock;
    this.#log = log;
  }

  /** Notes that the owner works with the sandbox now. */
  note(record: SandboxRecord): void {
    this.#pending.set(record.id, { record, activeAt: this.#clock.now() });
    this.#cancelWrite ??= this.#clock.after(WRITE_EVERY_MS, () => void this.flush());
  }

  /** When the sandbox was last active, with what is not written yet. */
  lastActivityAt(record: SandboxRecord): number {
    return Math.max(record.lastActivityAt, this.#pending.get(record.id)?.activeAt ?? 0);
  }

  /** Writes what is pending. */
  async flush(): Promise<void> {
    this.#cancelWrite?.();
    this.#cancelWrite = undefined;
    const batch = [...this.#pending.values()];
    for (const { record, activeAt } of batch) {
      try {
        await this.#store.touch(record, activeAt);
      } catch (error) {
        this.#log.warn({ op: "activity", outcome: "not recorded", sandboxId: record.id, err: error });
        continue;
      }
      if (this.#pending.get(record.id)?.activeAt === activeAt) this.#pending.delete(record.id);
    }
  }
}
