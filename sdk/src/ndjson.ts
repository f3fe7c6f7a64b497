import { TorporError } from "./errors.ts";

/** Longest line accepted, characters: output comes in chunks of 32 KiB, so this is far above any honest line. */
const MAX_LINE_CHARACTERS = 16 * 1024 * 1024;

/** One JSON object of a line. */
export type NdjsonLine = Record<string, unknown>;

/**
 * Splits newline-delimited JSON into objects. Blank lines are skipped. The last line needs no newline.
 * @throws TorporError `invalid_response` on a line that is no JSON object.
 */
export async function* decodeNdjson(
  stream: ReadableStream<Uint8Array>,
): AsyncGenerator<NdjsonLine, void, undefined> {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let pending = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      pending += done ? decoder.decode() : decoder.decode(value, { stream: true });
      let start = 0;
      for (let end = pending.indexOf("\n"); end !== -1; end = pending.indexOf("\n", start)) {
        const line = pending.slice(start, end);
        start = end + 1;
        if (line.trim() !== "") yield parseLine(line);
      }
      pending = pending.slice(start);
      if (pending.length > MAX_LINE_CHARACTERS) {
        throw new TorporError(`the server sent a line of more than ${MAX_LINE_CHARACTERS} characters`, {
          code: "invalid_response",
        });
      }
      if (done) break;
    }
    if (pending.trim() !== "") yield parseLine(pending);
  } finally {
    // Closes the connection when the consumer leaves early; nothing to do when the stream has ended.
    reader.cancel().catch(() => {});
  }
}

function parseLine(line: string): NdjsonLine {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch (cause) {
    const quoted = JSON.stringify(line.slice(0, 100));
    throw new TorporError(
      `the server sent a line that is no JSON (${quoted}): was the stream cut off or altered?`,
      {
        code: "invalid_response",
        cause,
      },
    );
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new TorporError("the server sent a line that is no JSON object", { code: "invalid_response" });
  }
  return value as NdjsonLine;
}
