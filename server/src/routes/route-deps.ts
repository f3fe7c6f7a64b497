import type { Clock, Log } from "@torpor/base";
import type { EventFeed } from "../event/event-feed.ts";
import type { KeyedExecs } from "../guest/keyed-execs.ts";
import type { Placement } from "../host/placement.ts";
import type { Api } from "../http/api.ts";
import type { Idempotency } from "../http/idempotency.ts";
import type { Metrics } from "../http/metrics.ts";
import type { ActivityLog } from "../sandbox/activity-log.ts";
import type { Sandboxes } from "../sandbox/sandboxes.ts";
import type { AccountStore } from "../store/account-store.ts";
import type { KeyStore } from "../store/key-store.ts";
import type { Sessions } from "../sandbox/sessions.ts";
import type { Snapshots } from "../snapshot/snapshots.ts";
import type { AuditStore } from "../store/audit-store.ts";
import type { EventStore } from "../store/event-store.ts";
import type { SnapshotStore } from "../store/snapshot-store.ts";
import type { SandboxStore } from "../store/sandbox-store.ts";
import type { WebhookStore } from "../store/webhook-store.ts";
import type { TargetGuard } from "../webhook/target-guard.ts";

/** What routes are made from. */
export interface RouteDeps {
  api: Api;
  sandboxes: Sandboxes;
  snapshots: Snapshots;
  snapshotStore: SnapshotStore;
  sessions: Sessions;
  sandboxStore: SandboxStore;
  eventStore: EventStore;
  eventFeed: EventFeed;
  auditStore: AuditStore;
  accountStore: AccountStore;
  keyStore: KeyStore;
  webhookStore: WebhookStore;
  targetGuard: TargetGuard;
  placement: Placement;
  idempotency: Idempotency;
  keyedExecs: KeyedExecs;
  activity: ActivityLog;
  metrics: Metrics;
  clock: Clock;
  log: Log;
  version: string;
}
