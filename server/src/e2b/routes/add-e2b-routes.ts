import type { RouteDeps } from "../../routes/route-deps.ts";
import { addE2bLifecycleRoutes } from "./lifecycle-routes.ts";
import { addE2bListRoutes } from "./list-routes.ts";
import { addE2bLookRoutes } from "./look-routes.ts";
import { addE2bMissingRoutes } from "./missing-routes.ts";
import { addE2bNetworkRoutes } from "./network-routes.ts";
import { addE2bSnapshotRoutes } from "./snapshot-routes.ts";
import { addE2bBuildRoutes } from "../template/build-routes.ts";
import { addE2bTemplateRoutes } from "../template/template-routes.ts";
import { addE2bSandboxRoutes } from "./sandbox-routes.ts";

/** Adds E2B's REST API: at the root, where its clients look for it. */
export function addE2bRoutes(deps: RouteDeps): void {
  addE2bTemplateRoutes(deps); // before those of snapshots, one of which has a variable where it says `tags`
  addE2bBuildRoutes(deps);
  addE2bLookRoutes(deps); // before those of sandboxes, one of which has a variable where it says `metrics`
  addE2bSandboxRoutes(deps);
  addE2bListRoutes(deps);
  addE2bLifecycleRoutes(deps);
  addE2bSnapshotRoutes(deps);
  addE2bNetworkRoutes(deps);
  addE2bMissingRoutes(deps);
}
