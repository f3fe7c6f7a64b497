import { adviceSchema, adviseSchema } from "@torpor/protocol";
import type { RouteDeps } from "./route-deps.ts";

/** Which shape to pick, and what each costs. */
export function addAdviseRoutes(deps: RouteDeps): void {
  deps.api.add(
    {
      method: "post",
      path: "/v1/advise",
      tag: "cost",
      summary: "Which shape a workload should have, why, and what each alternative costs",
      description:
        'Walks six questions in order: does anything need to survive, is the code untrusted, is warmth the experience, is it strictly one tenant, will it idle between bursts, still unsure. Costs and break-even gaps come from times measured on this machine, where there are any (`facts` says which). Creates nothing and wakes nothing; an Idempotency-Key adds nothing. The same walk settles a create with `lifecycle: "auto"`.',
      scope: "sandbox:read",
      body: adviseSchema,
      answers: { 200: { description: "The advice", schema: adviceSchema } },
    },
    async (call) => ({ status: 200, body: await deps.advisor.advise(call.caller.scope, call.body) }),
  );
}
