import { GUEST_PORT, isEnding } from "@torpor/protocol";
import { z } from "zod";
import { readAll } from "../../host/host-client.ts";
import type { RouteDeps } from "../../routes/route-deps.ts";
import type { SandboxRecord } from "../../store/sandbox-record.ts";
import { e2bSandboxNotFound } from "../e2b-error.ts";
import { addE2bRoute } from "./add-e2b-route.ts";

const MAX_METRICS_BYTES = 64 * 1024;
const MAX_CONSOLE_BYTES = 4 * 1024 * 1024;
const METRICS_WITHIN_MS = 5_000;
const MOST_LINES = 1_000;

/** Of the agent's `/metrics`; from inside a sandbox, so it may be anything. */
const agentMetrics = z.object({
  ts: z.number(),
  cpu_count: z.number(),
  cpu_used_pct: z.number(),
  mem_total: z.number(),
  mem_used: z.number(),
  mem_cache: z.number(),
  disk_used: z.number(),
  disk_total: z.number(),
});

const metricSchema = z.object({
  timestamp: z.string(),
  timestampUnix: z.number(),
  cpuCount: z.number(),
  cpuUsedPct: z.number(),
  memUsed: z.number(),
  memTotal: z.number(),
  memCache: z.number(),
  diskUsed: z.number(),
  diskTotal: z.number(),
});
const unixSeconds = z.coerce.number().optional();

const entrySchema = z.object({
  timestamp: z.string(),
  level: z.string(),
  message: z.string(),
  fields: z.record(z.string(), z.string()),
});
const limit = z.coerce.number().int().min(0).max(MOST_LINES).default(MOST_LINES);

/** Metrics and logs of a sandbox, as E2B's clients ask for them. They wake nothing. */
export function addE2bLookRoutes(deps: RouteDeps): void {
  addE2bRoute(
    deps,
    {
      method: "get",
      path: "/sandboxes/{id}/metrics",
      summary: "Get a sandbox's metrics",
      description: "As they are now: none of the past are kept. A sandbox that sleeps has none.",
      scope: "sandbox:read",
      query: z.object({ start: unixSeconds, end: unixSeconds }),
      answers: { 200: { description: "One entry at most", schema: z.array(metricSchema) } },
    },
    async (call) => {
      const record = await living(deps, call);
      const { start, end } = call.query;
      if (record.state !== "running") return { status: 200, body: [] };
      const metric = await metricsOf(deps, record, call.signal);
      const isAsked =
        (start === undefined || metric.timestampUnix >= start) &&
        (end === undefined || metric.timestampUnix <= end);
      return { status: 200, body: isAsked ? [metric] : [] };
    },
  );

  const logs = async (record: SandboxRecord, signal: AbortSignal): Promise<z.input<typeof entrySchema>[]> => {
    const host = await deps.placement.of(record.host);
    const text = (await readAll(await host.client.logs(record, signal), MAX_CONSOLE_BYTES)).toString("utf8");
    // Lines of a console carry no time: the sandbox's own start stands for it.
    const timestamp = new Date(record.startedAt ?? record.createdAt).toISOString();
    return text
      .split("\n")
      .filter((line) => line !== "")
      .map((message) => ({ timestamp, level: "info", message, fields: {} }));
  };

  addE2bRoute(
    deps,
    {
      method: "get",
      path: "/sandboxes/{id}/logs",
      summary: "Read a sandbox's console",
      scope: "sandbox:read",
      query: z.object({ start: z.coerce.number().optional(), limit }),
      answers: {
        200: {
          description: "Its last lines",
          schema: z.object({
            logs: z.array(z.object({ timestamp: z.string(), line: z.string() })),
            logEntries: z.array(entrySchema),
          }),
        },
      },
    },
    async (call) => {
      const all = await logs(await living(deps, call), call.signal);
      const logEntries = call.query.limit === 0 ? [] : all.slice(-call.query.limit);
      const lines = logEntries.map(({ timestamp, message }) => ({ timestamp, line: message }));
      return { status: 200, body: { logs: lines, logEntries } };
    },
  );

  addE2bRoute(
    deps,
    {
      method: "get",
      path: "/v2/sandboxes/{id}/logs",
      summary: "Read a sandbox's console",
      scope: "sandbox:read",
      query: z.object({
        cursor: z.coerce.number().optional(),
        limit,
        direction: z.enum(["forward", "backward"]).default("forward"),
        level: z.string().max(20).optional(),
        search: z.string().max(200).optional(),
      }),
      answers: { 200: { description: "Its lines", schema: z.object({ logs: z.array(entrySchema) }) } },
    },
    async (call) => {
      const { search, direction } = call.query;
      const all = await logs(await living(deps, call), call.signal);
      const found = search === undefined ? all : all.filter(({ message }) => message.includes(search));
      const ordered = direction === "forward" ? found : found.toReversed();
      return { status: 200, body: { logs: ordered.slice(0, call.query.limit) } };
    },
  );
}

async function living(
  { sandboxes }: RouteDeps,
  call: { caller: { scope: Parameters<RouteDeps["sandboxes"]["require"]>[0] }; param(name: string): string },
): Promise<SandboxRecord> {
  const record = await sandboxes.require(call.caller.scope, call.param("id"));
  if (isEnding(record.state)) throw e2bSandboxNotFound(record.id);
  return record;
}

async function metricsOf(
  { placement }: RouteDeps,
  record: SandboxRecord,
  signal: AbortSignal,
): Promise<z.input<typeof metricSchema>> {
  const host = await placement.of(record.host);
  const answer = await host.client.guest(record, GUEST_PORT, "GET", "/metrics", {
    headers: { "x-torpor-passive": "1" },
    headTimeoutMs: METRICS_WITHIN_MS,
    repeatable: true,
    signal,
  });
  const found = agentMetrics.parse(JSON.parse((await readAll(answer, MAX_METRICS_BYTES)).toString("utf8")));
  return {
    timestamp: new Date(found.ts * 1_000).toISOString(),
    timestampUnix: found.ts,
    cpuCount: found.cpu_count,
    cpuUsedPct: found.cpu_used_pct,
    memUsed: found.mem_used,
    memTotal: found.mem_total,
    memCache: found.mem_cache,
    diskUsed: found.disk_used,
    diskTotal: found.disk_total,
  };
}
