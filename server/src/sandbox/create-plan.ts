import {
  canonicalNetwork,
  CodedError,
  type CreateSandboxRequest,
  DEFAULT_TEMPLATE,
  LIMITS,
  type NetworkPolicy,
  type OnExpire,
  type OnIdle,
  type TakenAdvice,
  tenantSchema,
} from "@torpor/protocol";
import type { E2bSettings } from "../e2b/e2b-settings.ts";
import type { TenantScope } from "../auth/tenant-scope.ts";
import type { SnapshotRecord } from "../store/snapshot-store.ts";

/** A create with nothing left open. */
export interface CreatePlan {
  tenant: string;
  name: string | null;
  template: string;
  persistent: boolean;
  ttlSeconds: number | null;
  onExpire: OnExpire;
  idleTimeoutSeconds: number | null;
  onIdle: OnIdle;
  retentionSeconds: number | null;
  autoWake: boolean;
  hibernateMemory: boolean;
  metadata: Record<string, string>;
  env: Record<string, string>;
  /** Handed to the host and kept nowhere here. */
  secrets: Record<string, string>;
  cpu: number;
  memoryMb: number;
  diskMb: number;
  network: NetworkPolicy;
  fromSnapshot: SnapshotRecord | null;
  /** Null unless it is made through E2B's API. */
  e2b: E2bSettings | null;
  /** With `lifecycle: "auto"`: what was advised, and what of it this plan follows. */
  advice?: TakenAdvice | null;
}

/** What decides which machine a create gets. */
export type WantedMachine = Pick<CreatePlan, "template" | "cpu" | "memoryMb" | "diskMb"> & {
  fromSnapshot: unknown;
};

/** That of a request that is not planned yet. */
export function wantedMachine(request: CreateSandboxRequest): WantedMachine {
  return {
    template: request.template ?? DEFAULT_TEMPLATE,
    cpu: request.cpu ?? LIMITS.defaultCpu,
    memoryMb: request.memory_mb ?? LIMITS.defaultMemoryMb,
    diskMb: request.disk_mb ?? LIMITS.defaultDiskMb,
    fromSnapshot: request.from_snapshot ?? null,
  };
}

/**
 * Fills in what a create leaves open: from the snapshot it starts from, by its shape, by default.
 *
 * @throws CodedError invalid_request naming the field; permission_denied for another tenant than the key's;
 *   snapshot_not_found for a snapshot of another tenant than the one named
 */
export function createPlan(
  scope: TenantScope,
  request: CreateSandboxRequest,
  snapshot: SnapshotRecord | null,
  advice: TakenAdvice | null,
): CreatePlan {
  const { persistent = false } = request;
  const named = namedTenant(scope, request);
  if (snapshot !== null && named !== null && named !== snapshot.tenant) throw snapshotNotFound(snapshot.id);
  const tenant = named ?? snapshot?.tenant ?? null;
  if (persistent && tenant === null) {
    throw refused(
      "tenant",
      "is required for a persistent sandbox, since its data outlives the task: name whose data is inside (or set metadata.tenant_id)",
    );
  }
  if (persistent && request.workload?.untrusted === true && !request.accept_risk) {
    throw refused(
      "accept_risk",
      "must be true to keep untrusted code in a persistent sandbox: what it leaves behind meets every later use of it. Leave persistent out for an ephemeral one, or take the risk for this tenant",
    );
  }
  if (request.ttl_seconds === null && !persistent)
    throw refused("ttl_seconds", "may be null only with persistent: true; an ephemeral sandbox needs an end");
  if (snapshot !== null && request.template !== undefined && request.template !== snapshot.template) {
    throw refused(
      "template",
      `is ${request.template}, but snapshot ${snapshot.id} is of template ${snapshot.template}; leave it out`,
    );
  }
  const byShape = <T>(value: T | undefined, ephemeral: T, stateful: T): T =>
    value === undefined ? (persistent ? stateful : ephemeral) : value;
  return {
    tenant: tenant ?? scope.account,
    name: request.name ?? null,
    template: request.template ?? snapshot?.template ?? DEFAULT_TEMPLATE,
    persistent,
    ttlSeconds: byShape<number | null>(request.ttl_seconds, LIMITS.defaultTtlSeconds, null),
    onExpire: request.on_expire ?? "destroy",
    idleTimeoutSeconds: byShape<number | null>(
      request.idle_timeout_seconds,
      null,
      LIMITS.defaultIdleTimeoutSeconds,
    ),
    onIdle: request.on_idle ?? "hibernate",
    retentionSeconds: request.retention_seconds ?? null,
    autoWake: request.auto_wake,
    hibernateMemory: request.hibernate_memory,
    metadata: request.metadata,
    env: request.env,
    secrets: request.secrets,
    cpu: request.cpu ?? snapshot?.cpu ?? LIMITS.defaultCpu,
    memoryMb: request.memory_mb ?? snapshot?.memoryMb ?? LIMITS.defaultMemoryMb,
    diskMb: request.disk_mb ?? snapshot?.diskMb ?? LIMITS.defaultDiskMb,
    network: canonicalNetwork(request.network ?? snapshot?.network ?? "internet"),
    fromSnapshot: snapshot,
    e2b: null,
    advice,
  };
}

/** The tenant a create names: the body's, else `metadata.tenant_id`, else the one the key is bound to; null for none. */
function namedTenant(scope: TenantScope, request: CreateSandboxRequest): string | null {
  const fromMetadata = request.metadata["tenant_id"];
  const named = request.tenant ?? fromMetadata;
  if (request.tenant === undefined && fromMetadata !== undefined) {
    const checked = tenantSchema.safeParse(fromMetadata);
    if (!checked.success)
      throw refused("metadata.tenant_id", checked.error.issues[0]?.message ?? "is not a tenant name");
  }
  if (scope.tenant === null) return named ?? null;
  if (named !== undefined && named !== scope.tenant) {
    throw new CodedError(
      "permission_denied",
      `this API key is bound to tenant ${scope.tenant}, so it cannot create a sandbox of tenant ${named}; leave the tenant out or use a key of that tenant`,
    );
  }
  return scope.tenant;
}

/** The one answer for a snapshot that does not exist and for one that is another tenant's. */
export function snapshotNotFound(id: string): CodedError {
  return new CodedError(
    "snapshot_not_found",
    `there is no snapshot ${id.slice(0, 80)}: it never existed, was deleted, or its retention is over; list yours with GET /v1/snapshots`,
  );
}

/** A field that is refused for what it says together with others. */
export function refused(path: string, message: string): CodedError {
  return new CodedError("invalid_request", `${path} ${message}`, {
    details: { issues: [{ path, message }] },
  });
}
