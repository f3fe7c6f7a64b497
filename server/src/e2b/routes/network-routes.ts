import { canonicalNetwork } from "@torpor/protocol";
import { z } from "zod";
import { SENT } from "../../http/api.ts";
import type { RouteDeps } from "../../routes/route-deps.ts";
import { egressSchema, networkRequest } from "../network.ts";
import { addE2bRoute } from "./add-e2b-route.ts";

/** Change what a sandbox may reach, as E2B's clients do. */
export function addE2bNetworkRoutes(deps: RouteDeps): void {
  addE2bRoute(
    deps,
    {
      method: "put",
      path: "/sandboxes/{id}/network",
      summary: "Change what a sandbox may reach",
      description: "The whole of it anew: what is left out is no longer said. In force when it answers.",
      scope: "sandbox:write",
      body: egressSchema.extend({ allow_internet_access: z.boolean().nullish() }),
      answers: { 204: { description: "It is in force" } },
    },
    async (call) => {
      const { allow_internet_access: internet, ...egress } = call.body;
      const network = canonicalNetwork(networkRequest(internet ?? undefined, egress));
      await deps.sandboxes.setNetwork(call.caller.scope, call.param("id"), network);
      call.outgoing.writeHead(204).end();
      return SENT;
    },
  );
}
