import { type ChildProcess, spawn } from "node:child_process";
import {
  createReadStream,
  createWriteStream,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  renameSync,
  rmSync,
  statSync,
} from "node:fs";
import type { IncomingMessage, ServerResponse } from "node:http";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { pipeline } from "node:stream/promises";
import { encodeEnvelope, type ProcessEndExtension, type StartRequest } from "@torpor/protocol";

interface Running {
  execId: string;
  request: StartRequest;
  pid: number;
  child: ChildProcess;
  startedAt: string;
  events: unknown[];
  ended: boolean;
  listeners: Set<() => void>;
}

/** Output or behaviour a test scripts for one command, by its text. */
export interface ScriptedCommand {
  /** Events of the stream, in order; a number waits that many milliseconds; `drop` breaks the connection. */
  steps: (Record<string, unknown> | number | "drop")[];
}

/** The agent inside a fake sandbox: commands run for real on this machine, below a directory of their own. */
export class FakeGuest {
  readonly root: string;
  /** How often each command was really started. */
  readonly starts: string[] = [];
  readonly signals: string[] = [];
  readonly scripted = new Map<string, ScriptedCommand>();
  /** Whether the sandbox's default user is not found. */
  isPasswdDamaged = false;
  /** Answer of `/torpor/state`. */
  inventory: unknown = {
    taken_at: "2026-01-01T00:00:00Z",
    files: { changed_count: 0, changed_bytes: 0, sample: [], truncated: false },
    packages: { pip: [], npm: [], apt: [] },
    caches: [],
    memory: { rss_bytes: 1, processes: [], kernels: [] },
    connections: {
      listening: [],
      loopback: [],
      external: [{ protocol: "tcp", local: "10.0.0.2:5", remote: "203.0.113.9:443", state: "established" }],
    },
    browser: { profiles: [] },
  };
  readonly running = new Map<string, Running>();
  readonly sandboxEnv: Record<string, string>;
  readonly #open = new Set<ServerResponse>();
  /** Streams that a freeze cut: their clients have not left. */
  readonly #cut = new WeakSet<ServerResponse>();
  /** Bytes after which a resumable stream ends, to be gone on with. */
  partBytes = Number.POSITIVE_INFINITY;
  /** Input by its id, as far as it was sent with one. */
  readonly inputs = new Map<string, string>();
  readonly #closes = new Set<string>();
  /** What each `Connect` asked for. */
  readonly connects: unknown[] = [];

  constructor(sandboxEnv: Record<string, string>) {
    this.root = mkdtempSync(join(tmpdir(), "torpor-fake-guest-"));
    mkdirSync(join(this.root, "home/user"), { recursive: true });
    this.sandboxEnv = sandboxEnv;
  }

  /** Ends everything inside at once, as the machine's end does: streams break off. */
  close(): void {
    for (const process of this.running.values()) kill(process.child, "SIGKILL");
    for (const response of this.#open) response.socket?.destroy();
    rmSync(this.root, { recursive: true, force: true });
  }

  /** Breaks every connection, as a checkpoint does; what runs goes on. */
  cut(): void {
    for (const response of this.#open) {
      this.#cut.add(response);
      response.socket?.destroy();
    }
  }

  async serve(request: IncomingMessage, response: ServerResponse, path: string): Promise<void> {
    this.#open.add(response);
    response.once("close", () => this.#open.delete(response));
    const url = new URL(path, "http://guest");
    try {
      if (url.pathname === "/health") return void response.writeHead(204).end();
      if (url.pathname === "/files") return await this.#files(request, response, url);
      if (url.pathname === "/torpor/state") {
        response.writeHead(200, { "content-type": "application/json" });
        return void response.end(JSON.stringify(this.inventory));
      }
      if (url.pathname === "/torpor/archive") return await this.#archive(request, response, url);
      const body = await bytes(request);
      if (
        url.pathname === "/process.Process/Start" ||
        url.pathname === "/process.Process/Connect" ||
        url.pathname.endsWith("/WatchDir")
      ) {
        const message: unknown = JSON.parse(body.subarray(5).toString("utf8"));
        response.writeHead(200, { "content-type": "application/connect+json" });
        if (url.pathname.endsWith("/Start")) return await this.#start(message as StartRequest, response);
        if (url.pathname.endsWith("/Connect")) return await this.#connect(message, response);
        return await this.#watch(message as { path: string }, response);
      }
      const answer = this.#unary(url.pathname, JSON.parse(body.toString("utf8")) as Record<string, unknown>);
      response.writeHead(200, { "content-type": "application/json" });
      response.end(JSON.stringify(answer));
    } catch (error) {
      if (response.headersSent) return void response.socket?.destroy();
      const refusal = error instanceof Refusal ? error : new Refusal(500, "internal", String(error));
      response.writeHead(refusal.status, { "content-type": "application/json" });
      response.end(JSON.stringify({ code: refusal.code, message: refusal.message }));
    }
  }

  async #start(request: StartRequest, response: ServerResponse): Promise<void> {
    const execId = request.torpor?.execId ?? `pid-${Math.random()}`;
    const known = this.running.get(execId);
    if (known !== undefined) return await this.#follow(known, response);
    const text = request.process.args.at(-1) ?? request.process.cmd;
    this.starts.push(text);
    const scripted = this.scripted.get(text);
    if (scripted !== undefined) return await this.#playScript(scripted, response);
    if (this.isPasswdDamaged && request.torpor?.user === undefined)
      return endWithError(response, "unauthenticated", "invalid username: 'user'");
    if (
      request.torpor?.user !== undefined &&
      request.torpor.user !== "user" &&
      request.torpor.user !== "root"
    ) {
      return endWithError(response, "unauthenticated", `invalid username: '${request.torpor.user}'`);
    }
    const cwd = request.process.cwd === undefined ? this.root : join(this.root, request.process.cwd);
    if (!isDirectory(cwd))
      return endWithError(response, "invalid_argument", `cwd '${request.process.cwd}' does not exist`);
    const child = spawn(
      request.process.cmd,
      request.process.args.filter((argument) => argument !== "-l"),
      {
        cwd,
        env: { PATH: process.env["PATH"], HOME: this.root, ...this.sandboxEnv, ...request.process.envs },
        detached: true,
        stdio: ["pipe", "pipe", "pipe"],
      },
    );
    const startedAt = Date.now();
    child.stdin.on("error", () => {});
    if (request.torpor?.stdin !== undefined) child.stdin.end(Buffer.from(request.torpor.stdin, "base64"));
    else if (request.stdin !== true && request.pty === undefined) child.stdin.end();
    const spawned = await new Promise<Error | undefined>((resolve) => {
      child.once("error", resolve).once("spawn", () => resolve(undefined));
    });
    if (spawned !== undefined)
      return endWithError(response, "invalid_argument", `${request.process.cmd}: ${spawned.message}`);
    const pid = child.pid ?? 0;
    const running: Running = {
      execId,
      request,
      pid,
      child,
      startedAt: new Date(startedAt).toISOString(),
      events: [{ start: { pid } }],
      ended: false,
      listeners: new Set(),
    };
    this.running.set(execId, running);
    const totals = { stdout: 0, stderr: 0 };
    const limit = request.torpor?.maxOutputBytes ?? 0;
    const push = (event: unknown): void => {
      running.events.push(event);
      for (const listener of running.listeners) listener();
    };
    for (const stream of ["stdout", "stderr"] as const) {
      child[stream].on("data", (chunk: Buffer) => {
        const room = limit === 0 ? chunk.length : Math.max(0, limit - totals[stream]);
        totals[stream] += chunk.length;
        const kept = chunk.subarray(0, room);
        for (let offset = 0; offset < kept.length; offset += 32_768) {
          const field = request.pty === undefined ? stream : "pty";
          push({ data: { [field]: kept.subarray(offset, offset + 32_768).toString("base64") } });
        }
      });
    }
    let timedOut = false;
    const { timeoutMs = 0 } = request.torpor ?? {};
    const timer =
      timeoutMs === 0
        ? undefined
        : setTimeout(() => {
            timedOut = true;
            kill(child, "SIGTERM");
          }, timeoutMs);
    child.once("close", (code, signal) => {
      clearTimeout(timer);
      const detail: ProcessEndExtension = {
        outcome: timedOut ? "timed_out" : signal === null ? "exited" : "signalled",
        exitCode: code,
        signal,
        durationMs: Date.now() - startedAt,
        stdoutBytes: totals.stdout,
        stderrBytes: totals.stderr,
        stdoutTruncated: limit !== 0 && totals.stdout > limit,
        stderrTruncated: limit !== 0 && totals.stderr > limit,
      };
      running.ended = true;
      push({
        end: { exitCode: code ?? -1, exited: signal === null, status: `exit status ${code}`, torpor: detail },
      });
    });
    if (request.torpor?.killOnDisconnect === true)
      response.once("close", () => {
        if (!running.ended && !response.writableFinished && !this.#cut.has(response)) kill(child, "SIGKILL");
      });
    await this.#follow(running, response, {}, request.torpor?.resumable === true);
  }

  async #follow(
    running: Running,
    response: ServerResponse,
    from: Record<string, number> = {},
    inParts = false,
  ): Promise<void> {
    let sent = 0;
    let part = 0;
    const left = { ...from };
    for (;;) {
      while (sent < running.events.length) {
        const event = beyond(running.events[sent], left);
        sent += 1;
        if (event === undefined) continue;
        part += JSON.stringify(event).length;
        if (inParts && part > this.partBytes && !("end" in (event as object))) {
          response.write(encodeEnvelope(0, { event }));
          response.write(encodeEnvelope(0, { event: { continue: {} } }));
          return void response.end(encodeEnvelope(2, {}));
        }
        if (!response.write(encodeEnvelope(0, { event })) && !response.destroyed) {
          running.child.stdout?.pause();
          await new Promise<void>((resolve) => {
            const go = (): void => {
              response.off("drain", go).off("close", go);
              resolve();
            };
            response.on("drain", go).on("close", go);
          });
          running.child.stdout?.resume();
        }
      }
      if (running.ended && sent >= running.events.length) break;
      if (response.destroyed) return;
      await new Promise<void>((resolve) => {
        const wake = (): void => {
          running.listeners.delete(wake);
          response.off("close", wake);
          resolve();
        };
        running.listeners.add(wake);
        response.once("close", wake);
      });
    }
    response.end(encodeEnvelope(2, {}));
  }

  async #connect(message: unknown, response: ServerResponse): Promise<void> {
    const { process, torpor = {} } = message as {
      process: { pid?: number; torpor?: { execId: string } };
      torpor?: { from?: Record<string, number>; hold?: boolean };
    };
    this.connects.push(torpor);
    const running = [...this.running.values()].find(
      ({ pid, execId }) => pid === process.pid || execId === process.torpor?.execId,
    );
    if (running === undefined)
      return endWithError(response, "not_found", `process ${JSON.stringify(process)} not found`);
    await this.#follow(running, response, torpor.from, torpor.hold === true);
  }

  async #playScript({ steps }: ScriptedCommand, response: ServerResponse): Promise<void> {
    for (const step of steps) {
      if (typeof step === "number") await new Promise((resolve) => setTimeout(resolve, step));
      else if (step === "drop") return void response.socket?.destroy();
      else if (response.destroyed) return;
      else response.write(encodeEnvelope(0, { event: step }));
    }
    if (!response.destroyed) response.end(encodeEnvelope(2, {}));
  }

  async #watch({ path }: { path: string }, response: ServerResponse): Promise<void> {
    if (!isDirectory(this.#inside(path)))
      return endWithError(response, "not_found", `path '${path}' does not exist`);
    response.write(encodeEnvelope(0, { start: {} }));
    response.write(encodeEnvelope(0, { filesystem: { name: "a.txt", type: "EVENT_TYPE_CREATE" } }));
    response.write(encodeEnvelope(0, { keepalive: {} }));
    await new Promise((resolve) => response.once("close", resolve));
  }

  #unary(procedure: string, message: Record<string, unknown>): unknown {
    const path = typeof message["path"] === "string" ? message["path"] : "";
    switch (procedure) {
      case "/process.Process/List":
        return {
          processes: [...this.running.values()]
            .filter(({ ended }) => !ended)
            .map(({ request, pid, execId, startedAt }) => ({
              config: request.process,
              pid,
              torpor: { execId, startedAt, user: "user" },
            })),
        };
      case "/process.Process/SendSignal": {
        const running = this.#select(message);
        this.signals.push(String(message["signal"]));
        kill(running.child, String(message["signal"]).replace("SIGNAL_", "") as NodeJS.Signals);
        return {};
      }
      case "/process.Process/SendInput": {
        const input = message["input"] as { stdin?: string; pty?: string };
        const { inputId } = (message["torpor"] ?? {}) as { inputId?: string };
        if (inputId !== undefined && this.inputs.has(inputId)) return {};
        if (inputId !== undefined) this.inputs.set(inputId, input.stdin ?? input.pty ?? "");
        this.#select(message).child.stdin?.write(Buffer.from(input.stdin ?? input.pty ?? "", "base64"));
        return {};
      }
      case "/process.Process/CloseStdin": {
        const { inputId } = (message["torpor"] ?? {}) as { inputId?: string };
        if (inputId !== undefined && this.#closes.has(inputId)) return {};
        this.#select(message).child.stdin?.end();
        if (inputId !== undefined) this.#closes.add(inputId);
        return {};
      }
      case "/process.Process/Update":
        this.signals.push(`resize ${JSON.stringify(message["pty"])}`);
        return {};
      case "/filesystem.Filesystem/Stat":
        return { entry: this.#entry(path) };
      case "/filesystem.Filesystem/ListDir":
        if (!isDirectory(this.#inside(path)))
          throw new Refusal(404, "not_found", `path '${path}' does not exist`);
        return {
          entries: readdirSync(this.#inside(path))
            .sort()
            .map((name) => this.#entry(join(path, name))),
        };
      case "/filesystem.Filesystem/MakeDir":
        if (isDirectory(this.#inside(path)))
          throw new Refusal(409, "already_exists", `directory '${path}' exists`);
        mkdirSync(this.#inside(path), { recursive: true });
        return { entry: this.#entry(path) };
      case "/filesystem.Filesystem/Move": {
        const source = String(message["source"]);
        const destination = String(message["destination"]);
        this.#entry(source);
        mkdirSync(dirname(this.#inside(destination)), { recursive: true });
        renameSync(this.#inside(source), this.#inside(destination));
        return { entry: this.#entry(destination) };
      }
      case "/filesystem.Filesystem/Remove":
        rmSync(this.#inside(path), { recursive: true, force: true });
        return {};
      default:
        throw new Refusal(501, "unimplemented", procedure);
    }
  }

  #select(message: Record<string, unknown>): Running {
    const { pid, torpor } = message["process"] as { pid?: number; torpor?: { execId: string } };
    const running = [...this.running.values()].find(
      (candidate) => (candidate.pid === pid || candidate.execId === torpor?.execId) && !candidate.ended,
    );
    if (running === undefined) throw new Refusal(404, "not_found", `process with pid ${pid} not found`);
    return running;
  }

  #inside(path: string): string {
    return join(this.root, path.replace(/^~/, "/home/user"));
  }

  #entry(path: string): unknown {
    let stat;
    try {
      stat = lstatSync(this.#inside(path));
    } catch {
      throw new Refusal(404, "not_found", `path '${path}' does not exist`);
    }
    return {
      name: path.split("/").at(-1),
      type: stat.isDirectory()
        ? "FILE_TYPE_DIRECTORY"
        : stat.isSymbolicLink()
          ? "FILE_TYPE_SYMLINK"
          : "FILE_TYPE_FILE",
      path,
      size: String(stat.size),
      mode: stat.mode & 0o7777,
      permissions: stat.isDirectory() ? "drwxr-xr-x" : "-rw-r--r--",
      owner: "user",
      group: "user",
      modifiedTime: stat.mtime.toISOString(),
    };
  }

  async #files(request: IncomingMessage, response: ServerResponse, url: URL): Promise<void> {
    const path = url.searchParams.get("path") ?? "";
    const file = this.#inside(path);
    if (request.method === "POST") {
      if (isDirectory(file)) throw new Refusal(400, 400, `path '${path}' is a directory`);
      mkdirSync(dirname(file), { recursive: true });
      const part = `${file}.part`;
      try {
        await pipeline(request, createWriteStream(part));
      } catch (error) {
        rmSync(part, { force: true });
        throw error;
      }
      renameSync(part, file);
      response.writeHead(200, { "content-type": "application/json" });
      response.end(JSON.stringify([{ name: path.split("/").at(-1), path, type: "file" }]));
      return;
    }
    let stat;
    try {
      stat = statSync(file);
    } catch {
      throw new Refusal(404, 404, `path '${path}' does not exist`);
    }
    if (!stat.isFile()) throw new Refusal(400, 400, `path '${path}' is a directory`);
    const range = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? "");
    const start = Number(range?.[1] ?? 0);
    const end = range?.[2] === undefined || range[2] === "" ? stat.size - 1 : Number(range[2]);
    if (start > 0 && start >= stat.size) {
      response.writeHead(416, { "content-range": `bytes */${stat.size}` });
      return void response.end(JSON.stringify({ code: 416, message: "out of range" }));
    }
    response.writeHead(range === null ? 200 : 206, {
      "content-type": "application/octet-stream",
      "content-length": Math.max(0, end - start + 1),
      "accept-ranges": "bytes",
      ...(range === null ? {} : { "content-range": `bytes ${start}-${end}/${stat.size}` }),
    });
    if (stat.size === 0) return void response.end();
    await pipeline(createReadStream(file, { start, end }), response);
  }

  async #archive(request: IncomingMessage, response: ServerResponse, url: URL): Promise<void> {
    const directory = this.#inside(url.searchParams.get("path") ?? "");
    if (request.method === "PUT") {
      mkdirSync(directory, { recursive: true });
      const tar = spawn("tar", ["-x", "-C", directory], { stdio: ["pipe", "ignore", "pipe"] });
      const exited = new Promise<number | null>((resolve) => tar.once("close", resolve));
      await pipeline(request, tar.stdin);
      if ((await exited) !== 0) throw new Refusal(400, 400, "not a tar archive");
      response.writeHead(200, { "content-type": "application/json" });
      response.end(JSON.stringify({ files: 1 }));
      return;
    }
    if (!isDirectory(directory)) throw new Refusal(404, 404, "path does not exist");
    response.writeHead(200, { "content-type": "application/x-tar" });
    await pipeline(
      spawn("tar", ["-c", "-C", directory, "."], { stdio: ["ignore", "pipe", "ignore"] }).stdout,
      response,
    );
  }
}

class Refusal extends Error {
  readonly status: number;
  readonly code: string | number;

  constructor(status: number, code: string | number, message: string) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** The part of an event that a client who has `left` bytes of each stream has not. */
function beyond(event: unknown, left: Record<string, number>): unknown {
  const { data } = event as { data?: Record<string, string> };
  const [stream, base64] = Object.entries(data ?? {})[0] ?? [];
  if (stream === undefined || base64 === undefined || (left[stream] ?? 0) === 0) return event;
  const bytes = Buffer.from(base64, "base64");
  const skipped = Math.min(bytes.length, left[stream] ?? 0);
  left[stream] = (left[stream] ?? 0) - skipped;
  return skipped === bytes.length
    ? undefined
    : { data: { [stream]: bytes.subarray(skipped).toString("base64") } };
}

function endWithError(response: ServerResponse, code: string, message: string): void {
  response.end(encodeEnvelope(2, { error: { code, message } }));
}

function kill(child: ChildProcess, signal: NodeJS.Signals): void {
  try {
    if (child.pid !== undefined && child.exitCode === null) process.kill(-child.pid, signal);
  } catch {
    // it has ended by itself
  }
}

function isDirectory(path: string): boolean {
  try {
    return statSync(path).isDirectory();
  } catch {
    return false;
  }
}

async function bytes(request: IncomingMessage): Promise<Buffer> {
  const chunks: Buffer[] = [];
  for await (const chunk of request as AsyncIterable<Buffer>) chunks.push(chunk);
  return Buffer.concat(chunks);
}
