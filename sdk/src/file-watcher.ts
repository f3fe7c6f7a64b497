import { ConnectionError, TorporError } from "./errors.ts";
import { decodeNdjson } from "./ndjson.ts";

/** One change below a watched directory. */
export interface FileChange {
  /** `missed`, of `.`: a snapshot or a fork cut the watch off for a moment; look at the directory anew. */
  type: "create" | "write" | "remove" | "rename" | "chmod" | "missed";
  /** Relative to the watched directory. */
  name: string;
}

const CHANGE_TYPES: ReadonlySet<unknown> = new Set([
  "create",
  "write",
  "remove",
  "rename",
  "chmod",
  "missed",
]);

/**
 * The changes below a directory, from the moment it was made. Iterate it once; leaving the loop, `close()` or the
 * call's signal stops watching. The iteration ends by itself only when the sandbox does, with an error.
 */
export class FileWatcher implements AsyncIterable<FileChange>, AsyncDisposable {
  readonly #stream: ReadableStream<Uint8Array>;
  readonly #path: string;
  readonly #abort: (reason: unknown) => void;
  #isClosed = false;

  /** @internal Made by `files.watch`. */
  constructor(stream: ReadableStream<Uint8Array>, path: string, abort: (reason: unknown) => void) {
    this.#stream = stream;
    this.#path = path;
    this.#abort = abort;
  }

  /** @throws ConnectionError when the stream ends without being closed; changes may have been missed */
  async *[Symbol.asyncIterator](): AsyncGenerator<FileChange, void, undefined> {
    if (this.#stream.locked) {
      throw new TorporError("this watcher is iterated already: call watch again for another", {
        code: "already_read",
      });
    }
    try {
      for await (const { type, name } of decodeNdjson(this.#stream)) {
        if (CHANGE_TYPES.has(type) && typeof name === "string")
          yield { type: type as FileChange["type"], name };
      }
    } catch (error) {
      if (this.#isClosed) return;
      throw error;
    } finally {
      this.close();
    }
    throw new ConnectionError(`watching ${this.#path} ended: the sandbox or its server went away`, {
      code: "connection_lost",
      retryable: true,
    });
  }

  /** Stops watching; a loop under way ends. Idempotent. */
  close(): void {
    this.#isClosed = true;
    this.#abort(new DOMException("the watcher was closed", "AbortError"));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }
}
