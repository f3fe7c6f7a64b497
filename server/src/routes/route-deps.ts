import type { Clock, Log } from "@torpor/base";
import type { Builds } from "../e2b/template/builds.ts";
import type { TemplateFiles } from "../e2b/template/template-files.ts";
import type { Templates } from "../e2b/template/templates.ts";
import type { ShowParts } from "../e2b/shown-e2b-sandbox.ts";
import type { Advisor } from "../advise/advisor.ts";
import type { EventFeed } from "../event/event-feed.ts";
import type { KeyedExecs } from "../guest/keyed-execs.ts";
import type { HostLink, Placement } from "../host/placement.ts";
import type { Api } from "../http/api.ts";
import type { Idempotency } from "../http/idempotency.ts";
import type { PortProxy } from "../ingress/port-proxy.ts";
import type { PreviewOrigin } from "../ingress/preview-origin.ts";
import type { Metrics } from "../http/metrics.ts";
import type { ActivityLog } from "../sandbox/activity-log.ts";
import type { Sandboxes } from "../sandbox/sandboxes.ts";
import type { AccountStore } from "../store/account-store.ts";
import type { KeyStore } from "../store/key-store.ts";
import type { Sessions } from "../sandbox/sessions.ts";
import type { Snapshots } from "../snapshot/snapshots.ts";
import type { AuditStore } from "../store/audit-store.ts";
import type { DenialLog } from "../ledger/denial-log.ts";
import type { CheckpointKey } from "../ledger/checkpoint-key.ts";
import type { LedgerStore } from "../store/ledger-store.ts";
import type { BudgetStore } from "../store/budget-store.ts";
import type { PriceStore } from "../store/price-store.ts";
import type { UsageStore } from "../store/usage-store.ts";
import type { BudgetWatch } from "../usage/budget-watch.ts";
import type { EventStore } from "../store/event-store.ts";
import type { PreviewUrlStore } from "../store/preview-url-store.ts";
import type { SnapshotStore } from "../store/snapshot-store.ts";
import type { SandboxStore } from "../store/sandbox-store.ts";
import type { WebhookStore } from "../store/webhook-store.ts";
import type { TargetGuard } from "../webhook/target-guard.ts";

/** Hosts, without leave to hear of all that is placed on them. */
interface RoutePlacement extends Pick<Placement, "choose" | "of"> {
  readonly links: readonly Pick<HostLink, "health" | "freshHealth" | "lastHealth">[];
}

/**
 * What routes are made from, and all they can reach: each function about somebody's things takes a scope that only
 * authentication makes, or a record that only a look-up with one gives. `test/access/guarded-deps.ts` holds it to that.
 */
export interface RouteDeps {
  api: Api;
  sandboxes: Omit<Sandboxes, "isCreating" | "sleepForBudget">;
  advisor: Pick<Advisor, "advise">;
  snapshots: Omit<Snapshots, "sweep">;
  snapshotStore: Pick<SnapshotStore, "find" | "list">;
  sessions: Sessions;
  sandboxStore: Pick<SandboxStore, "find" | "list" | "count" | "countByState" | "ping">;
  eventStore: Pick<EventStore, "read" | "lastSeq" | "floor" | "requireKept">;
  eventFeed: EventFeed;
  auditStore: AuditStore;
  ledgerStore: Pick<LedgerStore, "list" | "head" | "lines" | "strays">;
  denials: DenialLog;
  checkpointKey: CheckpointKey;
  accountStore: AccountStore;
  usageStore: Pick<UsageStore, "sums" | "intervals">;
  priceStore: PriceStore;
  budgetStore: Pick<BudgetStore, "set" | "remove" | "list">;
  budgetWatch: Pick<BudgetWatch, "look">;
  keyStore: Pick<KeyStore, "issue" | "find" | "list" | "listOf" | "revoke">;
  webhookStore: Pick<
    WebhookStore,
    "insert" | "find" | "list" | "countOf" | "counts" | "update" | "remove" | "forgetDeliveries"
  >;
  targetGuard: TargetGuard;
  previewUrlStore: Pick<PreviewUrlStore, "insert" | "countLive" | "list" | "revoke">;
  /** Known once the server listens. */
  previewOrigin: () => PreviewOrigin;
  /** What E2B's clients are told of a sandbox; known once the server listens. */
  e2b: () => ShowParts;
  templates: Templates;
  templateBuilds: Pick<Builds, "start">;
  templateFiles: Pick<TemplateFiles, "has" | "grant" | "claim" | "write">;
  portProxy: Pick<PortProxy, "forward" | "tunnel">;
  placement: RoutePlacement;
  idempotency: Idempotency;
  keyedExecs: KeyedExecs;
  activity: Pick<ActivityLog, "note" | "lastActivityAt">;
  metrics: Metrics;
  clock: Clock;
  log: Log;
  version: string;
}
