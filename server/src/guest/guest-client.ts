import type { IncomingMessage, OutgoingHttpHeaders } from "node:http";
import {
  CONNECT_END_FLAG,
  type ConnectError,
  decodeEnvelopes,
  encodeEnvelope,
  GUEST_PORT,
  type ProcessEvent,
  type StartRequest,
} from "@torpor/protocol";
import { connectError, GuestRefusal } from "../host/answer-error.ts";
import type { HostClient } from "../host/host-client.ts";
import type { CallOptions } from "../host/host-connection.ts";
import { readAll } from "../host/read-all.ts";
import type { OwnedMachine } from "../host/owned-machine.ts";
import { serialId } from "../serial-id.ts";
import { Interruptions } from "./interruptions.ts";

/** Unary answers of the guest are small, directory lists the largest: bytes. */
const MAX_UNARY_BYTES = 32 * 1024 * 1024;

/** Seconds between the guest's keepalive events on a silent stream. */
const KEEPALIVE_SECONDS = "15";

export interface StreamOptions {
  signal?: AbortSignal;
  /** Whether the guest takes a second sending for the first. */
  repeatable?: boolean;
}

/** How a process is named to the guest. */
export type ProcessSelector = { pid: number } | { torpor: { execId: string } };

/** A process as the guest lists it. */
export interface ListedProcess {
  pid: number;
  tag?: string;
  config?: { cmd?: string; args?: string[]; cwd?: string };
  torpor?: { execId?: string; startedAt?: string; user?: string };
}

/** Bytes of each of a process's streams. */
export interface StreamPosition {
  stdout: number;
  stderr: number;
  pty: number;
}

/** The agent inside one sandbox, reached through its host. */
export class GuestClient {
  readonly #host: HostClient;
  readonly #machine: OwnedMachine;

  constructor(host: HostClient, machine: OwnedMachine) {
    this.#host = host;
    this.#machine = machine;
  }

  /** One unary call of the agent's Connect services. A guest that is locked is asked again when it is not. @throws GuestRefusal, CodedError */
  async unary<T>(procedure: string, message: unknown, signal?: AbortSignal): Promise<T> {
    const interruptions = this.interruptions(signal);
    for (;;) {
      try {
        return await this.#unary(procedure, message, signal);
      } catch (error) {
        if (!isLocked(error) || !(await interruptions.pass(error))) throw error;
      }
    }
  }

  /** Commands that run. Neither wakes the sandbox nor counts as use of it. @throws GuestRefusal, CodedError */
  async listRunning(signal?: AbortSignal): Promise<ListedProcess[]> {
    const passive = { headers: { "x-torpor-passive": "1" } };
    const { processes = [] } = await this.#unary<{ processes?: ListedProcess[] }>(
      "process.Process/List",
      {},
      signal,
      passive,
    );
    return processes;
  }

  /**
   * Writes to a process's standard input or terminal, exactly once, also when a snapshot cuts the call. A process that does
   * not read holds it up for as long as the caller stays.
   *
   * @param inputId what is sent again under it is written once; default: its own for each call
   * @throws GuestRefusal, CodedError
   */
  async input(
    process: ProcessSelector,
    input: { stdin: string } | { pty: string },
    signal?: AbortSignal,
    inputId = serialId("i"),
  ): Promise<void> {
    const message = { process, input, torpor: { inputId } };
    const interruptions = this.interruptions(signal);
    for (;;) {
      try {
        await this.#unary("process.Process/SendInput", message, signal, { headTimeoutMs: 0 });
        return;
      } catch (error) {
        if (!(await interruptions.pass(error))) throw error;
      }
    }
  }

  /** What cuts connections into this sandbox and passes. */
  interruptions(signal?: AbortSignal): Interruptions {
    return new Interruptions(this.#host, this.#machine, signal);
  }

  async #unary<T>(
    procedure: string,
    message: unknown,
    signal?: AbortSignal,
    { headers, ...options }: CallOptions = {},
  ): Promise<T> {
    const answer = await this.#host.guest(this.#machine, GUEST_PORT, "POST", `/${procedure}`, {
      ...options,
      headers: { "content-type": "application/json", "connect-protocol-version": "1", ...headers },
      body: Buffer.from(JSON.stringify(message)),
      ...(signal === undefined ? {} : { signal }),
    });
    return JSON.parse((await readAll(answer, MAX_UNARY_BYTES)).toString("utf8")) as T;
  }

  /** Starts a process and follows it. */
  start(request: StartRequest, options: StreamOptions): AsyncGenerator<ProcessEvent> {
    return this.#events("process.Process/Start", request, request.torpor?.execId, options);
  }

  /**
   * Follows a process that runs or ended a short while ago: the kept output behind `from`, then what comes. With `hold` it
   * goes on with the stream of a resumable start, for which the process is held up. With `lossless` it is held up without
   * being one's own to end.
   */
  connect(
    process: ProcessSelector,
    { from, hold, lossless = false }: { from: StreamPosition; hold: boolean; lossless?: boolean },
    options: StreamOptions,
  ): AsyncGenerator<ProcessEvent> {
    const execId = "pid" in process ? undefined : process.torpor.execId;
    const request = { process, torpor: { replay: true, from, hold, lossless } };
    return this.#events("process.Process/Connect", request, execId, options);
  }

  /** The events of a watched directory. */
  watch(path: string, recursive: boolean, options: StreamOptions): AsyncGenerator<WatchEvent> {
    return this.#messages<WatchEvent>("filesystem.Filesystem/WatchDir", { path, recursive }, options);
  }

  /** A plain HTTP request to the agent; `path` with its query. */
  http(method: string, path: string, options: CallOptions): Promise<IncomingMessage> {
    return this.#host.guest(this.#machine, GUEST_PORT, method, path, options);
  }

  async *#events(
    procedure: string,
    request: unknown,
    execId: string | undefined,
    options: StreamOptions,
  ): AsyncGenerator<ProcessEvent> {
    for await (const message of this.#messages<{ event?: ProcessEvent }>(
      procedure,
      request,
      options,
      ({ event }) => event?.end !== undefined || event?.continue !== undefined,
      // The host says by it what holds the sandbox awake.
      execId === undefined ? {} : { "x-torpor-exec": execId },
    )) {
      if (message.event !== undefined) yield message.event;
    }
  }

  /**
   * Ends without an error only after the guest's end envelope: a stream that breaks off throws. After a message that
   * `isLast` knows, the reader may leave: what little follows is read for it, so that the connection can be kept.
   */
  async *#messages<T>(
    procedure: string,
    request: unknown,
    { signal, repeatable = false }: StreamOptions,
    isLast?: (message: T) => boolean,
    more: OutgoingHttpHeaders = {},
  ): AsyncGenerator<T> {
    const headers: OutgoingHttpHeaders = {
      ...more,
      "content-type": "application/connect+json",
      "connect-protocol-version": "1",
      "keepalive-ping-interval": KEEPALIVE_SECONDS,
    };
    const answer = await this.#host.guest(this.#machine, GUEST_PORT, "POST", `/${procedure}`, {
      headers,
      body: Buffer.from(encodeEnvelope(0, request)),
      repeatable,
      headTimeoutMs: 30_000,
      ...(signal === undefined ? {} : { signal }),
    });
    const abort = (): void => void answer.destroy();
    signal?.addEventListener("abort", abort, { once: true });
    let isOver = false;
    try {
      if (signal?.aborted === true) abort();
      for await (const { flags, json } of decodeEnvelopes(answer.iterator({ destroyOnReturn: false }))) {
        if ((flags & CONNECT_END_FLAG) !== 0) {
          isOver = true;
          const { error } = json as { error?: Partial<ConnectError> };
          if (error !== undefined)
            throw connectError(error.code ?? "unknown", error.message ?? "the sandbox gave no reason");
          return;
        }
        isOver = isLast?.(json as T) ?? false;
        yield json as T;
      }
      throw new BrokenStream(`the sandbox's ${procedure} stream ended without its last message`);
    } finally {
      signal?.removeEventListener("abort", abort);
      if (isOver) letFinish(answer);
      else answer.destroy();
    }
  }
}

/** A message of a directory watch. */
export interface WatchEvent {
  start?: Record<string, never>;
  filesystem?: { name: string; type: string };
  keepalive?: Record<string, never>;
  /** Not of the guest: changes before this may not have been told. */
  missed?: Record<string, never>;
}

/** How long the rest of a finished stream may take before its connection is given up, milliseconds. */
const FINISH_WITHIN_MS = 1_000;
/** And how large it may be: an end envelope or two, bytes. */
const MAX_FINISH_BYTES = 64 * 1024;

function letFinish(answer: IncomingMessage): void {
  if (answer.readableEnded || answer.destroyed) return;
  const timer = setTimeout(() => answer.destroy(), FINISH_WITHIN_MS);
  let bytes = 0;
  answer.on("data", (chunk: Buffer) => {
    bytes += chunk.length;
    if (bytes > MAX_FINISH_BYTES) answer.destroy();
  });
  answer.on("error", () => {}); // nobody waits for it any more
  answer.once("close", () => clearTimeout(timer));
  answer.resume();
}

/** Whether the guest refused since it is locked, before it did anything. */
function isLocked(error: unknown): boolean {
  return error instanceof GuestRefusal && (error.guestCode === "unavailable" || error.guestCode === "locked");
}

/** A stream that broke off: the sandbox, its host or the way between them failed. */
class BrokenStream extends Error {}
