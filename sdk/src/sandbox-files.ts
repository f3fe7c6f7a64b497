import { answeredList } from "./answered-list.ts";
import type { CallOptions } from "./call-options.ts";
import { downloadStream, readAll } from "./download-stream.ts";
import { InvalidRequestError, NotFoundError, TorporError } from "./errors.ts";
import { type FileEntry, fileEntryFromWire } from "./file-entry.ts";
import { FileWatcher } from "./file-watcher.ts";
import type { QueryValue } from "./request-path.ts";
import { requestJson } from "./request-json.ts";
import type { OpenResponse, Transport, TransportRequest } from "./transport.ts";
import { toUploadBody, type UploadContent } from "./upload-body.ts";
import type { FileEntryWire } from "./wire.ts";

/** Which part of a file to read. */
export interface ReadOptions extends CallOptions {
  /** First byte; default 0. */
  offset?: number | undefined;
  /** Bytes to read at most; default to the end. */
  length?: number | undefined;
}

export interface WriteOptions extends CallOptions {
  /** Owner of what is made; default `user`. */
  user?: string | undefined;
  /** Permission bits, e.g. 0o755. Default: those of the file replaced, else 0o644. */
  mode?: number | undefined;
}

export interface ListOptions extends CallOptions {
  /** Levels to descend; default 1, the directory's own entries. */
  depth?: number | undefined;
}

export interface WatchOptions extends CallOptions {
  /** Directories below too, also those made later. Default false. */
  recursive?: boolean | undefined;
}

export interface ArchiveOptions extends CallOptions {
  /** Gzip-compressed. Default false. */
  gzip?: boolean | undefined;
}

export interface UploadArchiveOptions extends ArchiveOptions {
  /** Owner of what is unpacked; default `user`. */
  user?: string | undefined;
}

/** Slowest upload of content of known size that is still waited for, bytes per second. */
const SLOWEST_UPLOAD_BYTES_PER_SECOND = 256 * 1024;

/**
 * The files of a sandbox. Paths are absolute, or start with `~/`. Content is streamed both ways: nothing but what
 * `read` and `readBytes` return is held in memory.
 */
export class SandboxFiles {
  readonly #transport: Transport;
  readonly #root: string;

  /** @internal `root` is the path of the sandbox's `fs` resource. */
  constructor(transport: Transport, root: string) {
    this.#transport = transport;
    this.#root = root;
  }

  /** A file's content as text; invalid UTF-8 is replaced by U+FFFD. @throws NotFoundError `file_not_found` */
  async read(path: string, options: ReadOptions = {}): Promise<string> {
    const bytes = await this.readBytes(path, options);
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);
  }

  /** A file's content. @throws NotFoundError `file_not_found` */
  async readBytes(path: string, options: ReadOptions = {}): Promise<Uint8Array> {
    return readAll(await this.readStream(path, options));
  }

  /**
   * A file's content as a stream, read from the sandbox only as fast as it is consumed. Read it to its end or cancel
   * it: it holds a connection. @throws NotFoundError `file_not_found`
   */
  async readStream(path: string, options: ReadOptions = {}): Promise<ReadableStream<Uint8Array>> {
    const range = rangeHeader(options);
    const headers = range === undefined ? {} : { range };
    const open = await this.#open("GET", "", { path }, options, {
      accept: "application/octet-stream",
      headers,
    });
    if (range !== undefined && open.response.status !== 206) {
      const error = new TorporError(`${path} was not read in part: the server answered with the whole file`, {
        code: "unsupported",
      });
      open.deadline.abort(error);
      throw error;
    }
    return downloadStream(open, `reading ${path}`, true);
  }

  /**
   * Writes a file; missing directories are made. A failed or aborted write leaves the old content whole.
   * A stream is sent once: a write from a stream is not retried.
   * @throws NoSpaceError when the sandbox's disk is full
   */
  async write(path: string, content: UploadContent, options: WriteOptions = {}): Promise<FileEntry> {
    const mode = options.mode === undefined ? undefined : modeText(options.mode);
    const request = this.#uploadRequest("", { path, mode, user: options.user }, content, options);
    return fileEntryFromWire(await this.#transport.json<FileEntryWire>(request));
  }

  /** The entries of a directory, sorted by path. @throws NotFoundError `file_not_found` */
  async list(path: string, options: ListOptions = {}): Promise<FileEntry[]> {
    const request = this.#request("GET", "/dir", { path, depth: options.depth }, options);
    return answeredList<FileEntryWire>(await this.#transport.json(request), "entries").map(fileEntryFromWire);
  }

  /** One entry. @throws NotFoundError `file_not_found` */
  async stat(path: string, options: CallOptions = {}): Promise<FileEntry> {
    const request = this.#request("GET", "/stat", { path }, options);
    return fileEntryFromWire(await this.#transport.json<FileEntryWire>(request));
  }

  /** Whether there is anything at `path`. */
  async exists(path: string, options: CallOptions = {}): Promise<boolean> {
    return foundFile(this.stat(path, options));
  }

  /** Makes a directory and those above it; one that exists is fine. */
  async mkdir(path: string, options: CallOptions = {}): Promise<void> {
    await this.#transport.text(this.#request("POST", "/dir", { path }, options));
  }

  /** Moves or renames; directories above the destination are made. @throws NotFoundError `file_not_found` */
  async move(source: string, destination: string, options: CallOptions = {}): Promise<void> {
    const json = requestJson({ source, destination }, new Set());
    await this.#transport.text(this.#request("POST", "/move", {}, options, { json }));
  }

  /** Removes a file, or a directory with all it holds. Returns false when there was nothing at `path`. */
  async remove(path: string, options: CallOptions = {}): Promise<boolean> {
    return foundFile(this.#transport.text(this.#request("DELETE", "", { path }, options)));
  }

  /** Watches a directory; changes are recorded from the moment the promise settles. @throws NotFoundError */
  async watch(path: string, options: WatchOptions = {}): Promise<FileWatcher> {
    const query = { path, recursive: options.recursive };
    const open = await this.#open("GET", "/watch", query, options, { accept: "application/x-ndjson" });
    const stream = downloadStream(open, `watching ${path}`, false);
    return new FileWatcher(stream, path, (reason) => open.deadline.abort(reason));
  }

  /** Unpacks a tar archive below `path`, which is made when missing. A failure may leave part of it unpacked. */
  async uploadArchive(path: string, tar: UploadContent, options: UploadArchiveOptions = {}): Promise<void> {
    const request = this.#uploadRequest(
      "/archive",
      { path, format: archiveFormat(options), user: options.user },
      tar,
      options,
    );
    request.headers = { "content-type": options.gzip ? "application/gzip" : "application/x-tar" };
    await this.#transport.text(request);
  }

  /** A file or directory as a tar archive, streamed. @throws NotFoundError `file_not_found` */
  async downloadArchive(path: string, options: ArchiveOptions = {}): Promise<ReadableStream<Uint8Array>> {
    const query = { path, format: archiveFormat(options) };
    const open = await this.#open("GET", "/archive", query, options, {
      accept: "application/x-tar, application/gzip",
    });
    return downloadStream(open, `downloading ${path} as an archive`, true);
  }

  #uploadRequest(
    resource: string,
    query: Record<string, QueryValue>,
    content: UploadContent,
    { signal, timeoutMs }: CallOptions,
  ): TransportRequest {
    // Before the content is touched: a stream that is not sent stays the caller's.
    signal?.throwIfAborted();
    const upload = toUploadBody(content);
    const limitMs = timeoutMs ?? this.#transport.connection.timeoutMs;
    // The progress of content sent in one piece is not visible, so that its size buys it time.
    const sizeMs = ((upload.sizeBytes ?? 0) / SLOWEST_UPLOAD_BYTES_PER_SECOND) * 1000;
    const options = { signal, timeoutMs: limitMs === 0 ? 0 : limitMs + sizeMs };
    return this.#request("PUT", resource, query, options, { upload });
  }

  #open(
    method: TransportRequest["method"],
    resource: string,
    query: Record<string, QueryValue>,
    options: CallOptions,
    more: Partial<TransportRequest>,
  ): Promise<OpenResponse> {
    return this.#transport.open(this.#request(method, resource, query, options, more));
  }

  #request(
    method: TransportRequest["method"],
    resource: string,
    query: Record<string, QueryValue>,
    { signal, timeoutMs }: CallOptions,
    more: Partial<TransportRequest> = {},
  ): TransportRequest {
    return { method, path: `${this.#root}${resource}`, query, signal, timeoutMs, ...more };
  }
}

function archiveFormat(options: ArchiveOptions): string | undefined {
  return options.gzip ? "tar.gz" : undefined;
}

function modeText(mode: number): string {
  if (Number.isInteger(mode) && mode >= 0 && mode <= 0o7777) return mode.toString(8).padStart(4, "0");
  throw new InvalidRequestError(`mode must be permission bits, e.g. 0o644; it is ${mode}`, {
    code: "invalid_request",
  });
}

/** `Range` for a part of a file; undefined for all of it. @throws InvalidRequestError on numbers that are none. */
function rangeHeader({ offset, length }: ReadOptions): string | undefined {
  if (offset === undefined && length === undefined) return undefined;
  const first = offset ?? 0;
  const isValid =
    Number.isSafeInteger(first) &&
    first >= 0 &&
    (length === undefined || (Number.isSafeInteger(length) && length > 0));
  if (!isValid) {
    throw new InvalidRequestError(
      `offset must be a whole number from 0 and length one from 1; they are ${offset} and ${length}`,
      { code: "invalid_request" },
    );
  }
  return `bytes=${first}-${length === undefined ? "" : first + length - 1}`;
}

/** False only when the file is missing: a missing sandbox still throws. */
async function foundFile(found: Promise<unknown>): Promise<boolean> {
  try {
    await found;
    return true;
  } catch (error) {
    if (error instanceof NotFoundError && error.code === "file_not_found") return false;
    throw error;
  }
}
