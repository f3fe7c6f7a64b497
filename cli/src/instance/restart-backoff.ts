/** First and largest pause before a crashed process is started again. */
const FIRST_DELAY_MS = 200;
const MAX_DELAY_MS = 30_000;

/** A process that lived this long had recovered: the next crash counts as the first. */
const HEALTHY_AFTER_MS = 60_000;

/** Doubling pauses between restarts: at most two starts a minute for a process that never comes up. */
export class RestartBackoff {
  #crashes = 0;

  /** The pause before the next start, given how long the process lived. */
  next(livedMs: number): number {
    if (livedMs >= HEALTHY_AFTER_MS) this.#crashes = 0;
    const delay = Math.min(FIRST_DELAY_MS * 2 ** this.#crashes, MAX_DELAY_MS);
    this.#crashes++;
    return delay;
  }
}
