import { CodedError } from "@torpor/protocol";
import type { TenantScope } from "../../auth/tenant-scope.ts";
import type { BuildRecord, TemplateStore } from "../../store/template-store.ts";

/** Builds of one tenant that wait or run at a time: each keeps its steps in memory and works in a sandbox. */
const MAX_UNFINISHED_BUILDS = 20;

/** @throws CodedError rate_limited where its tenant has as many builds in those states as one may have */
export async function requireFewUnfinished(
  store: Pick<TemplateStore, "countIn">,
  of: TenantScope | BuildRecord,
  states: readonly BuildRecord["status"][],
): Promise<void> {
  if ((await store.countIn(of, states)) < MAX_UNFINISHED_BUILDS) return;
  throw new CodedError(
    "rate_limited",
    `this tenant has ${MAX_UNFINISHED_BUILDS} builds of templates that are not over, which is the most at a time; wait until some have ended, or delete templates whose builds are not going to be started`,
  );
}
