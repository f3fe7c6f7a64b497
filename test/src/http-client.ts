import { Agent, type IncomingHttpHeaders, type IncomingMessage, request } from "node:http";

/** Where a program listens: a unix socket, or a URL. */
export type Endpoint = { socket: string } | { url: string };

export interface HttpAnswer {
  status: number;
  headers: IncomingHttpHeaders;
  body: Buffer;
  /** The body as JSON; undefined when it is none. */
  json: unknown;
}

export interface HttpCall {
  method?: string;
  headers?: Record<string, string>;
  /** A string or buffer is sent as it is, anything else as JSON. */
  body?: unknown;
  signal?: AbortSignal;
  /** Default 60,000. */
  timeoutMs?: number;
}

/** Plain HTTP to one of our own programs, without retries or interpretation: what was answered is what is seen. */
export class HttpClient {
  readonly #endpoint: Endpoint;
  readonly #headers: Record<string, string>;
  readonly #agent = new Agent({ keepAlive: true, maxSockets: 256 });

  constructor(endpoint: Endpoint, headers: Record<string, string> = {}) {
    this.#endpoint = endpoint;
    this.#headers = headers;
  }

  /** Starts a call and answers when the headers are there; the caller reads the stream. */
  open(
    path: string,
    { method = "GET", headers = {}, body, signal, timeoutMs = 60_000 }: HttpCall = {},
  ): Promise<IncomingMessage> {
    const raw =
      body === undefined || typeof body === "string" || Buffer.isBuffer(body) ? body : JSON.stringify(body);
    const sent: Record<string, string | number> = { ...this.#headers, ...headers };
    if (raw !== undefined) {
      sent["content-type"] ??= "application/json";
      sent["content-length"] = Buffer.byteLength(raw);
    }
    const where =
      "socket" in this.#endpoint
        ? { socketPath: this.#endpoint.socket, path }
        : { host: new URL(this.#endpoint.url).hostname, port: new URL(this.#endpoint.url).port, path };
    return new Promise((resolve, reject) => {
      const outgoing = request({
        ...where,
        method,
        headers: sent,
        agent: this.#agent,
        ...(signal === undefined ? {} : { signal }),
      });
      const timer = setTimeout(
        () => outgoing.destroy(new Error(`${method} ${path}: no answer within ${timeoutMs} ms`)),
        timeoutMs,
      );
      outgoing.on("response", (incoming) => {
        clearTimeout(timer);
        resolve(incoming);
      });
      outgoing.on("error", (error) => {
        clearTimeout(timer);
        reject(error);
      });
      outgoing.end(raw);
    });
  }

  /** A whole call: sends it and reads the answer, whatever its status. */
  async call(path: string, options: HttpCall = {}): Promise<HttpAnswer> {
    const incoming = await this.open(path, options);
    const chunks: Buffer[] = [];
    for await (const chunk of incoming as AsyncIterable<Buffer>) chunks.push(chunk);
    const body = Buffer.concat(chunks);
    let json: unknown;
    try {
      json = JSON.parse(body.toString("utf8"));
    } catch {
      json = undefined;
    }
    return { status: incoming.statusCode ?? 0, headers: incoming.headers, body, json };
  }

  /** A call that must succeed with JSON. @throws Error naming call, status and body */
  async json<T>(path: string, options: HttpCall = {}): Promise<T> {
    const answer = await this.call(path, options);
    if (answer.status >= 300)
      throw new Error(
        `${options.method ?? "GET"} ${path} answered ${answer.status}: ${answer.body.toString("utf8").slice(0, 2000)}`,
      );
    return answer.json as T;
  }

  close(): void {
    this.#agent.destroy();
  }
}
