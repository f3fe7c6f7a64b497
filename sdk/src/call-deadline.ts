import { InvalidRequestError, TimeoutError } from "./errors.ts";

/** Longest delay a timer takes without firing at once, milliseconds (2^31 - 1). */
const MAX_TIMER_MS = 2_147_483_647;

/**
 * One call's reasons to stop: the caller's signal and a timer, joined in one signal. The owner must `close()` it when
 * the call is over, so that a long-lived signal of the caller gathers no listeners.
 */
export class CallDeadline {
  readonly #controller = new AbortController();
  readonly #userSignal: AbortSignal | undefined;
  readonly #what: string;
  readonly #timeoutMs: number;
  readonly #onUserAbort = (): void => this.#controller.abort(this.#userSignal?.reason);
  #timer: ReturnType<typeof setTimeout> | undefined;
  #endsAtMs = Number.POSITIVE_INFINITY;

  /** `what` names the call in the timeout's message. @throws InvalidRequestError when `timeoutMs` is no duration. */
  constructor(what: string, userSignal: AbortSignal | undefined, timeoutMs: number) {
    if (!(timeoutMs >= 0)) {
      throw new InvalidRequestError(
        `timeoutMs must be a number of milliseconds, 0 for no limit; it is ${String(timeoutMs)}`,
        { code: "invalid_request" },
      );
    }
    this.#what = what;
    this.#userSignal = userSignal;
    this.#timeoutMs = timeoutMs;
    if (userSignal?.aborted) this.#onUserAbort();
    else userSignal?.addEventListener("abort", this.#onUserAbort, { once: true });
    this.restart();
  }

  /** Aborts on whichever reason comes first. */
  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  get remainingMs(): number {
    return this.#endsAtMs - performance.now();
  }

  /** Starts the time limit afresh. */
  restart(): void {
    this.pause();
    if (this.#timeoutMs === 0 || this.#timeoutMs > MAX_TIMER_MS || this.#controller.signal.aborted) return;
    this.#endsAtMs = performance.now() + this.#timeoutMs;
    this.#timer = setTimeout(() => this.#controller.abort(this.#timeoutError()), this.#timeoutMs);
  }

  /** Stops the clock until `restart()`; the caller's signal still counts. */
  pause(): void {
    clearTimeout(this.#timer);
    this.#endsAtMs = Number.POSITIVE_INFINITY;
  }

  /** @throws the signal's reason or a TimeoutError when the call has been stopped. */
  throwIfStopped(): void {
    this.signal.throwIfAborted();
  }

  /** Settles after `delayMs`, or rejects with the reason as soon as the call is stopped. */
  sleep(delayMs: number): Promise<void> {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const elapsed = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, delayMs);
    });
    return this.race(elapsed).finally(() => clearTimeout(timer));
  }

  /** `promise`, unless the call is stopped first: then rejects with the reason. */
  race<T>(promise: Promise<T>): Promise<T> {
    const { signal } = this;
    if (signal.aborted) {
      promise.catch(() => {});
      return Promise.reject(signal.reason);
    }
    return new Promise((resolve, reject) => {
      const onAbort = (): void => reject(signal.reason);
      signal.addEventListener("abort", onAbort, { once: true });
      promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", onAbort));
    });
  }

  /** Ends the call from our side: aborts what still runs with `reason`. */
  abort(reason: unknown): void {
    this.#controller.abort(reason);
    this.close();
  }

  /** Lets go of the timer and of the caller's signal. Idempotent. */
  close(): void {
    this.pause();
    this.#userSignal?.removeEventListener("abort", this.#onUserAbort);
  }

  #timeoutError(): TimeoutError {
    return new TimeoutError(
      `${this.#what} did not finish within ${this.#timeoutMs} ms: raise timeoutMs, or look at the server's /healthz`,
      { code: "timeout", retryable: true, details: { timeoutMs: this.#timeoutMs } },
    );
  }
}
