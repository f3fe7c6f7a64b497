import { closeSync, openSync, readSync, statSync } from "node:fs";

/** The end of a log, whole lines, at most `maxBytes`. Empty when there is none. */
export function logTail(path: string, maxLines: number, maxBytes = 64 * 1024): string[] {
  let descriptor: number;
  try {
    descriptor = openSync(path, "r");
  } catch {
    return [];
  }
  try {
    const sizeBytes = statSync(path).size;
    const start = Math.max(0, sizeBytes - maxBytes);
    const buffer = Buffer.alloc(sizeBytes - start);
    const read = readSync(descriptor, buffer, 0, buffer.length, start);
    const lines = buffer.toString("utf8", 0, read).split("\n");
    if (start > 0) lines.shift(); // cut in mid-line
    return lines.filter((line) => line !== "").slice(-maxLines);
  } finally {
    closeSync(descriptor);
  }
}

/** One log line for a person: the message of a JSON line, any other as it is. */
export function readableLine(line: string): string {
  try {
    const entry = JSON.parse(line) as { msg?: unknown; op?: unknown; err?: { message?: unknown } };
    const parts = [entry.op, entry.msg, entry.err?.message].filter(
      (part) => typeof part === "string" && part !== "",
    );
    return parts.length > 0 ? parts.join(": ") : line;
  } catch {
    return line;
  }
}
