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

/** pino's numbers for what a person is to look at. */
const LOUD_LEVELS: Readonly<Record<number, string>> = { 40: "warn ", 50: "error ", 60: "fatal " };
/** What a line is known by, first; the rest of its fields follows as they are. */
const LEADING = [
  "op",
  "outcome",
  "method",
  "path",
  "status",
  "durationMs",
  "sandboxId",
  "tenant",
  "requestId",
];
const HIDDEN = new Set(["level", "time", "pid", "hostname", "name", "v", "msg", "err", ...LEADING]);

/** One log line for a person: time, level when it matters, operation and its facts, error. Any other line as it is. */
export function readableLine(line: string): string {
  let entry: Record<string, unknown>;
  try {
    entry = JSON.parse(line) as Record<string, unknown>;
  } catch {
    return line;
  }
  if (typeof entry !== "object" || entry === null || Array.isArray(entry)) return line;
  const fact = (key: string): string =>
    `${key}=${typeof entry[key] === "string" ? entry[key] : JSON.stringify(entry[key])}`;
  const { op, msg, time, level } = entry;
  const { message } = (entry["err"] ?? {}) as { message?: unknown };
  const parts = [
    typeof time === "string" ? time : "",
    `${LOUD_LEVELS[Number(level)] ?? ""}${typeof op === "string" ? op : ""}`,
    ...LEADING.slice(1)
      .filter((key) => key in entry)
      .map(fact),
    ...Object.keys(entry)
      .filter((key) => !HIDDEN.has(key))
      .map(fact),
    // The server's message is its operation once more.
    typeof msg === "string" && msg !== op ? msg : "",
    typeof message === "string" ? `error: ${message}` : "",
  ].filter((part) => part !== "");
  return parts.length > 0 ? parts.join(" ") : line;
}
