import { CodedError, LIMITS } from "@torpor/protocol";
import { z } from "zod";
import { SENT } from "../../http/api.ts";
import type { RouteDeps } from "../../routes/route-deps.ts";
import { fork } from "../../sandbox/fork.ts";
import { extend, requireAwake, resume } from "../connect.ts";
import { timeoutField, timeoutSeconds } from "../create-request.ts";
import { isPaused, shownSandbox, shownSandboxSchema } from "../shown-e2b-sandbox.ts";
import { addE2bRoute } from "./add-e2b-route.ts";

/** Shortest stretch that `refreshes` adds, seconds. */
const LEAST_REFRESH_SECONDS = 15;
const MOST_REFRESH_SECONDS = 3_600;

const forkedSchema = z.array(
  z.union([
    z.object({ sandbox: shownSandboxSchema }),
    z.object({ error: z.object({ code: z.number(), message: z.string() }) }),
  ]),
);

/** Timeouts, pause, resume and fork, as E2B's clients do. */
export function addE2bLifecycleRoutes(deps: RouteDeps): void {
  const { sandboxes, e2b } = deps;

  addE2bRoute(
    deps,
    {
      method: "post",
      path: "/sandboxes/{id}/timeout",
      summary: "Set a sandbox's timeout",
      description: "Counted from now; sooner or later than it was.",
      scope: "sandbox:write",
      body: z.object({ timeout: timeoutSeconds }),
      answers: { 204: { description: "It is set" } },
    },
    async (call) => {
      const { scope } = call.caller;
      const { record } = await sandboxes.requireLiving(scope, call.param("id"));
      requireAwake(record);
      await sandboxes.setLifecycle(scope, record.id, { ttl_seconds: call.body.timeout });
      call.outgoing.writeHead(204).end();
      return SENT;
    },
  );

  addE2bRoute(
    deps,
    {
      method: "post",
      path: "/sandboxes/{id}/refreshes",
      summary: "Put a sandbox's end off",
      description: "Never brings it forward.",
      scope: "sandbox:write",
      body: z.object({ duration: z.number().int().min(0).max(MOST_REFRESH_SECONDS).nullish() }),
      answers: { 204: { description: "It ends no sooner than that" } },
    },
    async (call) => {
      const { scope } = call.caller;
      const { record } = await sandboxes.requireLiving(scope, call.param("id"));
      requireAwake(record);
      await extend(deps, scope, record, Math.max(call.body.duration ?? 0, LEAST_REFRESH_SECONDS));
      call.outgoing.writeHead(204).end();
      return SENT;
    },
  );

  addE2bRoute(
    deps,
    {
      method: "post",
      path: "/sandboxes/{id}/pause",
      summary: "Pause a sandbox",
      description:
        "Memory, processes and files go to storage and are kept without end; its timeout stands still. With `memory: false` files alone: it boots from them when it is resumed, and no traffic resumes it. Paused already: 409.",
      scope: "sandbox:write",
      body: z.object({ memory: z.boolean().nullish() }),
      answers: { 204: { description: "It is paused" } },
    },
    async (call) => {
      const { scope } = call.caller;
      const { record } = await sandboxes.requireLiving(scope, call.param("id"));
      if (record.state === "hibernated")
        throw new CodedError("conflict", `Sandbox "${record.id}" is already paused`);
      await sandboxes.move(scope, record.id, "hibernate", call.body.memory ?? true);
      call.outgoing.writeHead(204).end();
      return SENT;
    },
  );

  addE2bRoute(
    deps,
    {
      method: "post",
      path: "/sandboxes/{id}/resume",
      summary: "Resume a paused sandbox",
      description: "Of older clients; newer ones connect. One that runs: 409.",
      scope: "sandbox:write",
      body: z.object({ timeout: timeoutField(15) }),
      answers: { 201: { description: "It runs", schema: shownSandboxSchema } },
    },
    async (call) => {
      const { scope } = call.caller;
      const { record } = await sandboxes.requireLiving(scope, call.param("id"));
      if (!isPaused(record)) throw new CodedError("conflict", `Sandbox "${record.id}" is already running`);
      const resumed = await resume(deps, scope, record, call.body.timeout);
      deps.activity.note(resumed);
      return { status: 201, body: shownSandbox(resumed, e2b()) };
    },
  );

  addE2bRoute(
    deps,
    {
      method: "post",
      path: "/sandboxes/{id}/fork",
      summary: "Copy a running sandbox",
      description: "Each copy has an id, a timeout and a fate of its own.",
      scope: "sandbox:write",
      body: z.object({
        count: z.number().int().min(1).max(LIMITS.maxForkCount).nullish(),
        timeout: timeoutField(300),
      }),
      answers: { 201: { description: "The copies", schema: forkedSchema } },
    },
    async (call) =>
      await deps.api.once(
        call,
        async () => {
          const { scope } = call.caller;
          const { record } = await sandboxes.requireLiving(scope, call.param("id"));
          requireAwake(record);
          const isAbandoned = (): boolean => call.idempotencyKey === undefined && call.signal.aborted;
          const { count, timeout } = call.body;
          const request = { count: count ?? 1, ttl_seconds: timeout };
          const children = await fork(deps, scope, record.id, request, isAbandoned);
          call.note({ children: children.length });
          return {
            status: 201,
            body: children.map((child) =>
              "sandbox" in child
                ? { sandbox: shownSandbox(child.sandbox, e2b()) }
                : { error: { code: child.error.status, message: child.error.message } },
            ),
          };
        },
        false,
      ),
  );
}
