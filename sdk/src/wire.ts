import type { TakenAdviceWire } from "./advice-wire.ts";

/** Shapes of the wire that this client reads. Names are the wire's. `test/wire-shapes.ts` holds them against the protocol. */

export type SandboxStateWire =
  | "creating"
  | "running"
  | "pausing"
  | "paused"
  | "resuming"
  | "hibernating"
  | "hibernated"
  | "waking"
  | "snapshotting"
  | "failed"
  | "destroying"
  | "destroyed";

export interface AttestationWire {
  generation: number;
  steps: {
    name: string;
    outcome: "done" | "not_needed" | "failed";
    detail?: string | undefined;
    duration_us?: number | undefined;
  }[];
  clock_offset_ms?: number | undefined;
  complete: boolean;
}

export type NetworkWire =
  | "internet"
  | "none"
  | { egress: "internet" | "none"; allow: string[]; deny: string[] };

export interface SandboxWire {
  id: string;
  name: string | null;
  state: SandboxStateWire;
  reason: string | null;
  template: string;
  driver: string;
  tenant: string;
  persistent: boolean;
  metadata: Record<string, string>;
  cpu: number;
  memory_mb: number;
  disk_mb: number;
  network: NetworkWire;
  on_expire: "destroy" | "hibernate";
  idle_timeout_seconds: number | null;
  on_idle: "hibernate" | "pause" | "destroy" | "none";
  retention_seconds: number | null;
  auto_wake: boolean;
  hibernate_memory: boolean;
  image: { size_bytes: number; created_at: string; memory: boolean } | null;
  generation: number;
  host: string | null;
  created_at: string;
  started_at: string | null;
  expires_at: string | null;
  idle_at: string | null;
  last_activity_at: string;
  ended_at: string | null;
  attestation: AttestationWire | null;
}

export interface EventWire {
  id: string;
  type:
    | `sandbox.${SandboxStateWire}`
    | "sandbox.updated"
    | "sandbox.idle_awake"
    | "budget.warning"
    | "budget.exhausted";
  at: string;
  sandbox_id: string | null;
  name: string | null;
  metadata: Record<string, string>;
  tenant: string | null;
  generation: number | null;
  state: SandboxStateWire | null;
  previous_state: SandboxStateWire | null;
  reason: string | null;
  changes: Record<string, unknown>;
}

export interface CreatedSandboxWire extends SandboxWire {
  advice?: TakenAdviceWire | undefined;
}

export interface PreviewUrlWire {
  id: string;
  sandbox_id: string;
  port: number;
  host: string;
  auto_wake: boolean;
  created_at: string;
  expires_at: string;
  revoked_at: string | null;
}

export interface CreatedPreviewUrlWire extends PreviewUrlWire {
  url: string;
  token: string;
}

export interface PageWire<Item> {
  unreadable?: string[] | undefined;
  items: Item[];
  next_cursor: string | null;
}

type HoldKindWire = "request" | "port" | "exec";
type ActivityKindWire = HoldKindWire | "create" | "wake" | "resume" | "snapshot" | "adopt";

export interface LifecycleWire {
  id: string;
  state: SandboxStateWire;
  reason: string | null;
  persistent: boolean;
  auto_wake: boolean;
  hibernate_memory: boolean;
  clocks: {
    ttl: { seconds: number | null; at: string | null; on_expire: "destroy" | "hibernate" };
    idle: {
      seconds: number | null;
      at: string | null;
      on_idle: "hibernate" | "pause" | "destroy" | "none";
    };
    retention: { seconds: number | null; at: string | null };
    max_lifetime: { seconds: number | null; at: string | null };
  };
  last_activity_at: string;
  last_activity: { kind: ActivityKindWire; what: string } | null;
  holds: { kind: HoldKindWire; what: string; since: string }[];
  reaped_because: string | null;
}

export interface SnapshotWire {
  id: string;
  name: string | null;
  sandbox_id: string;
  tenant: string;
  template: string;
  size_bytes: number;
  generation: number;
  created_at: string;
  retention_seconds: number | null;
}

export interface ForkWire {
  children: ({ sandbox: SandboxWire } | { error: { code: string; message: string } })[];
}

export interface SessionWire {
  sandbox: SandboxWire;
  created: boolean;
  advice?: TakenAdviceWire | undefined;
}

export interface CodeContextWire {
  id: string;
  language: string;
  cwd: string;
}

export interface ExecResultWire {
  exec_id: string;
  exit_code: number | null;
  signal: string | null;
  outcome: "exited" | "signalled" | "timed_out" | "oom" | "lost";
  stdout: string;
  stderr: string;
  encoding: "utf8" | "base64";
  truncated: boolean;
  stdout_bytes: number;
  stderr_bytes: number;
  duration_ms: number;
  message?: string | undefined;
}

/** Answer to a command in the background. */
export interface StartedExecWire {
  exec_id: string;
  pid: number;
}

export interface ProcessWire {
  pid: number;
  exec_id: string | null;
  cmd: string;
  args: string[];
  cwd: string | null;
  user: string | null;
  tag: string | null;
  started_at: string | null;
}

export interface FileEntryWire {
  name: string;
  path: string;
  type: "file" | "dir" | "symlink" | "other";
  size: number;
  mode: number;
  permissions: string;
  owner: string;
  group: string;
  modified_at: string;
  symlink_target: string | null;
}

export interface TemplateWire {
  name: string;
  hash: string;
  description: string;
  size_bytes: number;
  built_at: string;
  golden: string[];
}

export type KeyScope =
  | "sandbox:read"
  | "sandbox:write"
  | "sandbox:exec"
  | "template:write"
  | "admin"
  | "operator";

export interface WebhookWire {
  id: string;
  url: string;
  types: EventWire["type"][];
  description: string;
  tenant: string | null;
  enabled: boolean;
  disabled_because: string | null;
  created_at: string;
  pending: number;
  failed: number;
  last_delivered_at: string | null;
  last_error: string | null;
}

export interface QuotaWire<Value> {
  sandboxes: Value;
  sandboxes_awake: Value;
  cpu: Value;
  memory_mb: Value;
  disk_mb: Value;
  image_bytes: Value;
  creates_per_minute: Value;
}

export interface AccountWire {
  id: string;
  created_at: string;
  limits: QuotaWire<number | null> & { max_lifetime_seconds: number | null };
  tenant_limits: QuotaWire<number | null>;
  usage: QuotaWire<number>;
}

export interface TenantWire {
  tenant: string;
  limits: QuotaWire<number | null>;
  usage: QuotaWire<number>;
}

export interface KeyWire {
  id: string;
  name: string;
  prefix: string;
  account: string;
  tenant: string | null;
  scopes: KeyScope[];
  created_at: string;
  expires_at: string | null;
  last_used_at: string | null;
  revoked_at: string | null;
}

export interface SandboxSampleWire {
  at: string;
  cpu_used_percent: number;
  memory_used_bytes: number;
  memory_cache_bytes: number;
  disk_used_bytes: number;
}

export interface LedgerEntryWire {
  v: 1;
  seq: number;
  prev: string;
  at: string;
  action: "bind" | "release" | "deny";
  account: string;
  tenant: string | null;
  sandbox_id: string | null;
  generation: number | null;
  host: string | null;
  actor: string;
  reason: string;
  resources: {
    kind: "sandbox" | "machine" | "address" | "snapshot" | "image";
    id: string;
    number?: number | undefined;
    source?: string | undefined;
    turn?: number | undefined;
    from?: string | undefined;
  }[];
  route?: string | undefined;
  count?: number | undefined;
  hash: string;
}

export interface LedgerCheckpointWire {
  ledger: string;
  seq: number;
  hash: string;
  at: string;
  public_key: string;
  signature: string;
}

export interface PricesWire {
  currency: string;
  vcpu_hour: number;
  memory_gib_hour: number;
  disk_gib_month: number;
  image_gib_month: number;
}

export interface UsageSumsWire {
  seconds: { running: number; paused: number; hibernated: number };
  vcpu_seconds: number;
  memory_gib_seconds: number;
  disk_gib_seconds: number;
  image_gib_seconds: number;
  cpu_seconds: number;
  memory_peak_bytes: number;
  network_in_bytes: number;
  network_out_bytes: number;
  idle_seconds: number;
  currency: string | null;
  cost: number;
  saved_by_sleeping: number;
  wasted_by_idling: number;
  uncertain_seconds: number;
}

export interface UsageItemWire extends UsageSumsWire {
  account?: string | undefined;
  tenant?: string | undefined;
  template?: string | undefined;
  sandbox_id?: string | undefined;
  day?: string | undefined;
  state?: SandboxStateWire | "snapshot" | undefined;
}

export interface UsageWire {
  from: string;
  to: string;
  prices: PricesWire;
  items: UsageItemWire[];
  total: UsageSumsWire;
}

export interface UsageIntervalWire {
  sandbox_id: string;
  number: number;
  tenant: string;
  template: string;
  state: SandboxStateWire | "snapshot";
  cpu: number;
  memory_mb: number;
  disk_mb: number;
  image_bytes: number;
  from: string;
  to: string | null;
  cpu_seconds: number;
  memory_peak_bytes: number;
  network_in_bytes: number;
  network_out_bytes: number;
  idle_seconds: number;
  uncertain_ms: number;
}

export interface BudgetWire {
  tenant: string | null;
  amount: number;
  period: "day" | "month";
  spent: number;
  state: "ok" | "warned" | "exhausted";
  renews_at: string;
}
