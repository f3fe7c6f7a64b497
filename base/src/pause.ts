import type { Clock } from "./clock.ts";

/** Waits for `delayMs`, or until `signal` aborts, whichever comes first. Never rejects. */
export function pause(clock: Clock, delayMs: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve();
    const cancel = clock.after(delayMs, done);
    signal.addEventListener("abort", done, { once: true });
    function done(): void {
      cancel();
      signal.removeEventListener("abort", done);
      resolve();
    }
  });
}
