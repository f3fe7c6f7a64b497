import { open, readdir } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";

/** How often what was written meanwhile is sent to the disk. */
const INTERVAL_MS = 20;

/**
 * Sends the files of a directory to the disk while `write` is still writing them, so that a sync afterwards finds little
 * left: the kernel by itself would begin only half a minute later.
 */
export async function writingBack<T>(directory: string, write: () => Promise<T>): Promise<T> {
  const done = new AbortController();
  void sendAgain(directory, done.signal); // what it is at when `write` has ended is no more to be waited for
  try {
    return await write();
  } finally {
    done.abort();
  }
}

async function sendAgain(directory: string, done: AbortSignal): Promise<void> {
  while (!done.aborted) {
    // Best effort: what fails here fails again at the sync that counts.
    await delay(INTERVAL_MS, undefined, { signal: done }).catch(() => {});
    for (const name of await readdir(directory).catch(() => [])) {
      if (done.aborted) return;
      const file = await open(join(directory, name), "r").catch(() => undefined);
      await file?.datasync().catch(() => {});
      await file?.close().catch(() => {});
    }
  }
}
