import { readFileSync } from "node:fs";

/** Time as an argument, so that tests decide what time it is. */
export interface Clock {
  /** Wall clock, Unix milliseconds. Jumps when the machine's clock is set. */
  now(): number;
  /** Milliseconds that only ever go forward; all processes of one boot of the machine read the same. */
  monotonic(): number;
  /** Names this boot of the machine: readings of `monotonic` compare only under the same name. */
  readonly bootId: string;
  /** Runs `action` once after `delayMs`; the answer cancels it. The timer does not keep the process alive. */
  after(delayMs: number, action: () => void): () => void;
}

/** setTimeout's largest delay; longer ones are re-armed. */
const MAX_DELAY_MS = 2_147_483_647;

let bootId: string | undefined;

export const systemClock: Clock = {
  now: () => Date.now(),
  monotonic: () => Number(process.hrtime.bigint()) / 1e6,
  get bootId() {
    bootId ??= readBootId();
    return bootId;
  },
  after(delayMs, action) {
    const endsAt = performance.now() + delayMs;
    let timer: NodeJS.Timeout;
    const arm = (): void => {
      const left = endsAt - performance.now();
      timer = setTimeout(left > MAX_DELAY_MS ? arm : action, Math.min(Math.max(left, 0), MAX_DELAY_MS));
      timer.unref();
    };
    arm();
    return () => clearTimeout(timer);
  },
};

/** Elsewhere than on Linux nothing tells one boot from another: then no two processes share one. */
function readBootId(): string {
  try {
    return readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim();
  } catch {
    return `process ${process.pid} of ${Date.now() - performance.now()}`;
  }
}

/** A clock that moves only when told. Timers fire in order while `advance` runs. */
export class FakeClock implements Clock {
  #now: number;
  #monotonic = 0;
  #boots = 1;
  #timers: { at: number; action: () => void }[] = [];

  constructor(startUnixMs = 1_700_000_000_000) {
    this.#now = startUnixMs;
  }

  now(): number {
    return this.#now;
  }

  monotonic(): number {
    return this.#monotonic;
  }

  get bootId(): string {
    return `boot ${this.#boots}`;
  }

  /** Restarts the machine: the monotonic clock begins anew and every timer is gone. */
  reboot(): void {
    this.#boots += 1;
    this.#monotonic = 0;
    this.#timers = [];
  }

  after(delayMs: number, action: () => void): () => void {
    const timer = { at: this.#monotonic + Math.max(delayMs, 0), action };
    this.#timers.push(timer);
    return () => {
      this.#timers = this.#timers.filter((other) => other !== timer);
    };
  }

  /** Moves both clocks forward and fires what falls due. */
  advance(ms: number): void {
    const target = this.#monotonic + ms;
    for (;;) {
      const due = this.#timers.filter((timer) => timer.at <= target).toSorted((a, b) => a.at - b.at)[0];
      if (due === undefined) break;
      this.#timers = this.#timers.filter((timer) => timer !== due);
      this.#now += due.at - this.#monotonic;
      this.#monotonic = due.at;
      due.action();
    }
    this.#now += target - this.#monotonic;
    this.#monotonic = target;
  }

  /** Sets the wall clock alone, as an administrator or NTP does. */
  jump(ms: number): void {
    this.#now += ms;
  }
}
