import { addExecRoutes } from "./exec-routes.ts";
import type { RouteDeps } from "./route-deps.ts";
import { addSandboxRoutes } from "./sandbox-routes.ts";

/** Adds every route there is and closes the table. */
export function addRoutes(deps: RouteDeps): void {
  addSandboxRoutes(deps);
  addExecRoutes(deps);
  deps.api.finish();
}
