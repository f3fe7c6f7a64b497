import { Agent, type IncomingMessage, type OutgoingHttpHeaders, request as httpRequest } from "node:http";
import type { Readable } from "node:stream";
import { requestUpgrade, type UpgradeOutcome } from "@torpor/base";
import { CodedError } from "@torpor/protocol";
import { answerError } from "./answer-error.ts";

export interface HostAddress {
  /** `unix:/path/to/socket` or `http://host:port`. */
  url: string;
  /** Bearer token of the host's API. */
  token: string;
}

export interface CallOptions {
  headers?: OutgoingHttpHeaders;
  /** A buffer is sent with its length and can be sent again; a stream is sent as it comes, once. */
  body?: Buffer | Readable;
  /** Until the answer's head. Default 30,000; 0 for no limit. */
  headTimeoutMs?: number;
  signal?: AbortSignal;
  /** Whether sending it twice does no harm: then a kept-alive connection that turns out dead is tried once more. */
  repeatable?: boolean;
}

const DEFAULT_HEAD_TIMEOUT_MS = 30_000;
/** A sandbox may have to be woken first. */
const UPGRADE_TIMEOUT_MS = 120_000;

/** Sends requests to one host, with its token, on connections that are kept: opening one costs as much as a call. */
export class HostConnection {
  readonly url: string;
  readonly #agent = new Agent({ keepAlive: true, maxFreeSockets: 64, noDelay: true });
  readonly #target: { socketPath: string } | { host: string; port: number };
  readonly #authorization: string;

  constructor(address: HostAddress) {
    this.url = address.url;
    this.#authorization = `Bearer ${address.token}`;
    if (address.url.startsWith("unix:")) this.#target = { socketPath: address.url.slice("unix:".length) };
    else {
      const { hostname, port } = new URL(address.url);
      this.#target = { host: hostname.replace(/^\[|\]$/g, ""), port: Number(port === "" ? 80 : port) };
    }
  }

  /**
   * Sends one request and gives the answer once its head is there, the body unread: the caller reads or destroys it.
   *
   * @throws CodedError for a status of 400 and above, `host_unavailable` when the host cannot be reached,
   *   `client_closed_request` when `signal` aborts.
   */
  async call(method: string, path: string, options: CallOptions = {}): Promise<IncomingMessage> {
    const answer = await this.open(method, path, options);
    if ((answer.statusCode ?? 0) < 400) return answer;
    throw await answerError(answer, `${method} ${path.split("?", 1)[0]}`);
  }

  /** As {@link HostConnection.call}, but an answer of any status is the caller's to read. */
  async open(method: string, path: string, options: CallOptions = {}): Promise<IncomingMessage> {
    try {
      return await this.#attempt(method, path, options);
    } catch (error) {
      if (!(error instanceof DeadConnection)) throw error;
      if (options.repeatable !== true || (options.body !== undefined && !Buffer.isBuffer(options.body)))
        throw error.coded;
    }
    try {
      return await this.#attempt(method, path, options);
    } catch (error) {
      throw error instanceof DeadConnection ? error.coded : error;
    }
  }

  #attempt(
    method: string,
    path: string,
    { headers = {}, body, headTimeoutMs = DEFAULT_HEAD_TIMEOUT_MS, signal }: CallOptions,
  ): Promise<IncomingMessage> {
    return new Promise((resolve, reject) => {
      if (signal?.aborted) {
        reject(
          new CodedError(
            "client_closed_request",
            `${method} ${path} was not sent: the request was cancelled`,
          ),
        );
        return;
      }
      const allHeaders: OutgoingHttpHeaders = { ...headers, authorization: this.#authorization };
      if (Buffer.isBuffer(body)) allHeaders["content-length"] = body.length;
      // Told to close, the host would do so as soon as it has answered, which may be before our last, empty write:
      // EPIPE would then hide the answer. Without an agent to keep it the connection is closed on our side.
      else if (body !== undefined) allHeaders["connection"] = "keep-alive";
      const stream = body === undefined || Buffer.isBuffer(body) ? undefined : body;
      // An upload cannot be sent again, so it never risks a kept connection that the host has just closed.
      const outgoing = httpRequest({
        ...this.#target,
        agent: stream === undefined ? this.#agent : false,
        method,
        path,
        headers: allHeaders,
      });
      let answered = false;
      const fail = (error: Error): void => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", onAbort);
        reject(error);
      };
      const onAbort = (): void => {
        outgoing.destroy();
        fail(new CodedError("client_closed_request", `${method} ${path} was cancelled by the client`));
      };
      const timer =
        headTimeoutMs === 0
          ? undefined
          : setTimeout(() => {
              outgoing.destroy();
              fail(
                new CodedError(
                  "host_unavailable",
                  `the host did not answer ${method} ${path.split("?", 1)[0]} within ${headTimeoutMs} ms; try again, and see its log if it stays so`,
                ),
              );
            }, headTimeoutMs);
      signal?.addEventListener("abort", onAbort, { once: true });
      outgoing.once("response", (answer) => {
        answered = true;
        clearTimeout(timer);
        answer.once("close", () => signal?.removeEventListener("abort", onAbort));
        resolve(answer);
      });
      outgoing.on("error", (error: NodeJS.ErrnoException) => {
        if (answered) return; // the answer's own error event tells its reader
        const coded = this.#unreachable(error);
        const wasDead = outgoing.reusedSocket && (error.code === "ECONNRESET" || error.code === "EPIPE");
        fail(wasDead ? new DeadConnection(coded) : coded);
      });
      if (stream !== undefined) {
        // Piped by hand: `pipeline` would destroy the client's request, and with it the connection its answer takes.
        stream.once("close", () => {
          if (stream.readableEnded) return;
          outgoing.destroy();
          if (!answered)
            fail(
              new CodedError(
                "client_closed_request",
                `the body of ${method} ${path.split("?", 1)[0]} ended before it was complete`,
              ),
            );
        });
        stream.once("error", (error) => {
          outgoing.destroy();
          if (!answered)
            fail(
              error instanceof CodedError
                ? error
                : new CodedError(
                    "client_closed_request",
                    `the body of ${method} ${path.split("?", 1)[0]} broke off`,
                    { cause: error },
                  ),
            );
        });
        outgoing.once("close", () => stream.unpipe(outgoing));
        stream.pipe(outgoing);
      } else outgoing.end(body);
    });
  }

  /** Asks for an upgrade. An answer of any status is the caller's to read. `asked` says what for, in errors. */
  async upgrade(
    method: string,
    path: string,
    asked: string,
    { headers, signal }: { headers: OutgoingHttpHeaders; signal: AbortSignal },
  ): Promise<UpgradeOutcome> {
    try {
      return await requestUpgrade({
        ...this.#target,
        agent: false,
        method,
        path,
        headers: { ...headers, authorization: this.#authorization },
        headTimeoutMs: UPGRADE_TIMEOUT_MS,
        signal,
      });
    } catch (error) {
      if (signal.aborted)
        throw new CodedError("client_closed_request", `the upgrade on ${asked} was cancelled`);
      throw this.#unreachable(error);
    }
  }

  /** Drops the kept connections. */
  close(): void {
    this.#agent.destroy();
  }

  #unreachable(cause: unknown): CodedError {
    const { code, message } = cause as NodeJS.ErrnoException;
    return new CodedError(
      "host_unavailable",
      `the host at ${this.url} could not be reached (${code ?? message}); check that it runs, then try again`,
      { cause },
    );
  }
}

/** A kept-alive connection that the host had closed before it read the request. */
class DeadConnection extends Error {
  readonly coded: CodedError;

  constructor(coded: CodedError) {
    super(coded.message);
    this.coded = coded;
  }
}
