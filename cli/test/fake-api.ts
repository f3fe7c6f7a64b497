import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

/** What the stand-in's next command does. */
export interface ScriptedCommand {
  stdout?: string;
  stderr?: string;
  end?: Record<string, unknown>;
  /** Never ends by itself. */
  hangs?: boolean;
}

const STATES: Record<string, string> = {
  hibernate: "hibernated",
  wake: "running",
  pause: "paused",
  resume: "running",
};

const NOW = "2026-01-01T00:00:00Z";

const survivals = (connections: string): unknown =>
  Object.fromEntries(
    ["files", "packages", "caches", "memory", "connections", "browser"].map((kind) => [
      kind,
      {
        survives: kind === "connections" ? connections : "all",
        lost: kind === "connections" && connections === "none" ? ["tcp a -> b"] : [],
        reason: "as it is",
      },
    ]),
  );

const STATE = {
  sandbox_id: "s",
  generation: 1,
  taken_at: NOW,
  files: { changed_count: 3, changed_bytes: 2048, sample: [], truncated: true },
  packages: { pip: [{ name: "wheel", version: "1" }], npm: [], apt: [] },
  caches: [{ path: "/c", size_bytes: 1024 }],
  memory: { rss_bytes: 1024, processes: [], kernels: [] },
  connections: { listening: [], loopback: [], external: [{ protocol: "tcp", local: "a", remote: "b" }] },
  browser: { profiles: [] },
  forecast: {
    pause: survivals("all"),
    hibernate: survivals("none"),
    fork: survivals("none"),
    destroy: survivals("none"),
  },
};

const PREVIEW_URL = {
  id: "url_1",
  port: 3000,
  host: "3000-x.localhost:7070",
  auto_wake: false,
  created_at: NOW,
  expires_at: "2126-01-01T00:00:00Z",
  revoked_at: null,
};

/** A real HTTP server that speaks the part of the API the command line uses, with a file system in a Map. */
export class FakeApi implements AsyncDisposable {
  readonly files = new Map<string, Buffer>();
  readonly calls: string[] = [];
  readonly commands: unknown[] = [];
  readonly snapshots = new Map<string, Record<string, unknown>>();
  readonly sandboxes = new Map<string, Record<string, unknown>>();
  next: ScriptedCommand = {};
  /** Answers to `METHOD /path`, given as they are; what was sent there is kept in `sent`, and what creates and forks were. */
  readonly scripted = new Map<string, unknown>();
  readonly sent = new Map<string, unknown>();
  /** Refusals by `METHOD /path`, the sandbox's id written ID. */
  readonly refusals = new Map<string, { code: string; message: string; details?: object }>();
  /** Of requests to `scripted` routes, the last's, with its question mark. */
  readonly queries = new Map<string, string>();
  codeLines: object[] = [];
  previewUrls: object[] = [];
  /** What the commands were given on standard input. */
  readonly input: Buffer[] = [];
  #onInputClosed: () => void = () => {};
  #server = createServer((request, response) => void this.#answer(request, response));
  #count = 0;

  static async start(): Promise<FakeApi> {
    const api = new FakeApi();
    await new Promise<void>((resolve) => api.#server.listen(0, "127.0.0.1", resolve));
    return api;
  }

  get env(): NodeJS.ProcessEnv {
    const { port } = this.#server.address() as AddressInfo;
    return { TORPOR_URL: `http://127.0.0.1:${port}`, TORPOR_API_KEY: "tp_test" };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const url = new URL(request.url ?? "/", "http://fake");
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    const body = Buffer.concat(chunks);
    this.calls.push(
      `${request.method} ${url.pathname.replace(/s[a-z0-9]{20,}/, "ID")}${url.searchParams.get("path") ?? ""}`,
    );
    const json = (status: number, value: unknown): void => {
      response.writeHead(status, { "content-type": "application/json", "x-request-id": "req-1" });
      response.end(JSON.stringify(value));
    };
    const refuse = (status: number, code: string, message: string): void =>
      json(status, { error: { code, message, details: {}, request_id: "req-1", retryable: false } });
    if (request.headers.authorization !== "Bearer tp_test")
      return refuse(401, "unauthenticated", "this key is unknown");
    const refusal = this.refusals.get(`${request.method} ${url.pathname.replace(/\bs[a-z0-9]{20,}/, "ID")}`);
    if (refusal !== undefined)
      return json(400, { error: { details: {}, request_id: "req-1", retryable: false, ...refusal } });
    const route = `${request.method} ${url.pathname}`;
    if (this.scripted.has(route)) {
      this.queries.set(route, url.search);
      if (body.length > 0) this.sent.set(route, JSON.parse(body.toString()));
      return json(request.method === "POST" ? 201 : 200, this.scripted.get(route));
    }
    if (url.pathname === "/v1/sandboxes" && request.method === "POST") {
      this.sent.set("POST /v1/sandboxes", JSON.parse(body.toString()));
      return json(201, this.#create(JSON.parse(body.toString())));
    }
    if (url.pathname === "/v1/sandboxes") {
      const wanted = url.searchParams.get("state"); // without it: what lives
      const items = [...this.sandboxes.values()].filter(({ state }) =>
        wanted === null ? state !== "destroyed" : state === wanted,
      );
      return json(200, { items, next_cursor: null });
    }
    if (url.pathname === "/v1/sessions")
      return json(201, { sandbox: this.#create(JSON.parse(body.toString())), created: true });
    if (url.pathname === "/v1/snapshots")
      return json(200, { items: [...this.snapshots.values()], next_cursor: null });
    const [, snapshotId] = /^\/v1\/snapshots\/([^/]+)$/.exec(url.pathname) ?? [];
    if (snapshotId !== undefined)
      return this.snapshots.delete(snapshotId)
        ? json(200, { deleted: true })
        : refuse(404, "snapshot_not_found", "there is no such snapshot");
    if (url.pathname === "/v1/events" || url.pathname.endsWith("/events")) {
      response.writeHead(200, { "content-type": "application/x-ndjson" });
      const type = url.searchParams.get("types") ?? "sandbox.updated";
      const event = {
        id: "evt_7",
        type,
        at: "2026-11-29T16:00:00.000Z",
        sandbox_id: "sfake",
        tenant: "acme",
        generation: 1,
        state: "running",
        previous_state: "running",
        reason: null,
        changes: {
          on_idle: "pause",
          tenant: url.searchParams.get("tenant"),
          network: { egress: "none", allow: ["pypi.org"], deny: [] },
          metadata: { a: "b" },
        },
      };
      return void response.end(`${JSON.stringify(event)}\n`);
    }
    const [, id = "", rest = ""] = /^\/v1\/sandboxes\/([^/]+)(.*)$/.exec(url.pathname) ?? [];
    const sandbox = this.sandboxes.get(id);
    if (sandbox === undefined) return refuse(404, "sandbox_not_found", `there is no sandbox ${id}`);
    if (rest === "" && request.method === "DELETE")
      Object.assign(sandbox, { state: "destroyed", reason: "user", ended_at: NOW });
    if (rest === "") return json(200, sandbox);
    const verb = rest.slice(1);
    if (verb in STATES) {
      Object.assign(sandbox, {
        state: STATES[verb],
        image:
          verb === "hibernate"
            ? { size_bytes: 2_097_152, created_at: NOW, memory: !body.includes("false") }
            : null,
      });
      return json(200, sandbox);
    }
    if (rest === "/fork") {
      const asked = JSON.parse(body.toString()) as { count?: number };
      this.sent.set("POST fork", asked);
      const { count = 1 } = asked;
      const children: unknown[] = Array.from({ length: count }, () => ({ sandbox: this.#create({}) }));
      children.push({ error: { code: "capacity_exhausted", message: "the host is full" } });
      return json(201, { children });
    }
    if (rest === "/code") {
      this.commands.push(JSON.parse(body.toString()));
      response.writeHead(200, { "content-type": "application/x-ndjson" });
      for (const line of this.codeLines) response.write(`${JSON.stringify(line)}\n`);
      return void response.end();
    }
    if (rest === "/state") return json(200, STATE);
    if (rest === "/network") {
      const { network } = JSON.parse(body.toString()) as { network: string | object };
      const whole =
        typeof network === "string" ? network : { egress: "none", allow: [], deny: [], ...network };
      Object.assign(sandbox, { network: whole });
      return json(200, sandbox);
    }
    if (rest === "/promote") {
      Object.assign(sandbox, { persistent: JSON.parse(body.toString())["persistent"] });
      return json(200, sandbox);
    }
    if (rest === "/ports/3000/url") {
      this.previewUrls = [{ ...PREVIEW_URL, sandbox_id: id, ...JSON.parse(body.toString()) }];
      return json(201, { ...this.previewUrls[0], url: "http://3000-x/?torpor_token=tpv_1", token: "tpv_1" });
    }
    if (rest === "/urls") return json(200, { items: this.previewUrls });
    if (rest === "/urls/url_1") return json(200, PREVIEW_URL);
    if (rest.startsWith("/urls/")) return refuse(404, "not_found", "there is no such preview URL");
    if (rest === "/snapshots") {
      const snapshot = {
        id: `snp${String(++this.#count).padStart(23, "0")}`,
        name: null,
        ...JSON.parse(body.toString()),
        sandbox_id: id,
        tenant: "default",
        template: "base",
        size_bytes: 1_048_576,
        generation: 1,
        created_at: NOW,
        retention_seconds: null,
      };
      this.snapshots.set(snapshot.id, snapshot);
      return json(201, snapshot);
    }
    if (rest === "/processes/e1/stdin") {
      this.input.push(body);
      if (url.searchParams.get("close") === "true") this.#onInputClosed();
      return json(200, { bytes: body.length, closed: true });
    }
    if (rest === "/exec") return this.#exec(JSON.parse(body.toString()), request, response, json);
    const path = url.searchParams.get("path") ?? "";
    if (rest === "/fs" && request.method === "PUT") this.files.set(path, body);
    const content = this.files.get(path);
    if (content === undefined) return refuse(404, "file_not_found", `${path} is not there`);
    if (rest === "/fs" && request.method === "GET") {
      response.writeHead(200, { "content-type": "application/octet-stream" });
      return void response.end(content);
    }
    json(200, {
      name: path.split("/").at(-1),
      path,
      type: "file",
      size: content.length,
      mode: 0o644,
      permissions: "-rw-r--r--",
      owner: "user",
      group: "user",
      modified_at: NOW,
      symlink_target: null,
    });
  }

  #create(body: Record<string, unknown>): Record<string, unknown> {
    const id = `s${String(++this.#count).padStart(24, "0")}`;
    const sandbox = {
      id,
      name: body["name"] ?? null,
      state: "running",
      reason: null,
      template: body["template"] ?? "code-interpreter",
      driver: "gvisor",
      tenant: "default",
      persistent: body["persistent"] ?? false,
      metadata: body["metadata"] ?? {},
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
      host: "h",
      created_at: NOW,
      started_at: NOW,
      expires_at: NOW,
      idle_at: null,
      last_activity_at: NOW,
      ended_at: null,
      attestation: null,
      requested: body,
    };
    this.sandboxes.set(id, sandbox);
    return sandbox;
  }

  #exec(
    body: unknown,
    request: IncomingMessage,
    response: ServerResponse,
    json: (status: number, value: unknown) => void,
  ): void {
    this.commands.push(body);
    const { stdout = "", stderr = "", hangs = false } = this.next;
    const end = {
      exec_id: "e1",
      exit_code: 0,
      signal: null,
      outcome: "exited",
      truncated: false,
      stdout_bytes: stdout.length,
      stderr_bytes: stderr.length,
      duration_ms: 5,
      ...this.next.end,
    };
    if (!String(request.headers.accept).includes("ndjson"))
      return json(200, { ...end, stdout, stderr, encoding: "utf8" });
    response.writeHead(200, { "content-type": "application/x-ndjson" });
    const line = (value: unknown): void => void response.write(`${JSON.stringify(value)}\n`);
    line({ type: "start", exec_id: "e1", pid: 7 });
    if (stdout !== "") line({ type: "stdout", data: Buffer.from(stdout).toString("base64") });
    if (stderr !== "") line({ type: "stderr", data: Buffer.from(stderr).toString("base64") });
    if (hangs) return;
    const finish = (): void => {
      line({ type: "end", ...end });
      response.end();
    };
    if ((body as { keep_stdin_open?: boolean }).keep_stdin_open === true) this.#onInputClosed = finish;
    else finish();
  }
}
