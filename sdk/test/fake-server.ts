import { once } from "node:events";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { Torpor, type TorporOptions } from "@torpor/sdk";

export const SANDBOX_ID = "sabcdefghijkmnpqrstuvwxyz2";
export const API_KEY = `tp_${"k".repeat(40)}`;

export interface Call {
  method: string;
  /** Path and query. */
  url: string;
  path: string;
  query: URLSearchParams;
  headers: IncomingMessage["headers"];
  request: IncomingMessage;
  response: ServerResponse;
  /** All of the body, as text. */
  text(): Promise<string>;
  json(): Promise<Record<string, unknown>>;
}

export type Handler = (call: Call) => unknown;

/** A real HTTP server that speaks the wire's shapes; what it does with each request is the test's to say. */
export class FakeServer implements AsyncDisposable {
  readonly calls: Call[] = [];
  readonly #server: Server;
  readonly #routes: { method: string; pattern: RegExp; handler: Handler }[] = [];
  connectionCount = 0;

  private constructor(server: Server) {
    this.#server = server;
  }

  static async start(port = 0): Promise<FakeServer> {
    const server = createServer();
    const fake = new FakeServer(server);
    server.on("request", (request, response) => void fake.#serve(request, response));
    server.on("connection", () => fake.connectionCount++);
    server.listen(port, "127.0.0.1");
    await once(server, "listening");
    return fake;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  client(options: TorporOptions = {}): Torpor {
    return new Torpor({ url: this.url, apiKey: API_KEY, ...options });
  }

  /** `{id}` in the path stands for the one sandbox of the tests. The latest route for a request wins. */
  on(method: string, path: string, handler: Handler): this {
    const escaped = path.replace("{id}", SANDBOX_ID).replace(/[.?+^$()|[\]\\]/g, "\\$&");
    this.#routes.unshift({ method, pattern: new RegExp(`^${escaped.replace(/\*/g, "[^/]+")}$`), handler });
    return this;
  }

  /** Answers `POST /v1/sandboxes`, `GET` and `DELETE` of the one sandbox. */
  withSandbox(): this {
    let record = sandboxWire();
    return this.on("POST", "/v1/sandboxes", ({ response }) => sendJson(response, 201, record))
      .on("GET", "/v1/sandboxes/{id}", ({ response }) => sendJson(response, 200, record))
      .on("DELETE", "/v1/sandboxes/{id}", ({ response }) => {
        record = { ...record, state: "destroyed", reason: "user", ended_at: new Date().toISOString() };
        sendJson(response, 200, record);
      });
  }

  callsTo(method: string, suffix: string): Call[] {
    return this.calls.filter((call) => call.method === method && call.path.endsWith(suffix));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections();
    this.#server.close();
    await once(this.#server, "close");
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const url = request.url ?? "/";
    const { pathname, searchParams } = new URL(url, "http://fake");
    const text = async (): Promise<string> => {
      const chunks: Buffer[] = [];
      for await (const chunk of request) chunks.push(chunk as Buffer);
      return Buffer.concat(chunks).toString();
    };
    const call: Call = {
      method: request.method ?? "",
      url,
      path: pathname,
      query: searchParams,
      headers: request.headers,
      request,
      response,
      text,
      json: async () => JSON.parse(await text()) as Record<string, unknown>,
    };
    this.calls.push(call);
    response.setHeader("x-request-id", `req-${this.calls.length}`);
    const route = this.#routes.find(
      ({ method, pattern }) => method === call.method && pattern.test(pathname),
    );
    try {
      if (route) await route.handler(call);
      else sendError(response, 404, "not_found", `no route ${call.method} ${pathname}`);
    } catch (error) {
      // The client left; a real server would be used to it.
      if (!request.destroyed && !response.destroyed) throw error;
    }
  }
}

export function sendJson(response: ServerResponse, status: number, body: unknown): void {
  response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(body));
}

export function sendError(
  response: ServerResponse,
  status: number,
  code: string,
  message: string,
  more: { details?: object; retryable?: boolean; headers?: Record<string, string> } = {},
): void {
  const { details = {}, retryable = false, headers = {} } = more;
  response
    .writeHead(status, { "content-type": "application/json", ...headers })
    .end(JSON.stringify({ error: { code, message, details, request_id: "req-in-body", retryable } }));
}

export function sandboxWire(more: object = {}): Record<string, unknown> {
  return {
    id: SANDBOX_ID,
    name: null,
    state: "running",
    reason: null,
    template: "code-interpreter",
    driver: "gvisor",
    tenant: "default",
    persistent: false,
    metadata: {},
    cpu: 1,
    memory_mb: 1024,
    disk_mb: 4096,
    network: "internet",
    on_expire: "destroy",
    idle_timeout_seconds: null,
    on_idle: "hibernate",
    retention_seconds: null,
    auto_wake: true,
    hibernate_memory: true,
    image: null,
    generation: 1,
    host: "host-1",
    created_at: "2026-11-29T16:00:00.000Z",
    started_at: "2026-11-29T16:00:00.050Z",
    expires_at: "2026-11-29T16:05:00.000Z",
    idle_at: null,
    last_activity_at: "2026-11-29T16:00:00.050Z",
    ended_at: null,
    attestation: {
      generation: 1,
      steps: [{ name: "entropy", outcome: "done", duration_us: 120 }],
      clock_offset_ms: 0.2,
      complete: true,
    },
    ...more,
  };
}

export function execWire(more: object = {}): Record<string, unknown> {
  return {
    exec_id: "x1",
    exit_code: 0,
    signal: null,
    outcome: "exited",
    stdout: "",
    stderr: "",
    encoding: "utf8",
    truncated: false,
    stdout_bytes: 0,
    stderr_bytes: 0,
    duration_ms: 1.5,
    ...more,
  };
}

/** Begins an NDJSON answer and returns how to send a line of it. */
export function ndjson(response: ServerResponse): (line: object) => void {
  response.writeHead(200, { "content-type": "application/x-ndjson" });
  response.flushHeaders();
  return (line) => void response.write(`${JSON.stringify(line)}\n`);
}

export function execEndLine(more: object = {}): object {
  const { stdout: _stdout, stderr: _stderr, encoding: _encoding, ...end } = execWire(more);
  return { type: "end", ...end };
}

export const base64 = (data: string | Uint8Array): string => Buffer.from(data).toString("base64");

/** Settles when the client has closed the connection of this call. */
export async function closedByClient(call: Call): Promise<void> {
  if (!call.response.destroyed) await once(call.response, "close");
}

export function fileEntryWire(more: object = {}): Record<string, unknown> {
  return {
    name: "a.txt",
    path: "/workspace/a.txt",
    type: "file",
    size: 3,
    mode: 420,
    permissions: "-rw-r--r--",
    owner: "user",
    group: "user",
    modified_at: "2026-11-29T16:00:00.000Z",
    symlink_target: null,
    ...more,
  };
}
