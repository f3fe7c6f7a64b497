import type { CallOptions } from "./call-options.ts";
import { CallDeadline } from "./call-deadline.ts";
import { downloadStream } from "./download-stream.ts";
import { TorporError } from "./errors.ts";
import { decodeNdjson } from "./ndjson.ts";
import { retryDelayMs } from "./retry-delay.ts";
import { type EventType, type SandboxEvent, sandboxEventFromWire } from "./sandbox-event.ts";
import type { Transport } from "./transport.ts";
import type { EventWire } from "./wire.ts";

export interface EventOptions extends Pick<CallOptions, "signal"> {
  /**
   * Where to begin: `now`, `oldest` (all that is kept: 7 days), or after the event of this id. Default: `now` for all
   * sandboxes, `oldest` for one, so that its whole life is told.
   */
  after?: string | undefined;
  /** Only these types; default all. */
  types?: readonly EventType[] | undefined;
  /** Whether to go on with what comes; default true. */
  follow?: boolean | undefined;
}

/** Of the events of all sandboxes. */
export interface AccountEventOptions extends EventOptions {
  /** Of this tenant only. */
  tenant?: string | undefined;
}

/** Silence after which the connection counts as broken, milliseconds: three heartbeats of the server. */
const SILENCE_MS = 45_000;
/** How long it is tried again without a success before the failure is thrown, milliseconds. */
const GIVE_UP_AFTER_MS = 300_000;

/**
 * Events as they happen, in order, none missing and none twice: a connection that breaks is opened again where it broke,
 * for up to 5 minutes. Iterate it once; leaving the loop, `close()` and the call's signal end it.
 */
export class EventStream implements AsyncIterable<SandboxEvent>, AsyncDisposable {
  readonly #transport: Transport;
  readonly #path: string;
  readonly #options: AccountEventOptions;
  /** Whether the stream is over with the sandbox's end. */
  readonly #endsWithSandbox: boolean;
  readonly #leave = new AbortController();
  #isTaken = false;
  #lastId: string | undefined;

  /** @internal Made by `sandbox.events` and `client.events`. */
  constructor(transport: Transport, path: string, options: AccountEventOptions, endsWithSandbox: boolean) {
    this.#transport = transport;
    this.#path = path;
    this.#options = options;
    this.#endsWithSandbox = endsWithSandbox;
  }

  /** How far it has come: kept and passed as `after`, another stream goes on from there. */
  get lastId(): string | undefined {
    return this.#lastId;
  }

  /** Ends a loop under way. Idempotent. */
  close(): void {
    this.#leave.abort(new DOMException("the event stream was closed", "AbortError"));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }

  /**
   * @throws TorporError `events_expired` when the place to go on from is no longer kept: some may have been missed
   * @throws the failure that kept it from connecting for 5 minutes
   */
  async *[Symbol.asyncIterator](): AsyncGenerator<SandboxEvent, void, undefined> {
    if (this.#isTaken) {
      throw new TorporError("these events are iterated already: call events again for another stream", {
        code: "already_read",
      });
    }
    this.#isTaken = true;
    let failures = 0;
    let goodAt = performance.now();
    try {
      for (;;) {
        try {
          for await (const event of this.#connection()) {
            failures = 0;
            goodAt = performance.now();
            if (event === undefined) continue;
            yield event;
            if (this.#endsWithSandbox && event.state === "destroyed") return;
          }
          if (this.#options.follow === false || this.#leave.signal.aborted) return;
        } catch (error) {
          if (this.#leave.signal.aborted) return;
          this.#options.signal?.throwIfAborted();
          const mayPass = error instanceof TorporError && error.retryable;
          if (!mayPass || performance.now() - goodAt > GIVE_UP_AFTER_MS) throw error;
        }
        await this.#pause(failures++);
      }
    } finally {
      this.close();
    }
  }

  async #pause(failures: number): Promise<void> {
    const deadline = new CallDeadline(this.#path, this.#signal(), 0);
    try {
      await deadline.sleep(retryDelayMs(Math.min(failures, 8), null, Math.random));
    } catch (error) {
      if (!this.#leave.signal.aborted) throw error;
    } finally {
      deadline.close();
    }
  }

  /** One connection's events; undefined for a heartbeat. */
  async *#connection(): AsyncGenerator<SandboxEvent | undefined, void, undefined> {
    const { after, types, follow, tenant } = this.#options;
    const deadline = new CallDeadline(`GET ${this.#path}`, this.#signal(), SILENCE_MS);
    try {
      const open = await this.#transport.open({
        method: "GET",
        path: this.#path,
        query: { after: this.#lastId ?? after, types: types?.join(","), follow, tenant },
        accept: "application/x-ndjson",
        deadline,
      });
      for await (const line of decodeNdjson(downloadStream(open, `following ${this.#path}`, true))) {
        const { id, type } = line;
        if (typeof id !== "string") continue;
        if (type === "keepalive") {
          this.#lastId = id;
          yield undefined;
        } else {
          const event = sandboxEventFromWire(line as unknown as EventWire);
          yield event;
          // Not before it was taken: a loop that is left in its middle resumes with it.
          this.#lastId = id;
        }
      }
    } finally {
      deadline.abort(new DOMException("the event stream was left", "AbortError"));
    }
  }

  #signal(): AbortSignal {
    const { signal } = this.#options;
    return signal === undefined ? this.#leave.signal : AbortSignal.any([signal, this.#leave.signal]);
  }
}
