import type { RouteDeps } from "../../routes/route-deps.ts";
import { notYet } from "../e2b-error.ts";
import { addE2bRoute } from "./add-e2b-route.ts";

/** What E2B has and this server has not, and what to do instead. */
const MISSING = {
  volumes: "a persistent sandbox, or a snapshot, keeps files",
  secrets: "give a create environment variables; Torpor's own API takes secrets that are told nowhere",
} as const;

/** Says so where E2B's clients ask for what is not here. */
export function addE2bMissingRoutes(deps: RouteDeps): void {
  for (const [name, instead] of Object.entries(MISSING))
    for (const method of ["get", "post"] as const)
      addE2bRoute(
        deps,
        {
          method,
          path: `/${name}`,
          summary: `Not supported: ${name}`,
          scope: method === "get" ? "sandbox:read" : "sandbox:write",
          answers: { 400: { description: "Why, and what to do instead" } },
        },
        () => Promise.reject(notYet(name, instead)),
      );
}
