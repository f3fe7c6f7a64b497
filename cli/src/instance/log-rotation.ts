import { copyFileSync, statSync, truncateSync } from "node:fs";
import { systemClock, type Clock } from "@torpor/base";

/** A log is rotated at this size, and one older piece is kept: at most twice this on disk. */
export const LOG_LIMIT_BYTES = 8 * 1024 * 1024;

const CHECK_EVERY_MS = 5_000;

/**
 * Copies a log that has grown too large to `<path>.1` and empties it. The writers hold it open in append mode and
 * go on undisturbed, also when the supervisor is killed, which a pipe through it would not survive. Lines written
 * between the copy and the cut are lost: the price of not being in their way.
 *
 * @returns whether it was rotated.
 */
export function rotateLog(path: string, limitBytes = LOG_LIMIT_BYTES): boolean {
  let sizeBytes: number;
  try {
    sizeBytes = statSync(path).size;
  } catch {
    return false; // not written yet
  }
  if (sizeBytes <= limitBytes) return false;
  try {
    copyFileSync(path, `${path}.1`);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ENOSPC") throw error;
    // A full disk is exactly when the log must still be cut; the older piece is what is given up.
  }
  truncateSync(path, 0);
  return true;
}

/** Rotates the logs from time to time until the answer is called. A failure is reported and tried again later. */
export function keepLogsBounded(
  paths: readonly string[],
  onError: (path: string, error: unknown) => void,
  clock: Clock = systemClock,
): () => void {
  let cancel = (): void => {};
  const check = (): void => {
    for (const path of paths) {
      try {
        rotateLog(path);
      } catch (error) {
        onError(path, error);
      }
    }
    cancel = clock.after(CHECK_EVERY_MS, check);
  };
  check();
  return () => cancel();
}
