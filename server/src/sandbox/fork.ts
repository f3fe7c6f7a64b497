import { CodedError, type ForkRequest } from "@torpor/protocol";
import type { Clock } from "@torpor/base";
import type { TenantScope } from "../auth/tenant-scope.ts";
import type { Snapshots } from "../snapshot/snapshots.ts";
import type { SandboxRecord } from "../store/sandbox-record.ts";
import type { SnapshotRecord } from "../store/snapshot-store.ts";
import type { CreatePlan } from "./create-plan.ts";
import type { Sandboxes } from "./sandboxes.ts";

/** Children restored at once: the host's disk and cores set the pace, and others want to create too. */
const AT_ONCE = 8;

/** A child of a fork, or why it could not be made. */
export type ForkChild = { sandbox: SandboxRecord } | { error: CodedError };

export interface ForkParts {
  sandboxes: Pick<Sandboxes, "create">;
  snapshots: Pick<Snapshots, "during">;
  clock: Clock;
}

/**
 * Makes copies of a sandbox, which goes on after a short pause. Each child is a sandbox of its own: other id, clocks,
 * network, labels and environment as the parent's. One that cannot be made is told in its place.
 *
 * @throws CodedError when the parent cannot be copied at all
 */
export async function fork(
  { sandboxes, snapshots, clock }: ForkParts,
  scope: TenantScope,
  id: string,
  request: ForkRequest,
  isAbandoned: () => boolean,
): Promise<ForkChild[]> {
  return await snapshots.during(scope, id, request.count, async (snapshot, parent) => {
    const plan = childPlan(parent, snapshot, request, clock.now());
    const children: ForkChild[] = [];
    let next = 0;
    const work = async (): Promise<void> => {
      while (next < request.count) {
        const index = next++;
        children[index] = await child(sandboxes, scope, plan, isAbandoned);
      }
    };
    await Promise.all(Array.from({ length: Math.min(AT_ONCE, request.count) }, work));
    return children;
  });
}

async function child(
  sandboxes: ForkParts["sandboxes"],
  scope: TenantScope,
  plan: CreatePlan,
  isAbandoned: () => boolean,
): Promise<ForkChild> {
  try {
    return { sandbox: await sandboxes.create(scope, plan, { isAbandoned }) };
  } catch (error) {
    if (error instanceof CodedError) return { error };
    throw error;
  }
}

function childPlan(
  parent: SandboxRecord,
  snapshot: SnapshotRecord,
  request: ForkRequest,
  now: number,
): CreatePlan {
  // The parent's own deadline, unless the children get one of their own.
  const leftSeconds = parent.expiresAt === null ? null : Math.max(1, (parent.expiresAt - now) / 1_000);
  return {
    tenant: parent.tenant,
    name: null,
    template: parent.template,
    persistent: parent.persistent,
    ttlSeconds: request.ttl_seconds ?? leftSeconds,
    onExpire: parent.onExpire,
    idleTimeoutSeconds: parent.idleTimeoutSeconds,
    onIdle: parent.onIdle,
    retentionSeconds: parent.retentionSeconds,
    autoWake: parent.autoWake,
    hibernateMemory: parent.hibernateMemory,
    metadata: { ...parent.metadata, ...request.metadata },
    env: {}, // the host keeps the parent's with the snapshot, and its secrets
    secrets: request.secrets ?? {},
    cpu: parent.cpu,
    memoryMb: parent.memoryMb,
    diskMb: parent.diskMb,
    network: parent.network,
    fromSnapshot: snapshot,
    e2b: parent.e2b,
  };
}
