import type { IncomingMessage } from "node:http";
import { CodedError } from "@torpor/protocol";
import type { z } from "zod";

/** Largest body of a request from the server, bytes. */
const MAX_BODY_BYTES = 2 * 1024 * 1024;

/** Reads and checks a JSON body. @param whenEmpty what none stands for; default: it is refused. @throws CodedError `invalid_request` naming the field, or `payload_too_large` */
export async function readJson<T extends z.ZodType>(
  incoming: IncomingMessage,
  schema: T,
  whenEmpty?: z.input<T>,
): Promise<z.output<T>> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of incoming as AsyncIterable<Buffer>) {
    bytes += chunk.length;
    if (bytes > MAX_BODY_BYTES)
      throw new CodedError("payload_too_large", `the body is above ${MAX_BODY_BYTES} bytes`);
    chunks.push(chunk);
  }
  let json: unknown;
  try {
    json =
      bytes === 0 && whenEmpty !== undefined ? whenEmpty : JSON.parse(Buffer.concat(chunks).toString("utf8"));
  } catch {
    // The engine's message quotes the text, which may hold secrets.
    throw new CodedError("invalid_request", "the body is not JSON");
  }
  const parsed = schema.safeParse(json);
  if (!parsed.success) {
    const issues = parsed.error.issues.map((issue) => ({
      path: issue.path.join("."),
      message: issue.message,
    }));
    throw new CodedError(
      "invalid_request",
      issues.map((issue) => `${issue.path}: ${issue.message}`).join("; "),
      { details: { issues } },
    );
  }
  return parsed.data;
}
