import type { Clock } from "@torpor/base";
import { CodedError } from "@torpor/protocol";

export interface CreateTurnsOptions {
  /** Machines asked for at once, of all tenants. Asked anew each time: hosts come and go. */
  atOnce: () => number;
  /** A create that has not had its turn by then is given up, milliseconds. */
  maxWaitMs: number;
  clock: Clock;
}

interface Waiting {
  start: () => void;
}

/** What one tenant may have of them: the rest is free for the others at any time. */
const SHARE = 2 / 3;

/**
 * Who may ask a host for a machine, and when: tenants take turns, so that one that wants a hundred does not keep another
 * from its first. More than some at once would make none of them any sooner.
 */
export class CreateTurns {
  readonly #options: CreateTurnsOptions;
  readonly #active = new Map<string, number>();
  #activeInAll = 0;
  /** By tenant, in the order of their turns. */
  readonly #waiting = new Map<string, Waiting[]>();

  constructor(options: CreateTurnsOptions) {
    this.#options = options;
  }

  /** Runs `work` when it is this tenant's turn. @throws CodedError capacity_exhausted when that is not within the time; what `work` throws */
  async run<T>(tenant: string, work: () => Promise<T>): Promise<T> {
    await this.#turn(tenant);
    try {
      return await work();
    } finally {
      this.#leave(tenant);
    }
  }

  #mayStart(tenant: string): boolean {
    const atOnce = this.#options.atOnce();
    return this.#activeInAll < atOnce && (this.#active.get(tenant) ?? 0) < Math.ceil(atOnce * SHARE);
  }

  #enter(tenant: string): void {
    this.#activeInAll += 1;
    this.#active.set(tenant, (this.#active.get(tenant) ?? 0) + 1);
  }

  #leave(tenant: string): void {
    this.#activeInAll -= 1;
    const left = (this.#active.get(tenant) ?? 0) - 1;
    if (left > 0) this.#active.set(tenant, left);
    else this.#active.delete(tenant);
    this.#startNext();
  }

  #turn(tenant: string): Promise<void> {
    if (!this.#waiting.has(tenant) && this.#mayStart(tenant)) {
      this.#enter(tenant);
      return Promise.resolve();
    }
    const { clock, maxWaitMs } = this.#options;
    return new Promise((resolve, reject) => {
      const waiting: Waiting = {
        start: () => {
          cancel();
          resolve();
        },
      };
      const cancel = clock.after(maxWaitMs, () => {
        this.#forget(tenant, waiting);
        reject(
          new CodedError(
            "capacity_exhausted",
            `the sandbox was not made: this server is busy making others, and its turn did not come within ${maxWaitMs / 1_000} s; try again later, or make fewer at once`,
          ),
        );
      });
      const queue = this.#waiting.get(tenant);
      if (queue === undefined) this.#waiting.set(tenant, [waiting]);
      else queue.push(waiting);
    });
  }

  #forget(tenant: string, waiting: Waiting): void {
    const left = (this.#waiting.get(tenant) ?? []).filter((one) => one !== waiting);
    if (left.length > 0) this.#waiting.set(tenant, left);
    else this.#waiting.delete(tenant);
  }

  /** Starts as many as may, one of each tenant after the other. */
  #startNext(): void {
    for (const [tenant, queue] of this.#waiting) {
      if (this.#activeInAll >= this.#options.atOnce()) return;
      const [next] = queue;
      if (next === undefined || !this.#mayStart(tenant)) continue;
      this.#waiting.delete(tenant);
      if (queue.length > 1) this.#waiting.set(tenant, queue.slice(1)); // last in the order now
      this.#enter(tenant);
      next.start();
    }
  }
}
