import type { Clock } from "@torpor/base";
import type { ActivityKind, HoldKind } from "@torpor/protocol";

/** Something that keeps a machine awake. */
export interface Hold {
  kind: HoldKind;
  /** What a person recognises it by: method and path, or the exec's id. */
  what: string;
  /** Unix milliseconds. */
  since: number;
}

/**
 * Owner activity of one machine: requests that do work, counted while they are answered, and commands while they run.
 * What code inside does on its own does not count.
 */
export class Activity {
  readonly #clock: Clock;
  readonly #holds = new Set<Hold>();
  /** Requests under way that come to their end by themselves, as streams do not. */
  readonly #brief = new Set<Promise<void>>();
  #lastMonotonic: number;
  #lastAt: number;
  #last: { kind: ActivityKind; what: string } = { kind: "create", what: "create" };

  /** @param lastAt Unix milliseconds of what counted before; idleness is counted from now all the same */
  constructor(clock: Clock, lastAt = clock.now()) {
    this.#clock = clock;
    this.#lastMonotonic = clock.monotonic();
    this.#lastAt = lastAt;
  }

  /** Unix milliseconds of what last counted. */
  get lastAt(): number {
    return this.#lastAt;
  }

  /** What last counted. */
  get last(): { kind: ActivityKind; what: string } {
    return this.#last;
  }

  get holds(): readonly Hold[] {
    return [...this.#holds];
  }

  /** Milliseconds since anything counted; 0 while something holds. */
  get idleForMs(): number {
    return this.#holds.size > 0 ? 0 : this.#clock.monotonic() - this.#lastMonotonic;
  }

  /** Something has happened just now. */
  touch(kind: ActivityKind, what: string = kind): void {
    this.#lastMonotonic = this.#clock.monotonic();
    this.#lastAt = this.#clock.now();
    this.#last = { kind, what };
  }

  /** Something begins that counts until the answer is called. */
  begin(kind: Hold["kind"], what: string): () => void {
    const hold: Hold = { kind, what, since: this.#clock.now() };
    this.#holds.add(hold);
    this.touch(kind, what);
    return () => {
      if (this.#holds.delete(hold)) this.touch(kind, what);
    };
  }

  /** A request begins that comes to its end by itself. @returns to be called at its end */
  beginBrief(): () => void {
    let end = (): void => {};
    const ended = new Promise<void>((resolve) => (end = resolve));
    this.#brief.add(ended);
    return () => {
      this.#brief.delete(ended);
      end();
    };
  }

  /** Waits until the requests have ended that are under way and come to their end by themselves, `withinMs` at most. */
  async untilBriefEnded(withinMs: number, signal: AbortSignal): Promise<void> {
    if (this.#brief.size === 0 || signal.aborted) return;
    let give = (): void => {};
    const enough = new Promise<void>((resolve) => (give = resolve));
    const cancel = this.#clock.after(withinMs, give);
    signal.addEventListener("abort", give, { once: true });
    await Promise.race([enough, Promise.all(this.#brief)]);
    signal.removeEventListener("abort", give);
    cancel();
  }
}
