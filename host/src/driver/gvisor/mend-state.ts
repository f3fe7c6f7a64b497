import { open } from "node:fs/promises";
import { emptiedReadyLists } from "./epoll-ready.ts";
import { heldMonotonic, TIMEKEEPER } from "./held-monotonic.ts";
import { typeTable } from "./state-frames.ts";

/** States are a few megabytes; memory is in other files. */
const MAX_STATE_BYTES = 256 * 1024 * 1024;

/**
 * Changes in an image what the runtime would get wrong when it restores it: the monotonic clock (`held-monotonic.ts`) and what
 * waits in epoll (`epoll-ready.ts`). What is not known for certain stays as it is.
 *
 * @param statePath the image's state file, uncompressed
 * @param between when the checkpoint was made: Unix milliseconds before and after
 * @returns whether monotonic time will stand still
 */
export async function mendState(
  statePath: string,
  between: { fromMs: number; toMs: number },
): Promise<boolean> {
  const file = await open(statePath, "r+");
  try {
    const { size } = await file.stat();
    if (size > MAX_STATE_BYTES) return false;
    const buffer = Buffer.allocUnsafe(size);
    const { bytesRead } = await file.read(buffer, 0, size, 0);
    const state = buffer.subarray(0, bytesRead);
    const table = typeTable(state, TIMEKEEPER);
    if (table === undefined) return false;
    const monotonic = heldMonotonic(state, table, between);
    for (const { position, bytes } of [...(monotonic ?? []), ...emptiedReadyLists(state, table)])
      await file.write(bytes, 0, bytes.length, position);
    return monotonic !== undefined;
  } finally {
    await file.close();
  }
}
