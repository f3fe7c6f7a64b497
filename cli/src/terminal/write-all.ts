import { once } from "node:events";
import type { Writable } from "node:stream";

/** Writes and waits while the reader is behind, so that a slow one costs no memory. */
export async function writeAll(stream: Writable, bytes: Uint8Array): Promise<void> {
  if (!stream.write(bytes)) await once(stream, "drain");
}
