import { setTimeout as delay } from "node:timers/promises";

const INTERVAL_MS = 20;

/**
 * Asks again and again until `look` answers something other than undefined, null or false.
 *
 * @param what said in the error when it never does; a function is asked then, to tell what was seen last
 * @param timeoutMs default 10,000
 * @throws Error after the time is up, with what `look` threw last as cause
 */
export async function eventually<T>(
  what: string | (() => string),
  look: () => T | Promise<T>,
  timeoutMs = 10_000,
): Promise<NonNullable<Exclude<T, false>>> {
  const deadline = performance.now() + timeoutMs;
  let cause: unknown;
  for (;;) {
    try {
      const seen = await look();
      if (seen !== undefined && seen !== null && seen !== false)
        return seen as NonNullable<Exclude<T, false>>;
      cause = undefined;
    } catch (error) {
      cause = error;
    }
    if (performance.now() > deadline) {
      const said = typeof what === "string" ? what : what();
      throw new Error(
        `waited ${timeoutMs} ms for: ${said}${cause === undefined ? "" : ` (last: ${cause instanceof Error ? cause.message : JSON.stringify(cause)})`}`,
        { cause },
      );
    }
    await delay(INTERVAL_MS);
  }
}
