import { CodedError, sandboxSampleSchema } from "@torpor/protocol";
import { z } from "zod";
import { requireWholeServer } from "../auth/whole-server.ts";
import { sendText } from "../http/answer.ts";
import { SENT } from "../http/api.ts";
import { pipeline } from "node:stream/promises";
import type { RouteDeps } from "./route-deps.ts";

const healthSchema = z.object({
  status: z.enum(["ok", "degraded"]),
  version: z.string(),
  store: z.object({ ok: z.boolean(), message: z.string().optional() }),
  host: z.object({
    ok: z.boolean(),
    id: z.string().optional(),
    driver: z.string().optional(),
    acceleration: z.string().optional(),
    message: z.string().optional(),
  }),
});

/** Health, metrics and consoles: for those who run the thing. */
export function addOperationRoutes(deps: RouteDeps): void {
  const { api } = deps;
  api.add(
    {
      method: "get",
      path: "/healthz",
      tag: "operation",
      summary: "Is everything there?",
      description:
        "Open to all; tells nothing of what is inside. 503 when the store or the host cannot be reached.",
      scope: null,
      answers: {
        200: { description: "All is well", schema: healthSchema },
        503: { description: "Something is missing", schema: healthSchema },
      },
    },
    async () => {
      const [store, host] = await Promise.all([storeHealth(deps), hostHealth(deps)]);
      const ok = store.ok && host.ok;
      return {
        status: ok ? 200 : 503,
        body: { status: ok ? "ok" : "degraded", version: deps.version, store, host },
      };
    },
  );

  api.add(
    {
      method: "get",
      path: "/metrics",
      tag: "operation",
      summary: "Figures for Prometheus",
      description: "Of all accounts: for the operator's, with a key bound to no tenant.",
      scope: "sandbox:read",
      answers: { 200: { description: "Prometheus text format", mediaType: "text/plain" } },
    },
    async (call) => {
      const scope = requireWholeServer(call.caller, "these figures");
      deps.metrics.setSandboxes(await deps.sandboxStore.countByState(scope));
      for (const link of deps.placement.links) {
        try {
          const health = await link.freshHealth();
          deps.metrics.setHost(health.host_id, true, health.pool);
        } catch {
          deps.metrics.setHost(link.lastHealth()?.host_id ?? "unknown", false, []);
        }
      }
      sendText(call.incoming, call.outgoing, 200, await deps.metrics.registry.metrics(), {
        "content-type": deps.metrics.registry.contentType,
      });
      return SENT;
    },
  );

  api.add(
    {
      method: "get",
      path: "/v1/sandboxes/{id}/metrics",
      tag: "sandboxes",
      summary: "Read what a sandbox uses over time",
      description:
        "A sample every 5 s in which it ran, the last hour's at most, and one of now while it runs, oldest first. Its host counts them, and keeps none over a restart. Wakes nothing.",
      scope: "sandbox:read",
      query: z.object({
        from: z.iso.datetime({ offset: true }).optional().describe("RFC 3339. Default: the oldest there is."),
        to: z.iso.datetime({ offset: true }).optional().describe("RFC 3339. Default: now."),
      }),
      answers: {
        200: { description: "The samples", schema: z.object({ items: z.array(sandboxSampleSchema) }) },
      },
    },
    async (call) => {
      const record = await deps.sandboxes.require(call.caller.scope, call.param("id"));
      const { from, to } = call.query;
      const span = {
        from: from === undefined ? 0 : Date.parse(from),
        to: to === undefined ? Number.MAX_SAFE_INTEGER : Date.parse(to),
      };
      const host = await deps.placement.of(record.host);
      const samples = await host.client.samples(record, span, call.signal);
      const items = samples.map(({ at_unix_ms: at, ...sample }) => ({
        at: new Date(at).toISOString(),
        ...sample,
      }));
      return { status: 200, body: { items } };
    },
  );

  api.add(
    {
      method: "get",
      path: "/v1/sandboxes/{id}/logs",
      tag: "sandboxes",
      summary: "Read a sandbox's console",
      description:
        "What the sandbox's first process wrote, the last 1 MiB at most. Also of an ended one, while its host keeps it.",
      scope: "sandbox:read",
      answers: { 200: { description: "The console", mediaType: "text/plain" } },
    },
    async (call) => {
      const record = await deps.sandboxes.require(call.caller.scope, call.param("id"));
      const host = await deps.placement.of(record.host);
      const answer = await host.client.logs(record, call.signal);
      call.outgoing.writeHead(200, {
        "content-type": "text/plain; charset=utf-8",
        "x-content-type-options": "nosniff",
      });
      if (call.incoming.method === "HEAD") {
        answer.destroy();
        call.outgoing.end();
      } else await pipeline(answer, call.outgoing);
      return SENT;
    },
  );
}

async function storeHealth(deps: RouteDeps): Promise<z.infer<typeof healthSchema>["store"]> {
  try {
    await deps.sandboxStore.ping();
    return { ok: true };
  } catch (error) {
    deps.log.error({ op: "health", outcome: "store unreadable", err: error });
    return { ok: false, message: "the store cannot be read; the server's log says why" };
  }
}

async function hostHealth(deps: RouteDeps): Promise<z.infer<typeof healthSchema>["host"]> {
  const [link] = deps.placement.links;
  try {
    if (link === undefined) throw new CodedError("host_unavailable", "no host is configured");
    const { host_id, driver, acceleration } = await link.health();
    return { ok: true, id: host_id, driver, acceleration };
  } catch (error) {
    deps.log.warn({ op: "health", outcome: "host unreachable", err: error });
    return { ok: false, message: "the host does not answer; the server's log says why" };
  }
}
