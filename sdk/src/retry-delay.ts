/** First wait, doubled with every attempt, milliseconds. */
const BASE_DELAY_MS = 200;
/** Longest wait the client chooses by itself, milliseconds. */
const MAX_DELAY_MS = 5_000;
/** A server that asks for a longer wait than this is not waited for: the caller gets the error, milliseconds. */
export const MAX_RETRY_AFTER_MS = 60_000;

/**
 * Wait before attempt `attempt + 1` (0 for the first retry), milliseconds: exponential with full jitter, so that
 * clients that failed together do not return together. A wait the server asked for is kept, with jitter on top.
 */
export function retryDelayMs(attempt: number, retryAfterMs: number | null, random: () => number): number {
  const ceilingMs = Math.min(MAX_DELAY_MS, BASE_DELAY_MS * 2 ** attempt);
  if (retryAfterMs !== null) return retryAfterMs + random() * Math.min(ceilingMs, retryAfterMs / 4);
  return random() * ceilingMs;
}

/** Attempts at a connection that is refused, for each retry that is allowed: 24 by default, some 10 s in all. */
export const REFUSED_ATTEMPTS_PER_RETRY = 8;

/** Wait before a refused connection is tried again, milliseconds: 300 to 500. Nobody is there to be overrun yet. */
export function refusedDelayMs(random: () => number): number {
  return 300 + random() * 200;
}

/** `Retry-After` (RFC 9110 §10.2.3: whole seconds or an HTTP date) as milliseconds; null when absent or unreadable. */
export function parseRetryAfterMs(header: string | null, nowMs: number): number | null {
  if (header === null) return null;
  const text = header.trim();
  if (/^\d+$/.test(text)) return Number(text) * 1000;
  const dateMs = Date.parse(text);
  return Number.isNaN(dateMs) ? null : Math.max(0, dateMs - nowMs);
}
