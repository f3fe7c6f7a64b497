import type { Clock } from "@torpor/base";

/** How often something was asked for lately. */
export class Demand {
  readonly #clock: Pick<Clock, "monotonic">;
  readonly #windowMs: number;
  /** When, oldest first. */
  readonly #asked: number[] = [];

  constructor(clock: Pick<Clock, "monotonic">, windowMs: number) {
    this.#clock = clock;
    this.#windowMs = windowMs;
  }

  note(): void {
    this.#asked.push(this.#clock.monotonic());
  }

  get count(): number {
    const since = this.#clock.monotonic() - this.#windowMs;
    while ((this.#asked[0] ?? since) < since) this.#asked.shift();
    return this.#asked.length;
  }

  /** Milliseconds until there is less of it, if nothing more is asked for; undefined when there is none. */
  get lapsesInMs(): number | undefined {
    const oldest = this.count === 0 ? undefined : this.#asked[0];
    return oldest === undefined ? undefined : oldest + this.#windowMs + 1 - this.#clock.monotonic();
  }
}
