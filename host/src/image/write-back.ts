import { open } from "node:fs/promises";
import { setTimeout as delay } from "node:timers/promises";

/** How often what was written meanwhile is sent to the disk. */
const INTERVAL_MS = 10;

/**
 * Sends files to the disk while `write` is still writing them, so that a sync afterwards finds little left: the kernel by
 * itself would begin only half a minute later. For files that hold much: each time makes the writers of others on the same
 * file system wait a little.
 */
export async function writingBack<T>(paths: readonly string[], write: () => Promise<T>): Promise<T> {
  const done = new AbortController();
  void sendAgain(paths, done.signal); // what it is at when `write` has ended is no more to be waited for
  try {
    return await write();
  } finally {
    done.abort();
  }
}

async function sendAgain(paths: readonly string[], done: AbortSignal): Promise<void> {
  while (paths.length > 0 && !done.aborted) {
    await delay(INTERVAL_MS, undefined, { signal: done }).catch(() => {});
    for (const path of paths) {
      if (done.aborted) return;
      // Best effort: what fails here fails again at the sync that counts.
      const file = await open(path, "r").catch(() => undefined);
      await file?.datasync().catch(() => {});
      await file?.close().catch(() => {});
    }
  }
}
