import type { Sandbox } from "@torpor/protocol";
import { type SandboxRecord, toSandbox } from "../store/sandbox-record.ts";
import type { RouteDeps } from "./route-deps.ts";

/** What the API shows of a record, with the activity that is not written yet. */
export function shownSandbox({ activity }: Pick<RouteDeps, "activity">, record: SandboxRecord): Sandbox {
  return toSandbox(record, activity.lastActivityAt(record));
}
