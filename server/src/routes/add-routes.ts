import { addE2bRoutes } from "../e2b/routes/add-e2b-routes.ts";
import { addAccountRoutes } from "./account-routes.ts";
import { addAdviseRoutes } from "./advise-routes.ts";
import { addArchiveRoutes } from "./archive-routes.ts";
import { addCodeRoutes } from "./code-routes.ts";
import { addEventRoutes } from "./event-routes.ts";
import { addExecRoutes } from "./exec-routes.ts";
import { addFileContentRoutes } from "./file-content-routes.ts";
import { addFileTreeRoutes } from "./file-tree-routes.ts";
import { addKeyRoutes } from "./key-routes.ts";
import { addLedgerRoutes } from "./ledger-routes.ts";
import { addOperationRoutes } from "./operation-routes.ts";
import { addPortRoutes } from "./port-routes.ts";
import { addPreviewUrlRoutes } from "./preview-url-routes.ts";
import { addProcessRoutes } from "./process-routes.ts";
import { addReferenceRoutes } from "./reference-routes.ts";
import { addForkRoutes } from "./fork-routes.ts";
import { addLifecycleRoutes } from "./lifecycle-routes.ts";
import { addSessionRoutes } from "./session-routes.ts";
import { addSnapshotRoutes } from "./snapshot-routes.ts";
import { addStateRoutes } from "./state-routes.ts";
import type { RouteDeps } from "./route-deps.ts";
import { addTemplateRoutes } from "./template-routes.ts";
import { addUsageRoutes } from "./usage-routes.ts";
import { addWebhookRoutes } from "./webhook-routes.ts";
import { addSandboxRoutes } from "./sandbox-routes.ts";

/** Adds every route there is and closes the table. */
export function addRoutes(deps: RouteDeps): void {
  addSandboxRoutes(deps);
  addLifecycleRoutes(deps);
  addStateRoutes(deps);
  addEventRoutes(deps);
  addWebhookRoutes(deps);
  addSnapshotRoutes(deps);
  addForkRoutes(deps);
  addSessionRoutes(deps);
  addExecRoutes(deps);
  addCodeRoutes(deps);
  addProcessRoutes(deps);
  addFileContentRoutes(deps);
  addFileTreeRoutes(deps);
  addArchiveRoutes(deps);
  addPreviewUrlRoutes(deps);
  addPortRoutes(deps); // after those of preview URLs, one of which lies below it
  addTemplateRoutes(deps);
  addAccountRoutes(deps);
  addAdviseRoutes(deps);
  addKeyRoutes(deps);
  addLedgerRoutes(deps);
  addUsageRoutes(deps);
  addOperationRoutes(deps);
  addReferenceRoutes(deps);
  addE2bRoutes(deps);
  deps.api.finish();
}
