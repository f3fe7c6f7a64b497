import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { silentLog, Scope, systemClock } from "@torpor/base";
import { randomText, type Sandbox, type Scope as KeyScope } from "@torpor/protocol";
import { apiKeyPrefix, hashApiKey, newApiKey } from "../src/auth/authenticator.ts";
import { startServer, type RunningServer, type StartServerOptions } from "../src/start-server.ts";
import { openDatabase } from "../src/store/open-database.ts";
import { FakeHost } from "./fake-host.ts";

export interface Reply {
  status: number;
  headers: Headers;
  /** Parsed, when the answer is JSON. */
  body: Record<string, unknown>;
  text: string;
}

export interface CallOptions {
  key?: string | null;
  json?: unknown;
  body?: NonNullable<RequestInit["body"]>;
  headers?: Record<string, string>;
  signal?: AbortSignal;
}

/** A server on a SQLite file with a fake host behind it. */
export class World implements AsyncDisposable {
  readonly host: FakeHost;
  readonly directory: string;
  readonly adminKey: string;
  server: RunningServer;
  readonly #options: Partial<StartServerOptions>;
  #scope: Scope;

  private constructor(
    host: FakeHost,
    directory: string,
    adminKey: string,
    server: RunningServer,
    options: Partial<StartServerOptions>,
    scope: Scope,
  ) {
    this.host = host;
    this.directory = directory;
    this.adminKey = adminKey;
    this.server = server;
    this.#options = options;
    this.#scope = scope;
  }

  static async start(options: Partial<StartServerOptions> = {}): Promise<World> {
    const host = await FakeHost.start();
    const directory = mkdtempSync(join(tmpdir(), "torpor-server-"));
    const scope = new Scope();
    const server = await open(directory, host, options, scope);
    const adminKey = await addKey(server, ["admin"], null);
    return new World(host, directory, adminKey, server, options, scope);
  }

  get url(): string {
    return this.server.url;
  }

  /** Stops the server and starts another on the same records. */
  async restart(): Promise<void> {
    await this.#scope.close();
    this.#scope = new Scope();
    this.server = await open(this.directory, this.host, this.#options, this.#scope);
  }

  /** Another server on the same records while the first still hangs, as after its `kill -9`. */
  async startSecond(): Promise<void> {
    const scope = new Scope();
    this.server = await open(this.directory, this.host, this.#options, scope);
    this.#scope.defer(() => scope.close());
  }

  async newKey(
    scopes: readonly KeyScope[],
    tenant: string | null = null,
    expiresAt: number | null = null,
  ): Promise<string> {
    return await addKey(this.server, scopes, tenant, expiresAt);
  }

  async call(method: string, path: string, options: CallOptions = {}): Promise<Reply> {
    const response = await this.fetch(method, path, options);
    const text = await response.text();
    const isJson =
      response.headers.get("content-type")?.includes("json") === true &&
      response.headers.get("content-type")?.includes("ndjson") === false;
    return {
      status: response.status,
      headers: response.headers,
      text,
      body: isJson && text !== "" ? (JSON.parse(text) as Record<string, unknown>) : {},
    };
  }

  async fetch(
    method: string,
    path: string,
    { key = this.adminKey, json, body, headers = {}, signal }: CallOptions = {},
  ): Promise<Response> {
    const init: RequestInit & { duplex?: "half" } = { method, headers: { ...headers } };
    const all = init.headers as Record<string, string>;
    if (key !== null) all["authorization"] = `Bearer ${key}`;
    if (json !== undefined) {
      all["content-type"] ??= "application/json";
      init.body = JSON.stringify(json);
    }
    if (body !== undefined) {
      init.body = body;
      init.duplex = "half";
    }
    if (signal !== undefined) init.signal = signal;
    return await fetch(`${this.url}${path}`, init);
  }

  /** A fresh sandbox, usable. */
  async sandbox(json: Record<string, unknown> = { template: "base" }, key?: string): Promise<Sandbox> {
    const reply = await this.call("POST", "/v1/sandboxes", { json, ...(key === undefined ? {} : { key }) });
    if (reply.status !== 201) throw new Error(`create answered ${reply.status}: ${reply.text}`);
    return reply.body as unknown as Sandbox;
  }

  async exec(id: string, json: unknown, options: CallOptions = {}): Promise<Reply> {
    return await this.call("POST", `/v1/sandboxes/${id}/exec`, { json, ...options });
  }

  guest(id: string): NonNullable<ReturnType<FakeHost["machines"]["get"]>>["guest"] {
    const entry = this.host.machines.get(id);
    if (entry === undefined) throw new Error(`the fake host has no machine ${id}`);
    return entry.guest;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.host.releaseHanging();
    await this.#scope.close();
    await this.host.close();
    rmSync(this.directory, { recursive: true, force: true });
  }
}

/** Waits until `check` holds, asking often; fails after `withinMs`. */
export async function eventually(check: () => boolean | Promise<boolean>, withinMs = 15_000): Promise<void> {
  const until = Date.now() + withinMs;
  while (!(await check())) {
    if (Date.now() > until) throw new Error(`did not become true within ${withinMs} ms: ${check.toString()}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** The error of an answer. */
export function errorOf(reply: Reply): {
  code: string;
  message: string;
  details: Record<string, unknown>;
  request_id: string;
  retryable: boolean;
} {
  return reply.body["error"] as ReturnType<typeof errorOf>;
}

async function open(
  directory: string,
  host: FakeHost,
  options: Partial<StartServerOptions>,
  scope: Scope,
): Promise<RunningServer> {
  const database =
    options.database ?? (await openDatabase({ kind: "sqlite", path: join(directory, "server.sqlite") }));
  if (options.database === undefined) scope.defer(() => database.close());
  const server = await startServer({
    log: silentLog,
    watch: { newbornGraceMs: 200 },
    ...options,
    database,
    host: { url: host.url, token: host.token },
  });
  scope.defer(() => server.close());
  return server;
}

async function addKey(
  server: RunningServer,
  scopes: readonly KeyScope[],
  tenant: string | null,
  expiresAt: number | null = null,
): Promise<string> {
  const key = newApiKey();
  await server.keyStore.insert({
    id: `key_${randomText(20)}`,
    account: "default",
    name: `test ${scopes.join(" ")}`,
    prefix: apiKeyPrefix(key),
    hash: hashApiKey(key),
    tenant,
    scopes,
    createdAt: systemClock.now(),
    expiresAt,
  });
  return key;
}
