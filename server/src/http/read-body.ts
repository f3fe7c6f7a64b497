import type { IncomingMessage } from "node:http";
import { CodedError } from "@torpor/protocol";
import { findJsonBreak } from "./json-break.ts";

/** A JSON body that is not complete by then is given up, milliseconds. */
const READ_WITHIN_MS = 60_000;

/**
 * Reads a request body of at most `maxBytes`. A larger one is refused as soon as that is known, the rest unread.
 *
 * @throws CodedError payload_too_large, deadline_exceeded, client_closed_request
 */
export async function readBody(incoming: IncomingMessage, maxBytes: number): Promise<Buffer> {
  const declared = Number(incoming.headers["content-length"] ?? 0);
  if (declared > maxBytes) throw tooLarge(`${declared} bytes`, maxBytes);
  if (incoming.complete && incoming.readableLength === 0) return Buffer.alloc(0);
  return await new Promise((resolve, reject) => {
    const chunks: Buffer[] = [];
    let bytes = 0;
    const stop = (): void => {
      clearTimeout(timer);
      incoming.off("data", onData).off("end", onEnd).off("error", onBroken).off("close", onBroken);
    };
    const timer = setTimeout(() => {
      stop();
      reject(
        new CodedError(
          "deadline_exceeded",
          `the request body was not complete within ${READ_WITHIN_MS / 1_000} s; send it in one go`,
        ),
      );
    }, READ_WITHIN_MS);
    const onData = (chunk: Buffer): void => {
      bytes += chunk.length;
      chunks.push(chunk);
      if (bytes <= maxBytes) return;
      stop();
      incoming.pause();
      reject(tooLarge("more", maxBytes));
    };
    const onEnd = (): void => {
      stop();
      resolve(chunks.length === 1 && chunks[0] !== undefined ? chunks[0] : Buffer.concat(chunks, bytes));
    };
    const onBroken = (): void => {
      stop();
      reject(new CodedError("client_closed_request", "the client left before it had sent the whole body"));
    };
    incoming.on("data", onData).on("end", onEnd).on("error", onBroken).on("close", onBroken);
  });
}

function tooLarge(size: string, maxBytes: number): CodedError {
  return new CodedError(
    "payload_too_large",
    `the request body is ${size} where at most ${maxBytes} bytes are accepted; send file content with PUT .../fs, which streams`,
    {
      details: { max_bytes: maxBytes },
    },
  );
}

/** Parses a JSON body; an empty one counts as `{}`. @throws CodedError invalid_request that says where it breaks. */
export function parseJson(body: Buffer, contentType: string | undefined): unknown {
  if (body.length === 0) return {};
  const mediaType = contentType?.split(";", 1)[0]?.trim().toLowerCase();
  if (mediaType !== undefined && mediaType !== "application/json" && !mediaType.endsWith("+json")) {
    throw new CodedError(
      "invalid_request",
      `content-type is ${mediaType.slice(0, 100)}, but this route reads JSON; send content-type: application/json`,
      {
        details: { issues: [{ path: "content-type", message: "must be application/json" }] },
      },
    );
  }
  const text = body.toString("utf8");
  try {
    return JSON.parse(text);
  } catch {
    const position = findJsonBreak(text);
    const found =
      position >= text.length ? "it ends too early" : `unexpected ${JSON.stringify(text.charAt(position))}`;
    throw new CodedError(
      "invalid_request",
      `the body is not valid JSON: ${found} at ${lineAndColumn(text, position)}`,
      { details: { issues: [{ path: "", message: "must be valid JSON" }] } },
    );
  }
}

function lineAndColumn(text: string, position: number): string {
  const before = text.slice(0, position).split("\n");
  return `line ${before.length}, column ${(before.at(-1)?.length ?? 0) + 1}`;
}
