import type { Clock, Log } from "@torpor/base";
import type { EventStore } from "../store/event-store.ts";

/** Between two looks at a store that other servers write to as well. */
const SHARED_POLL_MS = 500;

export type Awaited = "changed" | "timeout" | "closed";

/**
 * Wakes those who wait for events. It carries none: each reads the log for itself, from where it stands, so that a slow
 * one costs nothing but its place.
 */
export class EventFeed {
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #waiting = new Set<(outcome: Awaited) => void>();
  #version = 0;
  #closed = false;
  #shared: EventStore | undefined;
  #lastSeq = 0;
  #cancelPoll: (() => void) | undefined;

  constructor(clock: Clock, log: Log) {
    this.#clock = clock;
    this.#log = log;
  }

  /** To be taken before the log is read, and given to {@link wait}: what comes in between is not missed. */
  get version(): number {
    return this.#version;
  }

  /** Looks at the store while somebody waits, since other servers write to it unheard. */
  watchShared(store: EventStore): void {
    this.#shared = store;
  }

  /** Something was committed. */
  wake(): void {
    this.#version += 1;
    this.#settleAll("changed");
  }

  /** Resolves when something was committed since `version` was taken, after `timeoutMs`, or at the end. */
  wait(version: number, timeoutMs: number, signal?: AbortSignal): Promise<Awaited> {
    if (this.#closed || signal?.aborted === true) return Promise.resolve("closed");
    if (version !== this.#version) return Promise.resolve("changed");
    return new Promise((resolve) => {
      const onAbort = (): void => settle("closed");
      const settle = (outcome: Awaited): void => {
        cancel();
        signal?.removeEventListener("abort", onAbort);
        this.#waiting.delete(settle);
        resolve(outcome);
      };
      const cancel = this.#clock.after(timeoutMs, () => settle("timeout"));
      signal?.addEventListener("abort", onAbort, { once: true });
      this.#waiting.add(settle);
      this.#pollSoon();
    });
  }

  /** Ends every wait, now and later. */
  close(): void {
    this.#closed = true;
    this.#cancelPoll?.();
    this.#settleAll("closed");
  }

  #settleAll(outcome: Awaited): void {
    for (const settle of this.#waiting) settle(outcome);
  }

  #pollSoon(): void {
    if (this.#shared === undefined || this.#cancelPoll !== undefined || this.#closed) return;
    const store = this.#shared;
    this.#cancelPoll = this.#clock.after(SHARED_POLL_MS, () => {
      void store
        .lastSeq()
        .then((seq) => {
          if (seq === this.#lastSeq) return;
          this.#lastSeq = seq;
          this.wake();
        })
        .catch((error: unknown) => this.#log.warn({ op: "events.poll", outcome: "failed", err: error }))
        .finally(() => {
          this.#cancelPoll = undefined;
          if (this.#waiting.size > 0) this.#pollSoon();
        });
    });
  }
}
