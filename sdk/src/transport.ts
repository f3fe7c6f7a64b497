import { noApiKeyMessage, readApiKeyFile } from "./api-key-file.ts";
import { CallDeadline } from "./call-deadline.ts";
import type { CallOptions } from "./call-options.ts";
import { connectionError } from "./connection-error.ts";
import type { ResolvedConnection } from "./connection-options.ts";
import { errorFromResponse } from "./error-from-response.ts";
import { ConfigurationError, TorporError } from "./errors.ts";
import { type QueryValue, queryString } from "./request-path.ts";
import { type Exchange, nodeExchange } from "./node-exchange.ts";
import {
  MAX_RETRY_AFTER_MS,
  REFUSED_ATTEMPTS_PER_RETRY,
  refusedDelayMs,
  retryDelayMs,
} from "./retry-delay.ts";
import type { UploadBody } from "./upload-body.ts";
import { VERSION } from "./version.ts";

/** One request of the API. */
export interface TransportRequest extends CallOptions {
  method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  /** Path below the base URL, its segments encoded. */
  path: string;
  query?: Readonly<Record<string, QueryValue>>;
  /** JSON body, as text. */
  json?: string;
  /** Raw body. */
  upload?: UploadBody;
  accept?: string;
  headers?: Readonly<Record<string, string>>;
  /** Made by the caller when it wants to stop the call by itself; then `signal` and `timeoutMs` are its. */
  deadline?: CallDeadline;
  /** Sent with every POST, which makes it safe to repeat. Default: random. */
  idempotencyKey?: string | undefined;
}

/** An answer whose body is still to be read, with the deadline that governs it. The caller closes the deadline. */
export interface OpenResponse {
  response: Response;
  deadline: CallDeadline;
}

/** What `fetch` is given, the parts that are always there. */
type SentInit = RequestInit & { method: string; headers: Record<string, string>; signal: AbortSignal };

/** Sends requests: headers, deadlines, retries, errors. Knows nothing of what they mean. */
export class Transport {
  readonly connection: ResolvedConnection;
  #exchange: Promise<Exchange | undefined> | undefined;
  #apiKey: Promise<string> | undefined;

  constructor(connection: ResolvedConnection) {
    this.connection = connection;
  }

  /** Base URL without a slash at its end. */
  get url(): string {
    return this.connection.url;
  }

  /** Sends and reads a JSON object. That it has the shape of `Answer` is the server's promise, and not checked. */
  async json<Answer extends object>(request: TransportRequest): Promise<Answer> {
    const text = await this.text(request);
    let answer: unknown;
    let cause: unknown;
    try {
      answer = JSON.parse(text);
    } catch (error) {
      cause = error;
    }
    if (typeof answer === "object" && answer !== null) return answer as Answer;
    throw new TorporError(
      `${request.method} ${request.path} was answered with a body that is no JSON object: check the URL and any proxy`,
      { code: "invalid_response", cause },
    );
  }

  /** Sends and reads the answer as text. */
  async text(request: TransportRequest): Promise<string> {
    const exchange = await this.#exchangeFor(request);
    return this.#call(
      request,
      async (response, deadline) => {
        const text = await deadline.race(response.text());
        deadline.close();
        return text;
      },
      exchange,
    );
  }

  /** Sends and reads the answer as bytes. `timeoutMs` bounds the waits without progress. */
  async open(request: TransportRequest): Promise<OpenResponse> {
    return this.#call(request, async (response, deadline) => {
      deadline.pause();
      return { response, deadline };
    });
  }

  /** A deadline from a call's options and the client's default. `what` names the call in the timeout's message. */
  deadline(what: string, options: CallOptions): CallDeadline {
    return new CallDeadline(what, options.signal, this.#timeoutMs(options));
  }

  #timeoutMs({ timeoutMs }: CallOptions): number {
    return timeoutMs ?? this.connection.timeoutMs;
  }

  /** The headers that say who asks. @throws ConfigurationError when there is no API key. */
  async authorization(): Promise<Record<string, string>> {
    this.#apiKey ??= this.#resolveApiKey();
    try {
      return { authorization: `Bearer ${await this.#apiKey}` };
    } catch (error) {
      // The file may be there at the next request.
      this.#apiKey = undefined;
      throw error;
    }
  }

  async #resolveApiKey(): Promise<string> {
    const source = this.connection.apiKeySource;
    if (source.kind === "given") return source.apiKey;
    if (source.kind === "file") return readApiKeyFile(source.path);
    throw new ConfigurationError(noApiKeyMessage(`none was given for ${this.url}`), {
      code: "configuration",
    });
  }

  /** Opens the deadline, which `read` has to close when it succeeds. */
  async #call<T>(
    request: TransportRequest,
    read: (response: Response, deadline: CallDeadline) => Promise<T>,
    exchange?: Exchange,
  ): Promise<T> {
    const { method, path, upload } = request;
    const deadline = request.deadline ?? this.deadline(`${method} ${path}`, request);
    try {
      deadline.throwIfStopped();
      const init = await this.#requestInit(request, deadline);
      const url = `${this.url}${path}${queryString(request.query)}`;
      return await this.#withRetries(request, deadline, async () =>
        read(await this.#send(request, url, init, exchange), deadline),
      );
    } catch (error) {
      // Cuts the connection of a half-read answer or a half-sent upload.
      deadline.abort(error);
      throw error;
    } finally {
      upload?.stop(undefined);
    }
  }

  /** How else than by `fetch` a request is sent, if so. */
  async #exchangeFor(request: TransportRequest): Promise<Exchange | undefined> {
    if (this.connection.isFetchGiven) return undefined;
    // Node's fetch gives up 300 s after it has sent an upload: one without a limit of time goes around it. Any other is
    // fetch's, which hears a refusal that comes before the whole upload is sent.
    const isUnlimited = this.#timeoutMs(request) === 0;
    if (request.upload !== undefined && !isUnlimited) return undefined;
    if (request.upload === undefined && !this.url.startsWith("http:")) return undefined;
    this.#exchange ??= nodeExchange(this.url).catch(() => undefined);
    return await this.#exchange;
  }

  async #send(
    request: TransportRequest,
    url: string,
    init: SentInit,
    exchange: Exchange | undefined,
  ): Promise<Response> {
    const { method, headers, body, signal } = init;
    const isWhole = body === undefined || typeof body === "string" || body instanceof Uint8Array;
    const response =
      exchange !== undefined && isWhole
        ? await exchange(url, { method, headers, signal, ...(body === undefined ? {} : { body }) })
        : await this.connection.fetch(url, init);
    if (response.ok) return response;
    throw await errorFromResponse(response, request.method, request.path);
  }

  async #withRetries<T>(
    request: TransportRequest,
    deadline: CallDeadline,
    attempt: () => Promise<T>,
  ): Promise<T> {
    const isReplayable = request.upload === undefined || request.upload.isReplayable;
    let refusals = 0;
    for (let retries = 0; ;) {
      let failure: TorporError;
      try {
        return await attempt();
      } catch (error) {
        deadline.throwIfStopped();
        if (request.upload?.sourceFailure) throw request.upload.sourceFailure.error;
        failure = error instanceof TorporError ? error : connectionError(error, request, this.connection);
      }
      const { retryAfterMs } = failure;
      const { maxRetries } = this.connection;
      const isRefused = failure.details["refused"] === true;
      const isLast = isRefused ? refusals >= maxRetries * REFUSED_ATTEMPTS_PER_RETRY : retries >= maxRetries;
      if (!failure.retryable || !isReplayable || isLast) throw failure;
      if (retryAfterMs !== null && retryAfterMs > MAX_RETRY_AFTER_MS) throw failure;
      const delayMs = isRefused
        ? refusedDelayMs(Math.random)
        : retryDelayMs(retries, retryAfterMs, Math.random);
      if (isRefused) refusals++;
      else retries++;
      if (delayMs >= deadline.remainingMs) throw failure;
      await deadline.sleep(delayMs);
    }
  }

  async #requestInit(request: TransportRequest, deadline: CallDeadline): Promise<SentInit> {
    const headers: Record<string, string> = {
      ...(await deadline.race(this.authorization())),
      "user-agent": `torpor-sdk-js/${VERSION}`,
      accept: request.accept ?? "application/json",
      ...request.headers,
    };
    if (request.method === "POST") headers["idempotency-key"] = request.idempotencyKey ?? newIdempotencyKey();
    if (request.json !== undefined) headers["content-type"] = "application/json";
    const init: SentInit = {
      method: request.method,
      headers,
      redirect: "manual",
      signal: deadline.signal,
    };
    if (request.json !== undefined) init.body = request.json;
    if (request.upload) {
      headers["content-type"] ??= "application/octet-stream";
      Object.assign(init, request.upload.requestInit(deadline));
    }
    return init;
  }
}

/** 128 random bits in hexadecimal. `crypto.randomUUID` is missing in pages served over plain HTTP. */
export function newIdempotencyKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
