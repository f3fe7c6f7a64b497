import { truncate } from "node:fs";
import { open, stat } from "node:fs/promises";
import { join } from "node:path";

/** The console is PID 1's output; root inside can write to it, so it is cut when it grows above this. */
const MAX_CONSOLE_BYTES = 1024 * 1024;

/** Last 1 MiB of what PID 1 of the machine in `directory` wrote. */
export async function readConsole(directory: string): Promise<string> {
  const file = await open(join(directory, "console.log"), "r");
  try {
    const { size } = await file.stat();
    const length = Math.min(size, MAX_CONSOLE_BYTES);
    const { buffer, bytesRead } = await file.read(Buffer.alloc(length), 0, length, size - length);
    return buffer.subarray(0, bytesRead).toString("utf8");
  } finally {
    await file.close();
  }
}

/** Empties the console when it has grown too large; it is open for appending, so what follows starts at the front. */
export async function boundConsole(directory: string): Promise<void> {
  const path = join(directory, "console.log");
  const size = await stat(path).then(
    (file) => file.size,
    () => 0,
  );
  if (size > MAX_CONSOLE_BYTES) truncate(path, 0, () => {});
}
