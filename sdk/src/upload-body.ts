import type { CallDeadline } from "./call-deadline.ts";
import { InvalidRequestError } from "./errors.ts";

/** What can be uploaded. Node's readable streams are async iterables of bytes too. */
export type UploadContent =
  | string
  | Uint8Array
  | ArrayBuffer
  | Blob
  | ReadableStream<Uint8Array>
  | AsyncIterable<Uint8Array | string>;

/** A request body and how to handle it. */
export interface UploadBody {
  /** Whether it can be sent again. */
  isReplayable: boolean;
  /** Known size, bytes; null for streams. */
  sizeBytes: number | null;
  /** The parts of the request that carry it. A stream may be asked for once. */
  requestInit(deadline: CallDeadline): RequestInit;
  /** Set when the caller's own source threw, which is then the reason of the failure. */
  readonly sourceFailure: { error: unknown } | undefined;
  /** Lets go of the caller's source. Idempotent. */
  stop(reason: unknown): void;
}

/** @throws InvalidRequestError when `content` is of no type that can be uploaded. */
export function toUploadBody(content: UploadContent): UploadBody {
  if (typeof content === "string") return wholeBody(new TextEncoder().encode(content));
  if (content instanceof Uint8Array || content instanceof ArrayBuffer) return wholeBody(content);
  if (typeof Blob !== "undefined" && content instanceof Blob) return wholeBody(content);
  if (typeof content === "object" && content !== null) {
    if ("getReader" in content) return streamBody(readerSource(content));
    if (Symbol.asyncIterator in content) return streamBody(iteratorSource(content));
  }
  throw new InvalidRequestError(
    `content must be a string, bytes (Uint8Array, ArrayBuffer, Blob) or a stream (ReadableStream, async iterable of bytes); it is ${describe(content)}`,
    { code: "invalid_request" },
  );
}

function describe(value: unknown): string {
  if (typeof value !== "object" || value === null) return value === null ? "null" : `a ${typeof value}`;
  const name: unknown = value.constructor?.name;
  return typeof name === "string" ? `an object of ${name}` : "an object";
}

function wholeBody(content: Uint8Array | ArrayBuffer | Blob): UploadBody {
  const sizeBytes = "size" in content ? content.size : content.byteLength;
  return {
    isReplayable: true,
    sizeBytes,
    sourceFailure: undefined,
    requestInit: () => ({ body: content }),
    stop() {},
  };
}

/** One way to read every kind of stream. */
interface ChunkSource {
  next(): Promise<IteratorResult<unknown, unknown>>;
  stop(reason: unknown): Promise<unknown>;
}

function readerSource(stream: ReadableStream<Uint8Array>): ChunkSource {
  if (stream.locked) {
    throw new InvalidRequestError("the stream to upload is locked: something else reads it already", {
      code: "invalid_request",
    });
  }
  const reader = stream.getReader();
  return {
    next: async () => {
      const { done, value } = await reader.read();
      return done ? { done, value: undefined } : { done, value };
    },
    stop: (reason) => reader.cancel(reason),
  };
}

function iteratorSource(iterable: AsyncIterable<Uint8Array | string>): ChunkSource {
  const iterator = iterable[Symbol.asyncIterator]();
  return { next: () => iterator.next(), stop: async () => iterator.return?.() };
}

function streamBody(source: ChunkSource): UploadBody {
  const encoder = new TextEncoder();
  let isOver = false;
  let sourceFailure: { error: unknown } | undefined;
  const stop = (reason: unknown): void => {
    if (isOver) return;
    isOver = true;
    source.stop(reason).catch(() => {});
  };
  return {
    isReplayable: false,
    sizeBytes: null,
    get sourceFailure() {
      return sourceFailure;
    },
    stop,
    requestInit(deadline) {
      const body = new ReadableStream<Uint8Array>(
        {
          async pull(controller) {
            // The source may take its time; only the network's silence counts against the time limit.
            deadline.pause();
            try {
              const bytes = await nextBytes();
              if (bytes) controller.enqueue(bytes);
              else controller.close();
            } catch (error) {
              sourceFailure = { error };
              isOver = true;
              controller.error(error);
            } finally {
              deadline.restart();
            }
          },
          cancel: stop,
        },
        { highWaterMark: 0 },
      );
      return Object.assign({ body } satisfies RequestInit, { duplex: "half" as const });
    },
  };

  async function nextBytes(): Promise<Uint8Array | undefined> {
    for (;;) {
      const { done, value } = await source.next();
      if (done) {
        isOver = true;
        return undefined;
      }
      const bytes = typeof value === "string" ? encoder.encode(value) : value;
      if (!(bytes instanceof Uint8Array)) {
        source.stop(undefined).catch(() => {});
        throw new InvalidRequestError(
          `the stream to upload must give bytes (Uint8Array) or strings; it gave ${describe(value)}`,
          { code: "invalid_request" },
        );
      }
      // An empty chunk would end a chunked body in some runtimes.
      if (bytes.byteLength > 0) return bytes;
    }
  }
}
