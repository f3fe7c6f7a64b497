import type { IncomingMessage } from "node:http";
import { CodedError } from "@torpor/protocol";

/** Reads a body of at most `maxBytes`. @throws CodedError unsupported when it is larger, host_unavailable when it breaks off. */
export async function readAll(answer: IncomingMessage, maxBytes: number): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  try {
    for await (const chunk of answer as AsyncIterable<Buffer>) {
      bytes += chunk.length;
      if (bytes > maxBytes)
        throw new CodedError(
          "unsupported",
          `the answer is larger than the ${maxBytes} bytes this server takes in one piece; ask for less at once`,
        );
      chunks.push(chunk);
    }
  } catch (error) {
    if (error instanceof CodedError) throw error;
    throw new CodedError("host_unavailable", "the host's answer broke off; try again", { cause: error });
  }
  return chunks.length === 1 && chunks[0] !== undefined ? chunks[0] : Buffer.concat(chunks, bytes);
}
