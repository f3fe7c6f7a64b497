import type { ColumnType, Generated } from "kysely";
import type { BudgetPeriod, MeteredState, OnExpire, OnIdle, SandboxState } from "@torpor/protocol";

/** JSON: text on SQLite, `jsonb` on PostgreSQL, where the driver gives it back parsed. */
type JsonColumn = ColumnType<unknown, string, string>;

export interface SandboxTable {
  id: string;
  account: string;
  tenant: string;
  name: string | null;
  state: SandboxState;
  generation: number;
  reason: string | null;
  template: string;
  driver: string | null;
  metadata: JsonColumn;
  cpu: number;
  memory_mb: number;
  disk_mb: number;
  /** `internet`, `none`, or rules as JSON. */
  network: string;
  on_expire: OnExpire;
  /** 0 or 1. */
  persistent: number;
  idle_timeout_seconds: number | null;
  on_idle: OnIdle;
  retention_seconds: number | null;
  /** 0 or 1. */
  auto_wake: number;
  hibernate_memory: number;
  /** Of what it wakes from: `{size_bytes, created_at, memory}`; null unless it is hibernated. */
  image: ColumnType<unknown, string | null, string | null>;
  host: string;
  attestation: ColumnType<unknown, string | null, string | null>;
  /** All times are Unix milliseconds. */
  created_at: number;
  started_at: number | null;
  expires_at: number | null;
  last_activity_at: number;
  ended_at: number | null;
  /** The absolute end, whatever its clocks say; null for none. */
  max_lifetime_at: number | null;
  /** Number of its newest physical machine; 0 before the first. */
  incarnation: number;
  /** What it holds now, as the ledger has it: its machine, that one's address on its host, its hibernation image. */
  machine_id: string | null;
  address: string | null;
  image_id: string | null;
  /** Who made it, and who asked for its end: id of a key, or `system:` and what of ours. Null when it is not known. */
  created_by: string | null;
  ended_by: string | null;
  /** What its create through E2B's API said that ours has no words for; null of all others. */
  e2b: ColumnType<unknown, string | null, string | null>;
  /** The open interval of its meter: in which state since when, and how many were closed before it. */
  metered_state: SandboxState;
  metered_from: number;
  metered_intervals: number;
  /** Number of its host's newest move that is in. */
  metered_move: number;
  /** JSON: what it sleeps in and had used, see `usage-column.ts`. */
  metered_use: JsonColumn;
}

/** Rows are only ever added. */
export interface UsageIntervalTable {
  /** Or the id of a snapshot. */
  sandbox_id: string;
  /** 1, 2, 3, ... */
  number: number;
  account: string;
  tenant: string;
  template: string;
  state: MeteredState;
  cpu: number;
  memory_mb: number;
  disk_mb: number;
  image_bytes: number;
  from_at: number;
  to_at: number;
  cpu_seconds: number;
  memory_peak_bytes: number;
  network_in_bytes: number;
  network_out_bytes: number;
  idle_seconds: number;
  uncertain_ms: number;
}

interface PricesTable {
  /** Empty for those of every account without its own. */
  account: string;
  body: JsonColumn;
}

export interface BudgetTable {
  account: string;
  /** Empty for the account's own. */
  tenant: string;
  amount: number;
  period: BudgetPeriod;
  /** When it was last told that most of it is spent. */
  warned_at: number | null;
  /** Until then nothing is made or woken; null while there is some left. */
  exhausted_until: number | null;
}

/** What the server must know again after a restart, and every server of the same store: made once, at random. */
interface ServerSecretTable {
  name: string;
  value: string;
}

export interface KeyTable {
  id: string;
  account: string;
  name: string;
  prefix: string;
  /** SHA-256 of the whole key, hexadecimal. */
  hash: string;
  tenant: string | null;
  scopes: JsonColumn;
  created_at: number;
  expires_at: number | null;
  last_used_at: number | null;
  revoked_at: number | null;
}

export interface AccountTable {
  id: string;
  created_at: number;
  /** As the API has them, without those that are not set. */
  limits: JsonColumn;
  /** Of each tenant. */
  tenant_limits: JsonColumn;
}

export interface IdempotencyTable {
  account: string;
  /** Tenant of the API key, or empty for a key that is bound to none. */
  tenant: string;
  route: string;
  key: string;
  /** SHA-256 of the request body, hexadecimal. */
  body_hash: string;
  /** The server process that runs the request. */
  owner: string;
  /** Refreshed by the owner while the request runs. */
  heartbeat_at: number;
  created_at: number;
  /** What the request made or started, once known: a sandbox id. */
  progress: string | null;
  /** Null while the request runs. */
  status: number | null;
  /** Null while it runs, and for an answer too large to keep. */
  body: string | null;
}

export interface SnapshotTable {
  id: string;
  account: string;
  tenant: string;
  sandbox_id: string;
  host: string;
  name: string | null;
  /** `fork`: of a fork under way, removed with its end. `template`: what sandboxes of a built template start from. */
  kind: "user" | "fork" | "template";
  state: "creating" | "ready" | "deleting";
  template: string;
  cpu: number;
  memory_mb: number;
  disk_mb: number;
  /** `internet`, `none`, or rules as JSON. */
  network: string;
  size_bytes: number;
  generation: number;
  retention_seconds: number | null;
  created_at: number;
  expires_at: number | null;
}

export interface SessionTable {
  account: string;
  tenant: string;
  key: string;
  sandbox_id: string;
  /** When this sandbox was chosen for it. */
  chosen_at: number;
}

export interface AuditTable {
  account: string;
  tenant: string;
  sandbox_id: string;
  action: string;
  reason: string;
  /** Id of the API key that asked. */
  key_id: string;
  at: number;
}

/** Rows are only ever added. */
interface LedgerTable {
  /** 1, 2, 3, ... */
  seq: number;
  /** SHA-256 of `entry`, hexadecimal. */
  hash: string;
  account: string;
  tenant: string | null;
  sandbox_id: string | null;
  /** JSON, as it was hashed: see protocol's `ledger.ts`. */
  entry: string;
}

/** One row. */
interface LedgerHeadTable {
  /** What the ledger is known by: what stands in for the hash before its first entry. */
  ledger: string;
  seq: number;
  /** Of the newest entry; the ledger's own before the first. */
  hash: string;
}

interface EventTable {
  /** In the order of commits: who has read up to one has seen all before it. */
  seq: Generated<number>;
  account: string;
  tenant: string;
  sandbox_id: string;
  type: string;
  at: number;
  /** JSON of the event without its id. */
  body: string;
}

export interface WebhookTable {
  id: string;
  account: string;
  /** Null for all of the account's. */
  tenant: string | null;
  url: string;
  types: JsonColumn;
  description: string;
  /** Needed to sign, so it is kept as it is. */
  secret: string;
  /** 0 or 1. */
  enabled: number;
  disabled_because: string | null;
  /** Events up to this one have been looked at: each is delivered, or waits as a row of its own. */
  after_seq: number;
  created_at: number;
  last_delivered_at: number | null;
  last_error: string | null;
}

interface WebhookDeliveryTable {
  webhook_id: string;
  seq: number;
  attempts: number;
  /** Null once it is given up. */
  next_at: number | null;
}

export interface PreviewUrlTable {
  id: string;
  account: string;
  tenant: string;
  sandbox_id: string;
  port: number;
  /** SHA-256 of the token, hexadecimal. */
  hash: string;
  /** The API key that made it: revoked, it takes its URLs along. */
  key_id: string;
  /** 0 or 1. */
  auto_wake: number;
  created_at: number;
  expires_at: number;
  revoked_at: number | null;
}

/** A template that was built here through E2B's API. */
export interface BuiltTemplateTable {
  id: string;
  account: string;
  tenant: string;
  /** One of a kind within its tenant. */
  name: string;
  created_at: number;
  updated_at: number;
}

export interface TemplateBuildTable {
  id: string;
  template_id: string;
  account: string;
  tenant: string;
  status: "waiting" | "building" | "ready" | "error";
  /** Tags it gets when it is ready. */
  tags: JsonColumn;
  /** Asked for; null for what its parent has. */
  cpu: number | null;
  memory_mb: number | null;
  min_free_disk_mb: number | null;
  /** What sandboxes of it start from, once it is ready. */
  snapshot_id: string | null;
  /** What commands in them start with: `{env, user, workdir}`. */
  defaults: ColumnType<unknown, string | null, string | null>;
  /** Why it failed: `{message, step}`. */
  reason: ColumnType<unknown, string | null, string | null>;
  /** Refreshed by the server that builds it. */
  heartbeat_at: number;
  created_at: number;
  finished_at: number | null;
}

interface TemplateTagTable {
  template_id: string;
  tag: string;
  build_id: string;
  created_at: number;
}

interface TemplateBuildLogTable {
  build_id: string;
  /** 0, 1, 2, ... */
  seq: number;
  at: number;
  level: string;
  message: string;
  step: string | null;
}

export interface Tables {
  usage_intervals: UsageIntervalTable;
  prices: PricesTable;
  budgets: BudgetTable;
  built_templates: BuiltTemplateTable;
  template_builds: TemplateBuildTable;
  template_tags: TemplateTagTable;
  template_build_logs: TemplateBuildLogTable;
  preview_urls: PreviewUrlTable;
  ledger: LedgerTable;
  ledger_head: LedgerHeadTable;
  events: EventTable;
  webhooks: WebhookTable;
  webhook_deliveries: WebhookDeliveryTable;
  snapshots: SnapshotTable;
  sessions: SessionTable;
  audit: AuditTable;
  sandboxes: SandboxTable;
  api_keys: KeyTable;
  accounts: AccountTable;
  idempotency: IdempotencyTable;
  server_secrets: ServerSecretTable;
}
