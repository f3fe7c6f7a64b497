import { once } from "node:events";
import type { ServerResponse } from "node:http";

/**
 * Lines of JSON, sent as they come. `write` waits while the client does not read, so that whoever produces the lines
 * waits too: a slow reader costs one connection's buffer and no more.
 */
export class NdjsonWriter {
  readonly #outgoing: ServerResponse;
  readonly #signal: AbortSignal;

  /** `signal` aborts when the client leaves, which ends a wait for it to read. */
  constructor(outgoing: ServerResponse, signal: AbortSignal) {
    this.#outgoing = outgoing;
    this.#signal = signal;
    // `no-transform` and `x-accel-buffering` keep proxies from holding lines back.
    outgoing.writeHead(200, {
      "content-type": "application/x-ndjson",
      "cache-control": "no-cache, no-transform",
      "x-accel-buffering": "no",
    });
    outgoing.flushHeaders();
  }

  /** @throws AbortError when the client leaves. */
  async write(line: unknown): Promise<void> {
    if (this.#outgoing.write(`${JSON.stringify(line)}\n`)) return;
    await once(this.#outgoing, "drain", { signal: this.#signal });
  }

  end(): void {
    this.#outgoing.end();
  }
}
