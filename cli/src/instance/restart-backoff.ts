/** Pause after the second crash in a row, and the largest. */
const SECOND_DELAY_MS = 200;
const MAX_DELAY_MS = 30_000;

/** A process that served this long had recovered: the next crash counts as the first. */
const HEALTHY_AFTER_MS = 5_000;

/** Starts again at once after a first crash, then after doubling pauses: about two starts a minute for one that never serves. */
export class RestartBackoff {
  #crashes = 0;

  /** The pause before the next start, given how long the process served; 0 for one that never did. */
  next(servedMs: number): number {
    if (servedMs >= HEALTHY_AFTER_MS) this.#crashes = 0;
    const delay =
      this.#crashes === 0 ? 0 : Math.min(SECOND_DELAY_MS * 2 ** (this.#crashes - 1), MAX_DELAY_MS);
    this.#crashes++;
    return delay;
  }
}
