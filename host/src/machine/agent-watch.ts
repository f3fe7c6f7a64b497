import { availableParallelism, loadavg } from "node:os";
import type { Clock } from "@torpor/base";
import type { Driver } from "../driver/driver.ts";
import type { Live } from "./phase.ts";

/** A question every ten seconds costs an idle machine some 0.02% of a core. */
const ASK_EVERY_MS = 10_000;
/** Longest wait for one answer; the agent's usual one comes within 2 ms. */
const LONGEST_WAIT_MS = 5000;
/** Silence counts from as many questions in a row: one that was late through the host's own fault proves nothing. */
const LEAST_QUESTIONS = 4;
/** A machine that uses this much of its CPU is busy, not hung: a fork bomb leaves the agent its share only now and then. */
const BUSY_SHARE = 0.5;
/** How much longer a busy machine, or one on a host with more work than cores, may be silent. */
const BUSY_FACTOR = 10;

export interface AgentWatchOptions {
  live: Live;
  /** Cores the machine may use. */
  cpu: number;
  driver: Pick<Driver, "stats">;
  clock: Clock;
  /** How long the agent may be silent while the machine has nothing to do. */
  patienceMs: number;
  onHung: (silentForMs: number) => void;
  /** Longest wait for one answer. Default: 5 s, or what lets four questions fit. */
  answerWithinMs?: number;
  /** Processes waiting for each core. Default: the load average of the last minute. */
  load?: () => number;
}

/**
 * Asks the agent of one running machine from time to time whether it is there. Only while it runs: what is paused or asleep
 * is not touched, and a question is no activity.
 */
export class AgentWatch {
  readonly #options: AgentWatchOptions;
  readonly #load: () => number;
  readonly #answerWithinMs: number;
  #asking = false;
  #unanswered = 0;
  #askNextAt: number;
  /** Of the last answer, or of the beginning. */
  #heardAt: number;
  #cpuMsThen: number;

  constructor(options: AgentWatchOptions) {
    const { clock, live, driver } = options;
    this.#options = options;
    this.#load = options.load ?? (() => (loadavg()[0] ?? 0) / availableParallelism());
    this.#answerWithinMs =
      options.answerWithinMs ?? Math.min(LONGEST_WAIT_MS, options.patienceMs / LEAST_QUESTIONS);
    this.#heardAt = clock.monotonic();
    this.#cpuMsThen = driver.stats(live.handle).cpuMs;
    // Spread out: machines made or adopted together are not asked together.
    this.#askNextAt = this.#heardAt + ASK_EVERY_MS * (1 - (live.handle.place.slot % 8) / 16);
  }

  get live(): Live {
    return this.#options.live;
  }

  /** Asks when it is time to. To be called often. */
  look(): void {
    if (!this.#asking && this.#options.clock.monotonic() >= this.#askNextAt) void this.#ask();
  }

  async #ask(): Promise<void> {
    const { clock, live, driver, patienceMs } = this.#options;
    this.#asking = true;
    try {
      await live.guest.health(this.#answerWithinMs);
      this.#unanswered = 0;
      this.#heardAt = clock.monotonic();
      this.#cpuMsThen = driver.stats(live.handle).cpuMs;
      this.#askNextAt = this.#heardAt + ASK_EVERY_MS;
    } catch {
      this.#unanswered += 1;
      this.#askNextAt = clock.monotonic() + patienceMs / 30;
      this.#judge();
    } finally {
      this.#asking = false;
    }
  }

  #judge(): void {
    const { clock, live, cpu, driver, patienceMs, onHung } = this.#options;
    const silentForMs = clock.monotonic() - this.#heardAt;
    const usedMs = driver.stats(live.handle).cpuMs - this.#cpuMsThen;
    const isBusy = usedMs > silentForMs * cpu * BUSY_SHARE;
    const factor = isBusy ? BUSY_FACTOR : Math.min(BUSY_FACTOR, Math.max(1, this.#load()));
    if (this.#unanswered >= LEAST_QUESTIONS && silentForMs >= patienceMs * factor) onHung(silentForMs);
  }
}
