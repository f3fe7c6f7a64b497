import { once } from "node:events";
import type { ServerResponse } from "node:http";
import { eventId } from "@torpor/protocol";
import type { LoggedEvent } from "../store/event-store.ts";

/** A client that reads nothing for this long is let go, milliseconds: it resumes where it was. */
const STALL_MS = 60_000;

/** A stream of events in one of its two forms. A client that does not read makes its writer wait, and nobody else. */
export class EventStreamWriter {
  readonly #outgoing: ServerResponse;
  readonly #signal: AbortSignal;
  readonly #form: "sse" | "ndjson";

  constructor(outgoing: ServerResponse, signal: AbortSignal, form: "sse" | "ndjson") {
    this.#outgoing = outgoing;
    this.#signal = signal;
    this.#form = form;
    // `no-transform` and `x-accel-buffering` keep proxies from holding events back.
    outgoing.writeHead(200, {
      "content-type": form === "sse" ? "text/event-stream" : "application/x-ndjson",
      "cache-control": "no-cache, no-transform",
      "x-accel-buffering": "no",
    });
    outgoing.flushHeaders();
  }

  /** @throws AbortError, TimeoutError when the client left or reads no more */
  async event({ seq, event }: LoggedEvent): Promise<void> {
    const json = JSON.stringify(event);
    await this.#write(
      this.#form === "sse" ? `id: ${eventId(seq)}\nevent: ${event.type}\ndata: ${json}\n\n` : `${json}\n`,
    );
  }

  /**
   * Says that all is well and how far the stream has come: a client that resumes from there misses nothing, however long
   * nothing happened to what is its own. An `id` without data moves an EventSource's place and dispatches nothing.
   */
  async position(seq: number): Promise<void> {
    await this.#write(
      this.#form === "sse"
        ? `: alive\nid: ${eventId(seq)}\n\n`
        : `${JSON.stringify({ type: "keepalive", id: eventId(seq) })}\n`,
    );
  }

  end(): void {
    this.#outgoing.end();
  }

  async #write(text: string): Promise<void> {
    if (this.#outgoing.write(text)) return;
    await once(this.#outgoing, "drain", {
      signal: AbortSignal.any([this.#signal, AbortSignal.timeout(STALL_MS)]),
    });
  }
}
