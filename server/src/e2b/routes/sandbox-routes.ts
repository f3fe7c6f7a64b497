import { isEnding } from "@torpor/protocol";
import { z } from "zod";
import { type Answer, type Call, SENT } from "../../http/api.ts";
import { wantedMachine } from "../../sandbox/create-plan.ts";
import type { RouteDeps } from "../../routes/route-deps.ts";
import { connect } from "../connect.ts";
import {
  createRequest,
  type NewSandbox,
  newSandboxV1,
  newSandboxV2,
  timeoutField,
} from "../create-request.ts";
import { e2bSandboxNotFound } from "../e2b-error.ts";
import {
  isPaused,
  sandboxDetail,
  sandboxDetailSchema,
  shownSandbox,
  shownSandboxSchema,
} from "../shown-e2b-sandbox.ts";
import { addE2bRoute } from "./add-e2b-route.ts";

const connectSchema = z.object({
  timeout: timeoutField(300),
  memory: z.boolean().nullish(),
});

/** Create, connect to, get and kill sandboxes, as E2B's clients do. */
export function addE2bSandboxRoutes(deps: RouteDeps): void {
  const { sandboxes, e2b } = deps;

  const create = async (call: Call<unknown, NewSandbox>): Promise<Answer> =>
    await deps.api.once(
      call,
      async () => {
        const { scope } = call.caller;
        const { templateID, metadata } = call.body;
        const choice = await deps.templates.choose(scope, templateID, metadata?.["tenant_id"]);
        const { request, settings } = createRequest(call.body, choice);
        await sandboxes.foretell(scope, wantedMachine(request));
        const plan = { ...(await sandboxes.plan(scope, request)), e2b: settings };
        const isAbandoned = (): boolean => call.idempotencyKey === undefined && call.signal.aborted;
        const record = await sandboxes.create(scope, plan, { isAbandoned });
        call.note({ sandboxId: record.id, tenant: record.tenant });
        return { status: 201, body: shownSandbox(record, e2b()) };
      },
      false,
    );

  for (const [path, body] of [
    ["/sandboxes", newSandboxV1],
    ["/v2/sandboxes", newSandboxV2],
  ] as const)
    addE2bRoute(
      deps,
      {
        method: "post",
        path,
        summary: "Create a sandbox",
        scope: "sandbox:write",
        body,
        answers: { 201: { description: "The sandbox, usable", schema: shownSandboxSchema } },
      },
      create,
    );

  for (const path of ["/sandboxes/{id}/connect", "/v2/sandboxes/{id}/connect"])
    addE2bRoute(
      deps,
      {
        method: "post",
        path,
        summary: "Make sure that a sandbox runs",
        description:
          "Resumes it if it is paused; with `memory: false` it boots then from its files, and what ran is gone. Puts its end off to the timeout from now, and never brings it forward.",
        scope: "sandbox:write",
        body: connectSchema,
        answers: {
          200: { description: "It ran", schema: shownSandboxSchema },
          201: { description: "It was resumed", schema: shownSandboxSchema },
        },
      },
      async (call) => {
        const { record, isResumed } = await connect(deps, call.caller.scope, call.param("id"), {
          seconds: call.body.timeout,
          withMemory: call.body.memory !== false,
        });
        deps.activity.note(record);
        return { status: isResumed ? 201 : 200, body: shownSandbox(record, e2b()) };
      },
    );

  addE2bRoute(
    deps,
    {
      method: "get",
      path: "/sandboxes/{id}",
      summary: "Get a sandbox",
      scope: "sandbox:read",
      answers: { 200: { description: "The sandbox", schema: sandboxDetailSchema } },
    },
    async (call) => {
      const record = await sandboxes.require(call.caller.scope, call.param("id"));
      // Its host ends it at its time; the word of that may still be on its way.
      const isDue =
        record.onExpire === "destroy" &&
        record.expiresAt !== null &&
        record.expiresAt <= deps.clock.now() &&
        !isPaused(record);
      if (isDue || isEnding(record.state)) throw e2bSandboxNotFound(record.id);
      return { status: 200, body: sandboxDetail(record, e2b()) };
    },
  );

  addE2bRoute(
    deps,
    {
      method: "delete",
      path: "/sandboxes/{id}",
      summary: "Kill a sandbox",
      description: "Paused ones too. Again: 404.",
      scope: "sandbox:write",
      answers: { 204: { description: "It is gone" } },
    },
    async (call) => {
      const { scope } = call.caller;
      const record = await sandboxes.require(scope, call.param("id"));
      if (record.state === "destroyed") throw e2bSandboxNotFound(record.id);
      await sandboxes.destroy(record, "user", scope.keyId);
      call.outgoing.writeHead(204).end();
      return SENT;
    },
  );
}
