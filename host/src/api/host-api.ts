import { timingSafeEqual } from "node:crypto";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { Duplex } from "node:stream";
import { type Log, responseInsteadOfUpgrade } from "@torpor/base";
import {
  CodedError,
  buildTemplateSchema,
  createSnapshotSchema,
  hibernateSchema,
  END_REASONS,
  type EndReason,
  type HostHealth,
  imageRequestSchema,
  machineIdSchema,
  machineSpecSchema,
  machineUpdateSchema,
  PORT_HEADERS,
  randomText,
  type Template,
  type TemplateBuildEvent,
} from "@torpor/protocol";
import type { EventFeed } from "../machine/event-feed.ts";
import type { Machines } from "../machine/machines.ts";
import type { Reconciliation } from "../machine/reconciliation.ts";
import type { TemplatePools } from "../machine/template-pools.ts";
import { readJson } from "./body.ts";
import type { GuestTarget } from "./guest-headers.ts";
import { proxyToGuest, tunnelToGuest } from "./guest-proxy.ts";
import { renderMetrics } from "./host-metrics.ts";

export interface HostApiOptions {
  machines: Machines;
  pools: TemplatePools;
  feed: EventFeed;
  log: Log;
  /** Bearer token of the server. */
  token: string;
  health: () => Promise<HostHealth>;
  reconciliation: Pick<Reconciliation, "findings" | "repair">;
  /** Ends everything; afterwards the host only answers `health`. */
  drain: () => Promise<void>;
}

interface Call {
  incoming: IncomingMessage;
  outgoing: ServerResponse;
  query: URLSearchParams;
  /** What stands after the path, with its `?`; as it came. */
  search: string;
  /** What the route's pattern captured. */
  parts: string[];
  /** Aborted when the caller leaves before the answer is whole. */
  signal: AbortSignal;
}

interface Route {
  method: string;
  pattern: RegExp;
  answer: (call: Call) => Promise<void> | void;
}

const MAX_WAIT_MS = 60_000;
const PORT_PATTERN = /^\/v1\/machines\/([^/]+)\/ports\/(\d+)(\/.*)$/;

/** The host's HTTP interface; protocol/machine.ts lists its routes. */
export function createHostApi(options: HostApiOptions): Server {
  const routes = hostRoutes(options);
  const expected = Buffer.from(`Bearer ${options.token}`);
  const server = createServer((incoming, outgoing) => {
    void answer(incoming, outgoing);
  });
  // An upload or a long exec takes as long as it takes; the server sets its own limits.
  server.requestTimeout = 0;
  server.headersTimeout = 20_000;
  server.keepAliveTimeout = 120_000;
  server.on("connection", (socket) => socket.setNoDelay(true));
  server.on("upgrade", (incoming, connection, head) => {
    connection.on("error", () => connection.destroy());
    upgrade(incoming, connection, head).catch((error: unknown) => {
      if (connection.writable) fail(responseInsteadOfUpgrade(incoming, connection), error, options.log);
    });
  });
  return server;

  async function upgrade(incoming: IncomingMessage, connection: Duplex, head: Buffer): Promise<void> {
    requireToken(incoming);
    const { pathname, search } = splitUrl(incoming);
    const match = PORT_PATTERN.exec(pathname);
    if (match === null) throw new CodedError("not_found", `the host has no WebSocket at ${pathname}`);
    await tunnelToGuest(options.machines, portTarget(match.slice(1), search), incoming, connection, head);
  }

  function requireToken(incoming: IncomingMessage): void {
    const given = Buffer.from(incoming.headers.authorization ?? "");
    if (given.length !== expected.length || !timingSafeEqual(given, expected))
      throw new CodedError("unauthenticated", "the host token is missing or wrong");
  }

  async function answer(incoming: IncomingMessage, outgoing: ServerResponse): Promise<void> {
    const left = new AbortController();
    outgoing.on("close", () => left.abort());
    try {
      requireToken(incoming);
      const { pathname, search } = splitUrl(incoming);
      const route = routes
        .map((candidate) => ({ candidate, match: candidate.pattern.exec(pathname) }))
        .find(
          ({ candidate, match }) =>
            match !== null && (candidate.method === "*" || candidate.method === incoming.method),
        );
      if (route?.match === undefined || route.match === null)
        throw new CodedError("not_found", `the host has no ${incoming.method} ${pathname}`);
      await route.candidate.answer({
        incoming,
        outgoing,
        query: new URLSearchParams(search),
        search,
        parts: route.match.slice(1),
        signal: left.signal,
      });
    } catch (error) {
      fail(outgoing, error, options.log);
    }
  }
}

function hostRoutes({ machines, pools, feed, health, drain, reconciliation }: HostApiOptions): Route[] {
  return [
    // First: the hot path.
    {
      method: "*",
      pattern: PORT_PATTERN,
      answer: ({ incoming, outgoing, search, parts }) =>
        proxyToGuest(machines, portTarget(parts, search), incoming, outgoing),
    },
    {
      method: "PUT",
      pattern: /^\/v1\/machines\/([^/]+)$/,
      answer: async ({ incoming, outgoing, parts: [id = ""] }) => {
        if (!machineIdSchema.safeParse(id).success)
          throw new CodedError("invalid_request", `${JSON.stringify(id)} is no machine id`);
        const { machine, created } = await machines.create(id, await readJson(incoming, machineSpecSchema));
        json(outgoing, created ? 201 : 200, machine);
      },
    },
    {
      method: "POST",
      pattern: /^\/v1\/expected$/,
      answer: ({ outgoing, query }) => {
        pools.expect(query.get("template") ?? "", Number(query.get("disk_mb")));
        outgoing.writeHead(202).end();
      },
    },
    {
      method: "GET",
      pattern: /^\/v1\/machines$/,
      answer: ({ outgoing }) => json(outgoing, 200, { machines: machines.list() }),
    },
    {
      method: "GET",
      pattern: /^\/v1\/machines\/([^/]+)$/,
      answer: async ({ outgoing, query, signal, parts: [id = ""] }) => {
        const waitMs = Math.min(Number(query.get("settled_within_ms") ?? 0) || 0, MAX_WAIT_MS);
        const machine = await machines.settled(id, waitMs, signal);
        if (machine === undefined) throw new CodedError("sandbox_not_found", `no machine ${id} on this host`);
        json(outgoing, 200, machine);
      },
    },
    {
      method: "PATCH",
      pattern: /^\/v1\/machines\/([^/]+)$/,
      answer: async ({ incoming, outgoing, parts: [id = ""] }) => {
        const { network, ...clocks } = await readJson(incoming, machineUpdateSchema);
        const changed = network === undefined ? undefined : await machines.setNetwork(id, network);
        const hasClocks = Object.values(clocks).some((value) => value !== undefined);
        json(outgoing, 200, hasClocks || changed === undefined ? machines.update(id, clocks) : changed);
      },
    },
    {
      method: "DELETE",
      pattern: /^\/v1\/machines\/([^/]+)$/,
      answer: async ({ outgoing, query, parts: [id = ""] }) =>
        json(outgoing, 200, await machines.end(id, endReason(query.get("reason")))),
    },
    {
      method: "POST",
      pattern: /^\/v1\/machines\/([^/]+)\/(pause|resume|wake)$/,
      answer: async ({ outgoing, parts: [id = "", verb] }) =>
        json(outgoing, 200, await machines[verb as "pause" | "resume" | "wake"](id)),
    },
    {
      method: "POST",
      pattern: /^\/v1\/machines\/([^/]+)\/hibernate$/,
      answer: async ({ incoming, outgoing, parts: [id = ""] }) => {
        const { memory } = await readJson(incoming, hibernateSchema, {});
        json(outgoing, 200, await machines.hibernate(id, memory));
      },
    },
    {
      method: "POST",
      pattern: /^\/v1\/machines\/([^/]+)\/snapshots$/,
      answer: async ({ incoming, outgoing, parts: [id = ""] }) => {
        const { id: snapshotId, ...options } = await readJson(incoming, createSnapshotSchema);
        json(outgoing, 201, await machines.snapshot(id, snapshotId, options));
      },
    },
    {
      method: "GET",
      pattern: /^\/v1\/snapshots$/,
      answer: async ({ outgoing }) => json(outgoing, 200, { snapshots: await machines.snapshots() }),
    },
    {
      method: "GET",
      pattern: /^\/v1\/snapshots\/([^/]+)$/,
      answer: async ({ outgoing, parts: [id = ""] }) => json(outgoing, 200, await machines.findSnapshot(id)),
    },
    {
      method: "DELETE",
      pattern: /^\/v1\/snapshots\/([^/]+)$/,
      answer: async ({ outgoing, parts: [id = ""] }) => {
        await machines.removeSnapshot(id);
        outgoing.writeHead(204).end();
      },
    },
    {
      method: "GET",
      pattern: /^\/v1\/machines\/([^/]+)\/logs$/,
      answer: async ({ outgoing, parts: [id = ""] }) => text(outgoing, await machines.console(id)),
    },
    {
      method: "GET",
      pattern: /^\/v1\/machines\/([^/]+)\/metrics$/,
      answer: ({ outgoing, query, parts: [id = ""] }) => {
        const time = (name: string, otherwise: number): number => Number(query.get(name) ?? otherwise);
        const samples = machines.samples(id, time("from_unix_ms", 0), time("to_unix_ms", Infinity));
        json(outgoing, 200, { samples });
      },
    },
    {
      method: "GET",
      pattern: /^\/v1\/events$/,
      answer: async ({ outgoing, query, signal }) => {
        const waitMs = Math.min(Number(query.get("wait_ms") ?? 0) || 0, MAX_WAIT_MS);
        json(outgoing, 200, await feed.after(Number(query.get("after") ?? 0) || 0, waitMs, signal));
      },
    },
    {
      method: "GET",
      pattern: /^\/v1\/health$/,
      answer: async ({ outgoing }) => json(outgoing, 200, await health()),
    },
    {
      method: "GET",
      pattern: /^\/v1\/templates$/,
      answer: async ({ outgoing }) => json(outgoing, 200, { templates: await pools.list() }),
    },
    {
      method: "POST",
      pattern: /^\/v1\/templates\/([^/]+)\/build$/,
      answer: async ({ incoming, outgoing, parts: [name = ""], signal }) => {
        const { image } = await readJson(incoming, buildTemplateSchema, {});
        await buildTemplateStream(outgoing, (report) =>
          image === undefined
            ? pools.build(name, report, signal)
            : pools.buildFromImage(decodeURIComponent(name), image, report, signal),
        );
      },
    },
    {
      method: "POST",
      pattern: /^\/v1\/images$/,
      answer: async ({ incoming, outgoing, signal }) => {
        const wanted = await readJson(incoming, imageRequestSchema);
        await buildTemplateStream(outgoing, (report) => pools.prepareImage(wanted, report, signal));
      },
    },
    {
      method: "DELETE",
      pattern: /^\/v1\/templates\/([^/]+)$/,
      answer: async ({ outgoing, parts: [name = ""] }) => {
        await pools.remove(name, () => machines.templatesInUse());
        outgoing.writeHead(204).end();
      },
    },
    {
      method: "GET",
      pattern: /^\/v1\/findings$/,
      answer: async ({ outgoing }) => json(outgoing, 200, { findings: await reconciliation.findings() }),
    },
    {
      method: "POST",
      pattern: /^\/v1\/findings\/repair$/,
      answer: async ({ outgoing }) => json(outgoing, 200, await reconciliation.repair()),
    },
    {
      method: "POST",
      pattern: /^\/v1\/drain$/,
      answer: async ({ outgoing }) => {
        await drain();
        json(outgoing, 200, { drained: true });
      },
    },
    {
      method: "GET",
      pattern: /^\/metrics$/,
      answer: async ({ outgoing }) => text(outgoing, renderMetrics(await health())),
    },
  ];
}

/** NDJSON: progress as it comes, then `done` or `error`. A caller who leaves ends the build. */
async function buildTemplateStream(
  outgoing: ServerResponse,
  build: (report: (event: TemplateBuildEvent) => void) => Promise<{ template: Template; cached: boolean }>,
): Promise<void> {
  const write = (event: TemplateBuildEvent): void => {
    if (!outgoing.headersSent) outgoing.writeHead(200, { "content-type": "application/x-ndjson" });
    outgoing.write(`${JSON.stringify(event)}\n`);
  };
  try {
    const { template, cached } = await build(write);
    write({ type: "done", template, cached });
  } catch (error) {
    if (!outgoing.headersSent) throw error;
    const coded = asCoded(error);
    write({ type: "error", code: coded.code, message: coded.message, details: coded.details });
  }
  outgoing.end();
}

/** Path and query as they came: resolving `..` would lead a path that is meant for one machine's guest to another machine. */
function splitUrl({ url = "/" }: IncomingMessage): { pathname: string; search: string } {
  const [pathname = "/"] = url.split("?", 1);
  return { pathname, search: url.slice(pathname.length) };
}

/** What {@link PORT_PATTERN} captured. */
function portTarget([machineId = "", port = "", path = "/"]: string[], search: string): GuestTarget {
  return { machineId, port: portNumber(port), path: `${path}${search}` };
}

function portNumber(value: string): number {
  const port = Number(value);
  if (port < 1 || port > 65_535) throw new CodedError("invalid_request", `${value} is no port`);
  return port;
}

function endReason(value: string | null): EndReason {
  const reason = END_REASONS.find((candidate) => candidate === (value ?? "user"));
  if (reason === undefined)
    throw new CodedError(
      "invalid_request",
      `reason is ${JSON.stringify(value)}; it must be one of ${END_REASONS.join(", ")}`,
    );
  return reason;
}

function json(outgoing: ServerResponse, status: number, body: unknown): void {
  const bytes = Buffer.from(JSON.stringify(body));
  outgoing
    .writeHead(status, { "content-type": "application/json", "content-length": bytes.length })
    .end(bytes);
}

function text(outgoing: ServerResponse, body: string): void {
  outgoing.writeHead(200, { "content-type": "text/plain; charset=utf-8" }).end(body);
}

function asCoded(error: unknown): CodedError {
  if (error instanceof CodedError) return error;
  return new CodedError("internal", error instanceof Error ? error.message : String(error), { cause: error });
}

function fail(outgoing: ServerResponse, error: unknown, log: Log): void {
  const coded = asCoded(error);
  if (coded.code === "internal") log.error({ op: "host.request", err: error });
  if (!outgoing.headersSent) outgoing.setHeader(PORT_HEADERS.isHostsOwn, "1");
  if (outgoing.headersSent) outgoing.destroy();
  else json(outgoing, coded.status, coded.toEnvelope(`host-${randomText(12)}`));
}
