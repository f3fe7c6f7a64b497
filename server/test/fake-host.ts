import { mkdtempSync, rmSync } from "node:fs";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { Socket } from "node:net";
import type { Duplex } from "node:stream";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import {
  canonicalNetwork,
  CodedError,
  type EndReason,
  type HostEvent,
  type Incarnation,
  type Machine,
  type MachineMove,
  type MachineSample,
  type MachineSnapshot,
  type MachineSpec,
  type MachineUpdate,
  NO_USE,
  PORT_HEADERS,
  randomText,
  type Template,
} from "@torpor/protocol";
import { FakeGuest } from "./fake-guest.ts";

/** What the next matching request to the fake host meets instead of its usual answer. */
export interface Fault {
  /** `METHOD path`, matched against the start; ids and queries included. */
  on: RegExp;
  /** `error`: the envelope. `hang`: no answer. `drop`: the connection breaks. `delay`: the usual answer, later. */
  kind: "error" | "hang" | "drop" | "delay" | "drop-after";
  error?: CodedError;
  delayMs?: number;
  /** Of a delay: until then instead. */
  until?: Promise<void>;
  /** How often; default once. */
  times?: number;
}

/** A host that speaks `protocol/machine.ts` over a unix socket, with guests whose files and processes are real. */
export class FakeHost {
  readonly token = "host-token-for-tests";
  readonly socketPath: string;
  readonly directory: string;
  readonly hostId: string;
  readonly machines = new Map<string, { machine: Machine; guest: FakeGuest; spec: MachineSpec }>();
  /** `METHOD path` of every request that was let in. */
  readonly requests: string[] = [];
  /** Hints that a machine is about to be asked for. */
  expected = 0;
  readonly snapshots = new Map<string, MachineSnapshot>();
  /**
   * Servers known by tokens of their own. Each is asked before its request is served and before it is answered; while it
   * throws, the request is not served or not answered: the connection breaks, as for a server that is no more.
   */
  readonly callers = new Map<string, (when: "before" | "after", line: string) => Promise<void>>();
  /** Answers port 49999; without it the port refuses. */
  codeServer?: (path: string, request: IncomingMessage, response: ServerResponse) => Promise<void> | void;
  /** What machines used in the past, by id; of now there is always one while it runs. */
  readonly samples = new Map<string, MachineSample[]>();
  /** Programs that listen inside every machine, by port. */
  readonly programs = new Map<
    number,
    {
      answer: (path: string, request: IncomingMessage, response: ServerResponse) => Promise<void> | void;
      upgrade?: (path: string, request: IncomingMessage, connection: Duplex, head: Buffer) => void;
    }
  >();
  /** Milliseconds that a sleep, a wake and a snapshot take. */
  sleepMs = 5;
  /** Whether machines end at their deadlines. */
  keepsDeadlines = false;
  /** Given to the next machine, as no honest host would: another's. */
  nextIncarnation: { id: string; address: string } | undefined;
  #turn = 0;
  /** Addresses that a machine has now. */
  readonly #taken = new Set<string>();
  readonly #moving = new Map<string, Promise<void>>();
  readonly capacity = { cpus: 4, memory_mb: 8192, disk_mb: 65_536 };
  readonly templates: Template[] = [
    {
      name: "base",
      hash: "h1",
      description: "Debian",
      size_bytes: 1,
      built_at: "2026-01-01T00:00:00.000Z",
      golden: ["gvisor"],
    },
    {
      name: "code-interpreter",
      hash: "h2",
      description: "Python",
      size_bytes: 2,
      built_at: "2026-01-01T00:00:00.000Z",
      golden: ["gvisor"],
    },
  ];
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  readonly #faults: Fault[] = [];
  readonly #hanging = new Set<ServerResponse>();
  #events: HostEvent[] = [];
  #waiting = new Set<() => void>();

  private constructor(directory: string, hostId: string) {
    this.directory = directory;
    this.hostId = hostId;
    this.socketPath = join(directory, "host.sock");
    this.#server = createServer(
      { keepAliveTimeout: 60_000 },
      (request, response) => void this.#serve(request, response),
    );
    this.#server.on("upgrade", (request, connection, head) => {
      connection.on("error", () => {});
      this.#upgrade(request, connection, head).catch(() => connection.destroy());
    });
    this.#server.on("connection", (socket) => {
      this.#sockets.add(socket);
      socket.once("close", () => this.#sockets.delete(socket));
    });
  }

  static async start(hostId = "host-1"): Promise<FakeHost> {
    const host = new FakeHost(mkdtempSync(join(tmpdir(), "torpor-fake-host-")), hostId);
    await host.listen();
    return host;
  }

  get url(): string {
    return `unix:${this.socketPath}`;
  }

  listen(): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#server.once("error", reject);
      this.#server.listen(this.socketPath, () => {
        this.#server.off("error", reject);
        resolve();
      });
    });
  }

  /** Stops answering, as a crashed host does; machines stay. `listen` brings it back. */
  async goAway(): Promise<void> {
    const closed = new Promise((resolve) => this.#server.close(resolve));
    for (const socket of this.#sockets) socket.destroy();
    await closed;
  }

  async close(): Promise<void> {
    for (const { guest } of this.machines.values()) guest.close();
    if (this.#server.listening) await this.goAway();
    rmSync(this.directory, { recursive: true, force: true });
  }

  /** The next matching requests meet this. */
  fault(fault: Fault): void {
    this.#faults.push({ ...fault });
  }

  clearFaults(): void {
    this.#faults.length = 0;
  }

  /** Lets requests that hang go, with an answer of 503. */
  releaseHanging(): void {
    for (const response of this.#hanging)
      this.#sendError(response, new CodedError("host_unavailable", "released"));
    this.#hanging.clear();
  }

  /** A machine nobody asked for through the server. */
  addMachine(id: string, createdAt = new Date().toISOString()): Machine {
    const machine = this.#newMachine(id, {
      generation: 1,
      template: "base",
      tenant: "default",
      cpu: 1,
      memory_mb: 1024,
      disk_mb: 4096,
      network: "internet",
      env: {},
      deadline_unix_ms: null,
      on_expire: "destroy",
    });
    machine.created_at = createdAt;
    return machine;
  }

  /** Forgets a machine, as if it had never been. */
  forget(id: string): void {
    this.machines.get(id)?.guest.close();
    this.machines.delete(id);
  }

  /** Ends a machine on the host's own account, with its event unless `silent`. */
  end(id: string, reason: EndReason, { silent = false, message = null as string | null } = {}): void {
    const entry = this.machines.get(id);
    if (entry === undefined || entry.machine.state === "ended") return;
    const failed = entry.machine.state === "failed"; // why it failed is why it has ended
    entry.machine.state = "ended";
    this.#hold(entry.machine, "ending");
    this.#release(entry.machine);
    if (!failed) Object.assign(entry.machine, { reason, message, ended_at: new Date().toISOString() });
    entry.guest.close();
    if (!silent) this.#emit("ended", entry.machine);
  }

  /** Fails a machine: it runs no more, and what is left of it stays until it is deleted. */
  fail(id: string, reason: EndReason, { silent = false } = {}): void {
    const entry = this.machines.get(id);
    if (entry === undefined) return;
    Object.assign(entry.machine, { state: "failed", reason, ended_at: new Date().toISOString() });
    this.#hold(entry.machine, "failed");
    entry.guest.close();
    if (!silent) this.#emit("failed", entry.machine);
  }

  /** Moves a machine as a client or its idle clock would, one move at a time, with its event unless `silent`. */
  async move(
    id: string,
    verb: "pause" | "resume" | "hibernate" | "wake",
    { silent = false, memory }: { silent?: boolean; memory?: boolean | undefined } = {},
  ): Promise<void> {
    const entry = this.machines.get(id);
    if (entry === undefined) throw new CodedError("sandbox_not_found", `no machine ${id}`);
    const before = this.#moving.get(id) ?? Promise.resolve();
    const mine = before.then(() => this.#move(entry.machine, verb, silent, memory));
    this.#moving.set(
      id,
      mine.catch(() => {}),
    );
    await mine;
  }

  async #move(
    machine: Machine,
    verb: "pause" | "resume" | "hibernate" | "wake",
    silent: boolean,
    memory: boolean | undefined,
  ): Promise<void> {
    const emit = (type: HostEvent["type"]): void => {
      if (!silent) this.#emit(type, machine);
    };
    if (machine.state === "ended")
      throw new CodedError("sandbox_ended", `machine ${machine.id} has ended`, {
        details: { reason: machine.reason },
      });
    if (verb === "hibernate" && machine.state !== "hibernated") {
      this.#hold(machine, "hibernating");
      await new Promise((resolve) => setTimeout(resolve, this.sleepMs));
      machine.state = "hibernated";
      machine.image = {
        id: `img${randomText(23)}`,
        size_bytes: 4096,
        created_at: new Date().toISOString(),
        memory: memory ?? machine.hibernate_memory,
      };
      machine.took_ms.hibernate = this.sleepMs;
      this.#hold(machine, "hibernated");
      this.#release(machine);
      emit("hibernated");
    } else if (verb === "wake" && machine.state === "hibernated") {
      await new Promise((resolve) => setTimeout(resolve, this.sleepMs));
      machine.generation += 1;
      this.#bind(machine, "image", machine.image?.id ?? null);
      machine.attestation = { generation: machine.generation, steps: [], complete: true };
      machine.state = "running";
      machine.image = null;
      machine.took_ms.wake = this.sleepMs;
      this.#hold(machine, "running");
      emit("woken");
    } else if (verb === "pause" && machine.state !== "paused") {
      if (machine.state !== "running")
        throw new CodedError("wrong_state", `sandbox ${machine.id} is ${machine.state}`);
      machine.state = "paused";
      this.#hold(machine, "paused");
      emit("paused");
    } else if ((verb === "resume" || verb === "wake") && machine.state === "paused") {
      machine.state = "running";
      this.#hold(machine, "running");
      emit("resumed");
    } else if (verb === "resume" && machine.state !== "running")
      throw new CodedError("wrong_state", `sandbox ${machine.id} is ${machine.state}`);
  }

  async #takeSnapshot(machine: Machine, body: string): Promise<MachineSnapshot> {
    const { id, name } = JSON.parse(body) as { id: string; name: string | null };
    await new Promise((resolve) => setTimeout(resolve, this.sleepMs));
    const { tenant, generation, template, template_hash, driver, cpu, memory_mb, disk_mb, network } = machine;
    const snapshot: MachineSnapshot = {
      id,
      name,
      machine_id: machine.id,
      tenant,
      generation,
      template,
      template_hash,
      driver,
      driver_version: "1",
      cpu,
      memory_mb,
      disk_mb,
      network,
      size_bytes: 8192,
      created_at: new Date().toISOString(),
    };
    this.snapshots.set(id, snapshot);
    return snapshot;
  }

  /** Ends a machine at its deadline, as the host's journal does. */
  #armDeadline(machine: Machine): void {
    if (!this.keepsDeadlines || machine.deadline_unix_ms === null || machine.state === "ended") return;
    const timer = setTimeout(() => {
      const left = (machine.deadline_unix_ms ?? Number.POSITIVE_INFINITY) - Date.now();
      if (left > 0) this.#armDeadline(machine);
      else this.end(machine.id, "ttl_expired");
    }, machine.deadline_unix_ms - Date.now());
    timer.unref();
  }

  liveMachines(): string[] {
    return [...this.machines.values()]
      .filter(({ machine }) => machine.state !== "ended")
      .map(({ machine }) => machine.id);
  }

  #newMachine(id: string, spec: MachineSpec): Machine {
    const now = new Date().toISOString();
    const machine: Machine = {
      id,
      state: "running",
      generation: spec.generation,
      template: spec.template,
      template_hash: "h1",
      driver: "gvisor",
      tenant: spec.tenant,
      cpu: spec.cpu,
      memory_mb: spec.memory_mb,
      disk_mb: spec.disk_mb,
      network: canonicalNetwork(spec.network),
      created_at: now,
      started_at: now,
      deadline_unix_ms: spec.deadline_unix_ms,
      ended_at: null,
      reason: null,
      message: null,
      attestation: {
        generation: spec.generation,
        steps: [{ name: "entropy", outcome: "done" }],
        complete: true,
      },
      source: "pool",
      on_expire: spec.on_expire,
      idle_timeout_seconds: spec.idle_timeout_seconds ?? null,
      on_idle: spec.on_idle ?? "hibernate",
      retention_seconds: spec.retention_seconds ?? null,
      auto_wake: spec.auto_wake ?? true,
      hibernate_memory: spec.hibernate_memory ?? true,
      last_activity_at: now,
      last_activity: { kind: "create", what: "create" },
      idle_at: null,
      holds: [],
      image: null,
      incarnations: [],
      took_ms: { hibernate: null, wake: null },
      moves: [],
      used: { ...NO_USE },
      last_oom_at: null,
    };
    const from = spec.from_snapshot ?? null;
    this.#bind(machine, from === null ? "pool" : "snapshot", from);
    this.machines.set(id, { machine, guest: new FakeGuest({ ...spec.env, ...spec.secrets }), spec });
    this.#armDeadline(machine);
    this.#hold(machine, "running");
    this.#emit("started", machine);
    return machine;
  }

  /** Notes what a machine holds from now on. */
  #hold(machine: Machine, to: MachineMove["to"]): void {
    const before = machine.moves.at(-1);
    if (before?.to === to) return;
    const move: MachineMove = {
      number: (before?.number ?? 0) + 1,
      to,
      at: new Date().toISOString(),
      image_bytes: to === "hibernated" ? (machine.image?.size_bytes ?? 0) : 0,
      used: { ...machine.used },
      noticed_after_ms: 0,
    };
    machine.moves = [...machine.moves, move].slice(-32);
  }

  /** A physical machine at the first free address, which a host gives out again as soon as it is free. */
  #bind(machine: Machine, source: Incarnation["source"], from: string | null): void {
    let slot = 1;
    while (this.#taken.has(`198.18.0.${slot}`)) slot += 1;
    const { id, address } = this.nextIncarnation ?? {
      id: `mch${randomText(25)}`,
      address: `198.18.0.${slot}`,
    };
    this.nextIncarnation = undefined;
    this.#taken.add(address);
    machine.incarnations.push({
      number: machine.incarnations.length + 1,
      id,
      address,
      source,
      from,
      generation: machine.generation,
      bound_at: new Date().toISOString(),
      bound_turn: ++this.#turn,
      released_at: null,
      released_turn: null,
    });
  }

  #release({ incarnations }: Machine): void {
    const newest = incarnations.at(-1);
    if (newest === undefined || newest.released_at !== null) return;
    newest.released_at = new Date().toISOString();
    newest.released_turn = ++this.#turn;
    this.#taken.delete(newest.address);
  }

  #emit(type: HostEvent["type"], machine: Machine): void {
    this.#events.push({
      seq: this.#events.length + 1,
      type,
      machine_id: machine.id,
      at: new Date().toISOString(),
      machine: structuredClone(machine),
    });
    for (const wake of this.#waiting) wake();
  }

  async #upgrade(request: IncomingMessage, connection: Duplex, head: Buffer): Promise<void> {
    this.requests.push(`UPGRADE ${request.url}`);
    const { id, port, path } = portOf(new URL(request.url ?? "", "http://host"));
    const program = this.programs.get(port);
    await this.#wakeFor(id, request);
    if (program?.upgrade === undefined) {
      connection.end("HTTP/1.1 426 Upgrade Required\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno");
      return;
    }
    program.upgrade(path, request, connection, head);
  }

  /** As the real host does before it passes a request on to a port. */
  async #wakeFor(id: string, request: IncomingMessage): Promise<void> {
    const machine = this.machines.get(id)?.machine;
    if (machine === undefined || machine.state === "running") return;
    if (
      machine.auto_wake &&
      machine.image?.memory !== false &&
      request.headers[PORT_HEADERS.wake] !== "never"
    )
      await this.move(id, "wake");
    else
      throw new CodedError("wrong_state", `sandbox ${id} is ${machine.state}`, {
        details: { state: machine.state },
      });
  }

  #sendError(response: ServerResponse, error: CodedError): void {
    if (!response.headersSent) response.setHeader(PORT_HEADERS.isHostsOwn, "1");
    this.#send(response, error.status, error.toEnvelope("host"));
  }

  #send(response: ServerResponse, status: number, body: unknown): void {
    response.writeHead(status, { "content-type": "application/json" });
    response.end(JSON.stringify(body));
  }

  #takeFault(line: string): Fault | undefined {
    const index = this.#faults.findIndex(({ on }) => on.test(line));
    const fault = this.#faults[index];
    if (fault === undefined) return undefined;
    fault.times = (fault.times ?? 1) - 1;
    if (fault.times <= 0) this.#faults.splice(index, 1);
    return fault;
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const line = `${request.method} ${request.url}`;
    if (line.startsWith("POST /v1/expected?")) {
      // A hint that nobody waits for: no step of a test's.
      this.expected += 1;
      response.writeHead(202);
      return void response.end();
    }
    const token = request.headers.authorization?.replace("Bearer ", "") ?? "";
    const caller = this.callers.get(token);
    if (token !== this.token && caller === undefined) {
      this.#sendError(response, new CodedError("unauthenticated", "wrong host token"));
      return;
    }
    if (caller !== undefined) {
      try {
        await caller("before", line);
      } catch {
        return void request.socket.destroy();
      }
      const end = response.end.bind(response) as (text?: string) => ServerResponse;
      response.end = ((body?: string) => {
        caller("after", line).then(
          () => end(body),
          () => request.socket.destroy(),
        );
        return response;
      }) as typeof response.end;
    }
    this.requests.push(line);
    const fault = this.#takeFault(line);
    try {
      if (fault?.kind === "error") throw fault.error ?? new CodedError("internal", "told to fail");
      if (fault?.kind === "drop") return void request.socket.destroy();
      if (fault?.kind === "hang") return void this.#hanging.add(response);
      if (fault?.kind === "delay") await (fault.until ?? delay(fault.delayMs ?? 100));
      if (fault?.kind === "drop-after") {
        // Does the work and loses the answer.
        const socket = request.socket;
        response.end = (() => {
          socket.destroy();
          return response;
        }) as typeof response.end;
      }
      await this.#route(request, response);
    } catch (error) {
      this.#sendError(
        response,
        error instanceof CodedError ? error : new CodedError("internal", String(error)),
      );
    }
  }

  async #route(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const url = new URL(request.url ?? "", "http://host");
    const [, , kind, id, verb, port] = url.pathname.split("/");
    if (kind === "health") {
      const running = this.liveMachines().length;
      return this.#send(response, 200, {
        host_id: this.hostId,
        version: "0.1.0",
        driver: "gvisor",
        driver_version: "1",
        acceleration: "systrap",
        capacity: this.capacity,
        machines: { running, creating: 0, hibernated: 0 },
        pool: [{ template: "base", ready: 2, target: 3 }],
      });
    }
    if (kind === "events") return await this.#serveEvents(url, response);
    if (kind === "templates") return await this.#serveTemplates(request, response, id);
    if (kind === "snapshots" && id !== undefined) {
      this.snapshots.delete(id);
      response.writeHead(204);
      return void response.end();
    }
    if (kind !== "machines") throw new CodedError("not_found", `no route ${url.pathname}`);
    if (id === undefined)
      return this.#send(response, 200, {
        machines: [...this.machines.values()].map(({ machine }) => machine),
      });
    if (verb === undefined) return await this.#serveMachine(request, response, id, url);
    const entry = this.machines.get(id);
    if (entry === undefined) throw new CodedError("sandbox_not_found", `no machine ${id}`);
    if (entry.machine.state === "ended") {
      throw new CodedError("sandbox_ended", `machine ${id} has ended`, {
        details: { reason: entry.machine.reason },
      });
    }
    if (verb === "snapshots")
      return this.#send(response, 201, await this.#takeSnapshot(entry.machine, await text(request)));
    if (verb === "pause" || verb === "resume" || verb === "hibernate" || verb === "wake") {
      const body = await text(request);
      const { memory } = body === "" ? {} : (JSON.parse(body) as { memory?: boolean });
      await this.move(id, verb, { memory });
      return this.#send(response, 200, entry.machine);
    }
    if (verb === "metrics") {
      const [from, to] = ["from_unix_ms", "to_unix_ms"].map((name) => Number(url.searchParams.get(name)));
      const all = [
        ...(this.samples.get(id) ?? []),
        ...(entry.machine.state === "running" ? [sampleAt(Date.now())] : []),
      ];
      const samples = all.filter(({ at_unix_ms: at }) => at >= (from ?? 0) && at <= (to ?? 0));
      return this.#send(response, 200, { samples });
    }
    if (verb === "logs") {
      response.writeHead(200, { "content-type": "text/plain; charset=utf-8" });
      return void response.end("torpor-guest: ready\n");
    }
    if (verb === "ports" && port === "49999" && this.codeServer !== undefined) {
      const path = `/${url.pathname.split("/").slice(6).join("/")}`;
      return await this.codeServer(path, request, response);
    }
    if (verb === "ports" && port === "49983") {
      const passive = request.headers["x-torpor-passive"] === "1";
      if (entry.machine.state !== "running" && entry.machine.auto_wake && !passive)
        await this.move(id, "wake");
      if (entry.machine.state !== "running")
        throw new CodedError("wrong_state", `sandbox ${id} is ${entry.machine.state}`);
      const path = `/${url.pathname.split("/").slice(6).join("/")}${url.search}`;
      return await entry.guest.serve(request, response, path);
    }
    const program = this.programs.get(Number(port));
    if (verb === "ports" && program !== undefined) {
      await this.#wakeFor(id, request);
      return await program.answer(portOf(url).path, request, response);
    }
    throw new CodedError("guest_unavailable", `port ${port} refuses`, { details: { port: Number(port) } });
  }

  async #serveMachine(
    request: IncomingMessage,
    response: ServerResponse,
    id: string,
    url: URL,
  ): Promise<void> {
    const entry = this.machines.get(id);
    if (request.method === "PUT") {
      const spec = JSON.parse(await text(request)) as MachineSpec;
      if (entry !== undefined) return this.#send(response, 200, entry.machine);
      if (!this.templates.some(({ name }) => name === spec.template)) {
        throw new CodedError(
          "template_not_found",
          `template ${spec.template} is not known to this host; known: base, code-interpreter`,
        );
      }
      if (spec.from_snapshot != null && this.snapshots.get(spec.from_snapshot)?.tenant !== spec.tenant)
        throw new CodedError("snapshot_not_found", `no snapshot ${spec.from_snapshot}`);
      return this.#send(response, 201, this.#newMachine(id, spec));
    }
    if (entry === undefined) throw new CodedError("sandbox_not_found", `no machine ${id}`);
    const settleBy = performance.now() + Number(url.searchParams.get("settled_within_ms"));
    while (PASSING.includes(entry.machine.state) && performance.now() < settleBy)
      await new Promise((resolve) => setTimeout(resolve, 5));
    if (request.method === "PATCH") {
      const update = JSON.parse(await text(request)) as MachineUpdate;
      if (entry.machine.state === "ended")
        throw new CodedError("sandbox_ended", `machine ${id} has ended`, {
          details: { reason: entry.machine.reason },
        });
      Object.assign(entry.machine, update);
      this.#armDeadline(entry.machine);
      this.#emit("deadline_changed", entry.machine);
    } else if (request.method === "DELETE")
      this.end(id, (url.searchParams.get("reason") ?? "user") as EndReason);
    this.#send(response, 200, entry.machine);
  }

  async #serveEvents(url: URL, response: ServerResponse): Promise<void> {
    const after = Number(url.searchParams.get("after"));
    const waitMs = Number(url.searchParams.get("wait_ms"));
    const pending = (): HostEvent[] => this.#events.filter(({ seq }) => seq > after);
    if (pending().length === 0 && waitMs > 0) {
      await new Promise<void>((resolve) => {
        const done = (): void => {
          clearTimeout(timer);
          this.#waiting.delete(done);
          resolve();
        };
        const timer = setTimeout(done, waitMs);
        this.#waiting.add(done);
        response.once("close", done);
      });
    }
    this.#send(response, 200, { events: pending(), last_seq: this.#events.length });
  }

  async #serveTemplates(
    request: IncomingMessage,
    response: ServerResponse,
    name: string | undefined,
  ): Promise<void> {
    if (request.method === "GET") return this.#send(response, 200, { templates: this.templates });
    const index = this.templates.findIndex((template) => template.name === name);
    const template = this.templates[index];
    if (template === undefined) throw new CodedError("template_not_found", `no template ${name}`);
    if (request.method === "DELETE") {
      this.templates.splice(index, 1);
      response.writeHead(204);
      return void response.end();
    }
    response.writeHead(200, { "content-type": "application/x-ndjson" });
    response.write(
      `${JSON.stringify({ type: "progress", stage: "packages", label: "Install", fraction: 0.5 })}\n`,
    );
    response.end(`${JSON.stringify({ type: "done", template, cached: true })}\n`);
  }
}

export function sampleAt(at: number): MachineSample {
  return {
    at_unix_ms: at,
    cpu_used_percent: 12.5,
    memory_used_bytes: 4_096,
    memory_cache_bytes: 1_024,
    disk_used_bytes: 512,
  };
}

function portOf(url: URL): { id: string; port: number; path: string } {
  const [, , , id = "", , port, ...rest] = url.pathname.split("/");
  return { id, port: Number(port), path: `/${rest.join("/")}${url.search}` };
}

/** States that a caller who waits for a machine to settle waits for to pass. */
const PASSING: Machine["state"][] = ["creating", "snapshotting", "hibernating", "waking", "paused"];

async function text(request: IncomingMessage): Promise<string> {
  let body = "";
  for await (const chunk of request) body += String(chunk);
  return body;
}
