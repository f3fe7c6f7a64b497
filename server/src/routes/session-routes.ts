import { openSessionSchema, sandboxSchema, takenAdviceSchema } from "@torpor/protocol";
import { z } from "zod";
import type { RouteDeps } from "./route-deps.ts";
import { shownSandbox } from "./shown-sandbox.ts";

const openedSchema = z.object({
  sandbox: sandboxSchema,
  created: z.boolean(),
  advice: takenAdviceSchema.optional(),
});

/** Get-or-create by a tenant's own key. */
export function addSessionRoutes(deps: RouteDeps): void {
  deps.api.add(
    {
      method: "post",
      path: "/v1/sessions",
      tag: "lifecycle",
      summary: "Get a tenant's sandbox by its key, or make it",
      description:
        "One living sandbox for each tenant and key, awake when this answers, however many ask at once. The other fields are those of a create and matter only when it is made: one that was there keeps its own, and `env` and `secrets` given are not applied; `persistent` is true unless said otherwise. When the sandbox has ended, the next call makes a new one.",
      scope: "sandbox:write",
      body: openSessionSchema,
      answers: {
        200: { description: "It was there", schema: openedSchema },
        201: { description: "It was made", schema: openedSchema },
      },
    },
    async (call) => {
      // Repeating it finds the same sandbox, so an Idempotency-Key needs no memory.
      const { sandbox, created, advice } = await deps.sessions.open(call.caller.scope, call.body);
      deps.activity.note(sandbox);
      call.note({ sandboxId: sandbox.id, tenant: sandbox.tenant, created });
      return {
        status: created ? 201 : 200,
        body: {
          sandbox: shownSandbox(deps, sandbox),
          created,
          ...(created && advice !== null ? { advice } : {}),
        },
      };
    },
  );
}
