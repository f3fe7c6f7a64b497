import type { Insertable } from "kysely";
import type { NetworkPolicy, OnExpire, OnIdle } from "@torpor/protocol";
import type { TenantScope } from "../auth/tenant-scope.ts";
import type { E2bSettings } from "../e2b/e2b-settings.ts";
import { newMetered } from "../usage/metered.ts";
import { networkColumn } from "./network-column.ts";
import type { SandboxTable } from "./schema.ts";
import { meterColumns } from "./usage-column.ts";

export interface NewSandbox {
  id: string;
  tenant: string;
  name: string | null;
  template: string;
  metadata: Record<string, string>;
  cpu: number;
  memoryMb: number;
  diskMb: number;
  network: NetworkPolicy;
  host: string;
  createdAt: number;
  expiresAt: number | null;
  onExpire: OnExpire;
  persistent: boolean;
  idleTimeoutSeconds: number | null;
  onIdle: OnIdle;
  retentionSeconds: number | null;
  autoWake: boolean;
  hibernateMemory: boolean;
  /** Default null: none. */
  maxLifetimeAt?: number | null;
  /** Default null: not made through E2B's API. */
  e2b?: E2bSettings | null;
}

/** Its first row: state `creating`, generation 1. */
export function newSandboxRow(scope: TenantScope, sandbox: NewSandbox): Insertable<SandboxTable> {
  return {
    id: sandbox.id,
    account: scope.account,
    tenant: sandbox.tenant,
    name: sandbox.name,
    state: "creating",
    generation: 1,
    reason: null,
    template: sandbox.template,
    driver: null,
    metadata: JSON.stringify(sandbox.metadata),
    cpu: sandbox.cpu,
    memory_mb: sandbox.memoryMb,
    disk_mb: sandbox.diskMb,
    network: networkColumn(sandbox.network),
    on_expire: sandbox.onExpire,
    persistent: sandbox.persistent ? 1 : 0,
    idle_timeout_seconds: sandbox.idleTimeoutSeconds,
    on_idle: sandbox.onIdle,
    retention_seconds: sandbox.retentionSeconds,
    auto_wake: sandbox.autoWake ? 1 : 0,
    hibernate_memory: sandbox.hibernateMemory ? 1 : 0,
    image: null,
    host: sandbox.host,
    attestation: null,
    created_at: sandbox.createdAt,
    started_at: null,
    expires_at: sandbox.expiresAt,
    last_activity_at: sandbox.createdAt,
    ended_at: null,
    max_lifetime_at: sandbox.maxLifetimeAt ?? null,
    incarnation: 0,
    machine_id: null,
    address: null,
    image_id: null,
    created_by: scope.keyId,
    ended_by: null,
    e2b: sandbox.e2b == null ? null : JSON.stringify(sandbox.e2b),
    ...meterColumns(newMetered(sandbox.createdAt)),
  };
}
