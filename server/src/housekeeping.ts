import type { Clock, Log } from "@torpor/base";
import { LIMITS } from "@torpor/protocol";
import type { IdempotencyStore } from "./store/idempotency-store.ts";
import type { SandboxStore } from "./store/sandbox-store.ts";

const EVERY_MS = 10 * 60_000;
/** Rows deleted in one statement, so that no request waits long behind it. */
const BATCH_ROWS = 200;
const MAX_BATCHES = 100;

/** Forgets what is past its time: ended sandboxes after 7 days, idempotency keys after one. */
export class Housekeeping {
  readonly #sandboxes: SandboxStore;
  readonly #idempotency: IdempotencyStore;
  readonly #clock: Clock;
  readonly #log: Log;
  #cancel: (() => void) | undefined;
  #closed = false;

  constructor(sandboxes: SandboxStore, idempotency: IdempotencyStore, clock: Clock, log: Log) {
    this.#sandboxes = sandboxes;
    this.#idempotency = idempotency;
    this.#clock = clock;
    this.#log = log;
  }

  /** Sweeps now and then every ten minutes. */
  start(): void {
    const turn = async (): Promise<void> => {
      await this.sweep();
      if (!this.#closed) this.#cancel = this.#clock.after(EVERY_MS, () => void turn());
    };
    void turn();
  }

  /** One sweep. An error of the store ends it and is told; nothing is taken for gone that could not be read. */
  async sweep(): Promise<void> {
    const now = this.#clock.now();
    try {
      const sandboxes = await this.#inBatches(() =>
        this.#sandboxes.purgeEnded(now - LIMITS.endedRetentionSeconds * 1_000, BATCH_ROWS),
      );
      const keys = await this.#inBatches(() =>
        this.#idempotency.purge(now - LIMITS.idempotencyRetentionSeconds * 1_000, BATCH_ROWS),
      );
      if (sandboxes + keys > 0)
        this.#log.info({ op: "housekeeping", outcome: "done", sandboxes, idempotencyKeys: keys });
    } catch (error) {
      this.#log.error({ op: "housekeeping", outcome: "failed", err: error });
    }
  }

  close(): void {
    this.#closed = true;
    this.#cancel?.();
  }

  async #inBatches(purge: () => Promise<number>): Promise<number> {
    let total = 0;
    for (let batch = 0; batch < MAX_BATCHES && !this.#closed; batch += 1) {
      const purged = await purge();
      total += purged;
      if (purged < BATCH_ROWS) break;
      await new Promise(setImmediate); // requests come first
    }
    return total;
  }
}
