import { describeCause } from "./connection-error.ts";
import type { OpenResponse } from "./transport.ts";
import { ConnectionError } from "./errors.ts";

/**
 * The body of an answer as a stream that pulls from the network only as it is read, stops with the call's signal, and
 * fails with this client's errors. Cancelling it closes the connection. `limitsSilence`: whether the call's `timeoutMs`
 * bounds each wait for the next bytes.
 */
export function downloadStream(
  open: OpenResponse,
  what: string,
  limitsSilence: boolean,
): ReadableStream<Uint8Array> {
  const { response, deadline } = open;
  const reader = response.body?.getReader();
  return new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        if (!reader) {
          deadline.close();
          controller.close();
          return;
        }
        // A slow reader is no stalled network: the clock runs only while we wait for bytes.
        if (limitsSilence) deadline.restart();
        try {
          const { done, value } = await deadline.race(reader.read());
          deadline.pause();
          if (!done) {
            controller.enqueue(value);
            return;
          }
          deadline.close();
          controller.close();
        } catch (error) {
          const reason = deadline.signal.aborted ? deadline.signal.reason : brokenError(error, what);
          deadline.abort(reason);
          controller.error(reason);
        }
      },
      cancel(reason) {
        deadline.abort(reason);
        reader?.cancel(reason).catch(() => {});
      },
    },
    { highWaterMark: 0 },
  );
}

function brokenError(cause: unknown, what: string): ConnectionError {
  const { why } = describeCause(cause);
  return new ConnectionError(
    `the connection broke in the middle of ${what} (${why}): what was received is incomplete`,
    { code: "connection_lost", retryable: true, details: { why }, cause },
  );
}

/** Reads a stream to its end. */
export async function readAll(stream: ReadableStream<Uint8Array>): Promise<Uint8Array> {
  const reader = stream.getReader();
  const chunks: Uint8Array[] = [];
  let sizeBytes = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    chunks.push(value);
    sizeBytes += value.byteLength;
  }
  return joinBytes(chunks, sizeBytes);
}

/** The chunks in one piece. */
export function joinBytes(chunks: readonly Uint8Array[], sizeBytes: number): Uint8Array {
  const [first] = chunks;
  if (chunks.length === 1 && first) return first;
  const bytes = new Uint8Array(sizeBytes);
  let offset = 0;
  for (const chunk of chunks) {
    bytes.set(chunk, offset);
    offset += chunk.byteLength;
  }
  return bytes;
}
