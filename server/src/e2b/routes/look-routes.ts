import { CodedError, isEnding } from "@torpor/protocol";
import { z } from "zod";
import { readAll } from "../../host/read-all.ts";
import type { RouteDeps } from "../../routes/route-deps.ts";
import type { SandboxRecord } from "../../store/sandbox-record.ts";
import { e2bSandboxNotFound } from "../e2b-error.ts";
import { addE2bRoute } from "./add-e2b-route.ts";

const MAX_CONSOLE_BYTES = 4 * 1024 * 1024;
const MOST_LINES = 1_000;
const MIB = 1_048_576;
/** What a sample may be old, for one that is of now. */
const NEW_MS = 60_000;
/** Later than any sample. */
const MOST_FUTURE = Number.MAX_SAFE_INTEGER;

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
/** Most sandboxes that one call asks for, as E2B has it. */
const MOST_ASKED = 100;
const sandboxIds = z
  .string()
  .transform((text) => [...new Set(text.split(",").filter((id) => id !== ""))])
  .refine((ids) => ids.length <= MOST_ASKED, `must be ${MOST_ASKED} ids at most`)
  .describe("Ids separated by commas, 100 at most.");

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
      description:
        "One entry every 5 s in which it ran, the last hour's at most, and one of now while it runs. Its host counts them, and keeps none over a restart.",
      scope: "sandbox:read",
      query: z.object({ start: unixSeconds, end: unixSeconds }),
      answers: { 200: { description: "Oldest first", schema: z.array(metricSchema) } },
    },
    async (call) => {
      const record = await living(deps, call);
      const { start, end } = call.query;
      // Whole seconds, as they are told: one of the last second of `end` is in it.
      const from = Math.floor(start ?? 0) * 1_000;
      const to = end === undefined ? MOST_FUTURE : Math.floor(end) * 1_000 + 999;
      return { status: 200, body: await metricsOf(deps, record, { from, to }, call.signal) };
    },
  );

  addE2bRoute(
    deps,
    {
      method: "get",
      path: "/sandboxes/metrics",
      summary: "Get the metrics of several sandboxes",
      description: "As they are now, by id. What does not run, or is not the caller's, is left out.",
      scope: "sandbox:read",
      query: z.object({ sandbox_ids: sandboxIds }),
      answers: {
        200: {
          description: "By id",
          schema: z.object({ sandboxes: z.record(z.string(), metricSchema) }),
        },
      },
    },
    async (call) => {
      const from = deps.clock.now() - NEW_MS; // the host's clock may be another
      const found = await Promise.all(
        call.query.sandbox_ids.map(async (id) => {
          const record = await deps.sandboxStore.find(call.caller.scope, id);
          if (record?.state !== "running") return [];
          const now = await metricsOf(deps, record, { from, to: MOST_FUTURE }, call.signal).catch(ended);
          return now.slice(-1).map((metric) => [id, metric] as const);
        }),
      );
      return { status: 200, body: { sandboxes: Object.fromEntries(found.flat()) } };
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
  span: { from: number; to: number },
  signal: AbortSignal,
): Promise<z.input<typeof metricSchema>[]> {
  const host = await placement.of(record.host);
  const samples = await host.client.samples(record, span, signal);
  return samples.map((sample) => ({
    timestamp: new Date(sample.at_unix_ms).toISOString(),
    timestampUnix: Math.floor(sample.at_unix_ms / 1_000),
    cpuCount: record.cpu,
    cpuUsedPct: sample.cpu_used_percent,
    memUsed: sample.memory_used_bytes,
    memTotal: record.memoryMb * MIB,
    memCache: sample.memory_cache_bytes,
    diskUsed: sample.disk_used_bytes,
    diskTotal: record.diskMb * MIB,
  }));
}

/** One that ended while it was asked for has no metrics. @throws every other error */
function ended(error: unknown): [] {
  const isGone = error instanceof CodedError && ["sandbox_ended", "sandbox_not_found"].includes(error.code);
  if (!isGone) throw error;
  return [];
}
