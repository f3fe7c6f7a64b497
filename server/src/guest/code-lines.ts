import type { IncomingMessage } from "node:http";
import { CodedError } from "@torpor/protocol";
import { z } from "zod";

/** Largest line taken from a code server, bytes: one image, base64. */
const MAX_LINE_BYTES = 32 * 1024 * 1024;

/** One line of an execution, as the code server tells it. */
export type CodeLine = { type: string } & Record<string, unknown>;

/** A line, and its bytes as they came, without their end. */
export interface ToldLine {
  line: CodeLine;
  bytes: Buffer;
}

const lineSchema = z.looseObject({ type: z.string() });

/**
 * Whole lines of the answer, each an object: what is inside is untrusted, so both its size and its form are bounded.
 *
 * @throws CodedError when a line is too large or unreadable; an answer that breaks off throws what its connection did
 */
export async function* codeLines(answer: IncomingMessage): AsyncGenerator<ToldLine> {
  let parts: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of answer as AsyncIterable<Buffer>) {
    let start = 0;
    for (let end = chunk.indexOf(10); end !== -1; end = chunk.indexOf(10, start)) {
      parts.push(chunk.subarray(start, end));
      start = end + 1;
      const line = parseLine(Buffer.concat(parts));
      parts = [];
      bytes = 0;
      if (line !== undefined) yield line;
    }
    parts.push(chunk.subarray(start));
    bytes += chunk.length - start;
    if (bytes > MAX_LINE_BYTES)
      throw new CodedError("unsupported", `the code showed one thing larger than ${MAX_LINE_BYTES} bytes`);
  }
  const last = parseLine(Buffer.concat(parts));
  if (last !== undefined) yield last;
}

function parseLine(bytes: Buffer): ToldLine | undefined {
  const text = bytes.toString("utf8");
  if (text.trim() === "") return undefined;
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    throw new CodedError("guest_unavailable", "the code server's answer is not readable", { cause });
  }
  const line = lineSchema.safeParse(value);
  if (!line.success) throw new CodedError("guest_unavailable", "the code server's answer is not readable");
  return { line: line.data, bytes };
}
