import { getRequestListener } from "@hono/node-server";
import { type Clock, type Log, Scope, SecretValues, systemClock } from "@torpor/base";
import { randomText } from "@torpor/protocol";
import { Advisor } from "./advise/advisor.ts";
import { IdleWatch } from "./advise/idle-watch.ts";
import { TimesHere } from "./advise/measured-times.ts";
import { Authenticator } from "./auth/authenticator.ts";
import { KeyWatch } from "./auth/key-watch.ts";
import { ServerScope } from "./auth/tenant-scope.ts";
import { E2bIngress } from "./e2b/ingress/e2b-ingress.ts";
import { wireTemplates } from "./e2b/template/wire-templates.ts";
import { E2bTokens } from "./e2b/e2b-tokens.ts";
import { EventFeed } from "./event/event-feed.ts";
import { KeyedExecs } from "./guest/keyed-execs.ts";
import { HostClient } from "./host/host-client.ts";
import { FixedPlacement, HostLink } from "./host/placement.ts";
import { Housekeeping } from "./housekeeping.ts";
import { Api } from "./http/api.ts";
import { BodyHashes } from "./http/body-hashes.ts";
import { FrontDoor } from "./http/front-door.ts";
import { Idempotency } from "./http/idempotency.ts";
import { Metrics } from "./http/metrics.ts";
import { serveUpgrades } from "./http/upgrades.ts";
import { PortProxy } from "./ingress/port-proxy.ts";
import { PreviewIngress } from "./ingress/preview-ingress.ts";
import { PreviewOrigin } from "./ingress/preview-origin.ts";
import { addRoutes } from "./routes/add-routes.ts";
import { isPortUpgrade, PORT_UPGRADE_ROUTE, upgradeToPort } from "./routes/port-routes.ts";
import type { RouteDeps } from "./routes/route-deps.ts";
import { serveTerminals } from "./routes/terminal.ts";
import { ActivityLog } from "./sandbox/activity-log.ts";
import { HostWatch } from "./sandbox/host-watch.ts";
import { Sandboxes } from "./sandbox/sandboxes.ts";
import { Sessions } from "./sandbox/sessions.ts";
import { Snapshots } from "./snapshot/snapshots.ts";
import { AccountStore } from "./store/account-store.ts";
import { AuditStore } from "./store/audit-store.ts";
import { EventStore } from "./store/event-store.ts";
import { HostSandboxStore } from "./store/host-sandbox-store.ts";
import { IdempotencyStore } from "./store/idempotency-store.ts";
import { DenialLog } from "./ledger/denial-log.ts";
import { OwnerStore } from "./store/owner-store.ts";
import { CheckpointKey } from "./ledger/checkpoint-key.ts";
import { LedgerStore } from "./store/ledger-store.ts";
import { KeyStore } from "./store/key-store.ts";
import type { Database } from "./store/open-database.ts";
import { PreviewUrlStore } from "./store/preview-url-store.ts";
import { BudgetStore } from "./store/budget-store.ts";
import { PriceStore } from "./store/price-store.ts";
import { UsageStore } from "./store/usage-store.ts";
import { BudgetWatch } from "./usage/budget-watch.ts";
import { SandboxStore } from "./store/sandbox-store.ts";
import { SessionStore } from "./store/session-store.ts";
import { ServerSecretStore } from "./store/server-secret-store.ts";
import { SnapshotStore } from "./store/snapshot-store.ts";
import { VisitStore } from "./store/visit-store.ts";
import { TimingStore } from "./store/timing-store.ts";
import { WebhookStore } from "./store/webhook-store.ts";
import { VERSION } from "./version.ts";
import { TargetGuard } from "./webhook/target-guard.ts";
import { WebhookDispatcher } from "./webhook/webhook-dispatcher.ts";

export interface StartServerOptions {
  database: Database;
  host: { url: string; token: string };
  /** Where files are kept that templates are built from. Default: a temporary directory that goes with the server. */
  uploadsDirectory?: string | undefined;
  /** Where it serves, and what goes with it. Default 127.0.0.1 and a free port. */
  door?: FrontDoor;
  log: Log;
  /** Values that neither the log nor an error answer tells, shared with the log. Default: errors alone. */
  secretValues?: SecretValues;
  clock?: Clock;
  /** Signs checkpoints of the ledger. Default: one that goes with this server. */
  checkpointKey?: CheckpointKey;
  /** The absolute end of every sandbox made from now on, seconds from its create, whatever its account allows. Default none. */
  maxLifetimeSeconds?: number | undefined;
  /** Below which previews are served, e.g. `https://preview.example.com`. Default `http://localhost` and the port listened on. */
  previewUrl?: string | undefined;
  /** Domain, with port, below which ports of sandboxes made through E2B's API are. Default none. */
  e2bDomain?: string | undefined;
  webhooks?: {
    /** Addresses and ranges that webhooks may name though they are not public. */
    allow?: readonly string[];
    /** Seconds from one try to the next, for tests. */
    retryAfterSeconds?: readonly number[];
  };
  /** Between two looks at budgets, for tests. */
  budgets?: { everyMs?: number };
  /** Timings of the host watch, for tests. */
  watch?: { newbornGraceMs?: number; reconcileEveryMs?: number; pollMs?: number };
}

export interface RunningServer {
  readonly url: string;
  /** The port TLS is spoken on; undefined when it is not. */
  readonly tlsPort: number | undefined;
  readonly database: Database;
  readonly eventStore: EventStore;
  readonly sandboxStore: SandboxStore;
  readonly idempotencyStore: IdempotencyStore;
  readonly keyStore: KeyStore;
  readonly watch: HostWatch;
  /** Stops serving: requests under way get up to 3 s. The database stays open; it is the caller's. */
  close(): Promise<void>;
}

/** Wires the control plane together and serves. */
export async function startServer(options: StartServerOptions): Promise<RunningServer> {
  const { database, log, clock = systemClock } = options;
  await using scope = new Scope();
  const client = new HostClient(options.host);
  scope.defer(() => client.close());
  const placement = new FixedPlacement([new HostLink(client, clock)], log);
  const eventFeed = new EventFeed(clock, log);
  const eventStore = new EventStore(database, clock, () => eventFeed.wake());
  if (database.kind === "postgres") eventFeed.watchShared(eventStore);
  const ledgerStore = new LedgerStore(database, clock);
  const sandboxStore = new SandboxStore(database, eventStore, ledgerStore, clock);
  const accountStore = new AccountStore(database);
  const keyStore = new KeyStore(database);
  const idempotencyStore = new IdempotencyStore(database);
  const snapshotStore = new SnapshotStore(database, ledgerStore, clock);
  const sessionStore = new SessionStore(database);
  const webhookStore = new WebhookStore(database);
  const previewUrlStore = new PreviewUrlStore(database);
  const usageStore = new UsageStore(database);
  const budgetStore = new BudgetStore(database);
  const portProxy = new PortProxy();
  const secrets = new ServerSecretStore(database);
  const e2bTokens = new E2bTokens(await secrets.secret("e2b"));
  const bodyHashes = new BodyHashes(await secrets.secret("body-hashes"));
  let previewOrigin = new PreviewOrigin(options.previewUrl ?? "http://localhost");
  const targetGuard = new TargetGuard(options.webhooks?.allow ?? []);
  const { maxLifetimeSeconds } = options;
  const serverScope = ServerScope.forHousekeeping();
  const priceStore = new PriceStore(database);
  const advisor = new Advisor({
    sandboxStore,
    times: new TimesHere(new TimingStore(database), serverScope, clock),
    prices: (scope) => priceStore.own(scope),
  });
  const sandboxes = new Sandboxes({
    store: sandboxStore,
    accountStore,
    snapshotStore,
    placement,
    advisor,
    clock,
    log,
    maxLifetimeSeconds,
  });
  const budgetWatch = new BudgetWatch({
    scope: serverScope,
    budgets: budgetStore,
    usage: usageStore,
    prices: priceStore,
    events: eventStore,
    store: sandboxStore,
    sandboxes,
    clock,
    log,
    ...options.budgets,
  });
  const snapshots = new Snapshots({ store: snapshotStore, sandboxes, placement, clock, log });
  const activity = new ActivityLog(sandboxStore, clock, log);
  scope.defer(() => activity.flush());
  const idempotency = new Idempotency({
    store: idempotencyStore,
    bodyHashes,
    owner: `srv_${randomText(20)}`,
    shared: database.kind === "postgres",
    clock,
    log,
  });
  scope.defer(() => idempotency.close());
  const metrics = new Metrics();
  const owners = new OwnerStore(database);
  const denials = new DenialLog({ ledger: ledgerStore, owners, clock, log });
  scope.defer(() => denials.close());
  const authenticator = new Authenticator(keyStore, clock, log, denials);
  const keyWatch = new KeyWatch(keyStore, clock, log);
  scope.defer(() => keyWatch.close());
  const api = new Api({
    denials,
    authenticator,
    keyWatch,
    idempotency,
    metrics,
    secretValues: options.secretValues ?? new SecretValues(),
    clock,
    log,
  });
  const [link] = placement.links;
  if (link === undefined) throw new Error("a server needs a host");
  const soleServer = database.kind === "sqlite";
  const watch = new HostWatch({
    link,
    soleServer,
    store: new HostSandboxStore(database),
    sandboxes,
    clock,
    log,
    ...options.watch,
  });
  const built = wireTemplates({
    database,
    uploadsDirectory: options.uploadsDirectory,
    snapshotStore,
    placement,
    sandboxes,
    snapshots,
    keyWatch,
    soleServer,
    clock,
    log,
  });
  scope.defer(() => built.close());
  const deps: RouteDeps = {
    ...built,
    api,
    advisor,
    sandboxes,
    snapshots,
    snapshotStore,
    sessions: new Sessions({ store: sessionStore, sandboxStore, sandboxes, clock, soleServer }),
    sandboxStore,
    eventStore,
    eventFeed,
    accountStore,
    keyStore,
    webhookStore,
    targetGuard,
    previewUrlStore,
    usageStore,
    priceStore,
    budgetStore,
    budgetWatch,
    previewOrigin: () => previewOrigin,
    e2b: () => ({ tokens: e2bTokens, domain: options.e2bDomain ?? null }),
    portProxy,
    auditStore: new AuditStore(database),
    ledgerStore,
    denials,
    checkpointKey: options.checkpointKey ?? CheckpointKey.random(),
    placement,
    idempotency,
    keyedExecs: new KeyedExecs(clock, bodyHashes),
    activity,
    metrics,
    clock,
    log,
    version: VERSION,
  };
  addRoutes(deps);
  const ingress = new PreviewIngress({
    origin: () => previewOrigin,
    store: previewUrlStore,
    proxy: portProxy,
    placement,
    activity,
    sandboxes,
    metrics,
    clock,
    log,
  });
  scope.defer(() => ingress.close());
  const e2bIngress = new E2bIngress({
    domain: options.e2bDomain,
    store: new VisitStore(database),
    tokens: e2bTokens,
    proxy: portProxy,
    placement,
    activity,
    sandboxes,
    metrics,
    clock,
    log,
  });
  const toApi = getRequestListener(api.app.fetch, {
    overrideGlobalObjects: false,
    autoCleanupIncoming: false,
  });
  const door = options.door ?? (await FrontDoor.open({ listen: { host: "127.0.0.1", port: 0 }, clock, log }));
  scope.defer(() => door.close());
  previewOrigin = new PreviewOrigin(options.previewUrl ?? `http://localhost:${door.port}`);
  const terminals = serveTerminals(deps, authenticator, keyWatch);
  serveUpgrades(door.server, log, [
    {
      wants: (incoming) => ingress.owns(incoming),
      take: (incoming, connection, head) => ingress.upgrade(incoming, connection, head),
    },
    {
      wants: (incoming) => e2bIngress.owns(incoming),
      take: (incoming, connection, head) => e2bIngress.upgrade(incoming, connection, head),
    },
    {
      wants: isPortUpgrade,
      take: async (incoming, connection, head) => {
        const caller = await authenticator.authenticate(incoming.headers, "sandbox:exec", PORT_UPGRADE_ROUTE);
        const release = keyWatch.hold(caller.key, () => connection.destroy());
        try {
          await upgradeToPort(deps, caller, incoming, connection, head);
        } finally {
          release();
        }
      },
    },
    { wants: () => true, take: (incoming, connection, head) => terminals.open(incoming, connection, head) },
  ]);
  door.serve((incoming, outgoing) => {
    if (ingress.owns(incoming)) void ingress.serve(incoming, outgoing);
    else if (e2bIngress.owns(incoming)) void e2bIngress.serve(incoming, outgoing);
    else void toApi(incoming, outgoing);
  });
  scope.defer(() => eventFeed.close()); // its streams end first: they would not by themselves
  scope.defer(() => terminals.close());
  scope.defer(() => portProxy.close());
  const housekeeping = new Housekeeping({
    scope: serverScope,
    sandboxes: sandboxStore,
    events: eventStore,
    webhooks: webhookStore,
    previewUrls: previewUrlStore,
    sessions: sessionStore,
    snapshots,
    templateBuilds: built.templateBuilds,
    idempotency: idempotencyStore,
    idleWatch: new IdleWatch({
      sandboxes: sandboxStore,
      events: eventStore,
      placement,
      prices: async (account) => (await priceStore.all(serverScope))(account),
      clock,
      log,
    }),
    clock,
    log,
  });
  housekeeping.start();
  scope.defer(() => housekeeping.close());
  const dispatcher = new WebhookDispatcher({
    scope: serverScope,
    store: webhookStore,
    events: eventStore,
    feed: eventFeed,
    guard: targetGuard,
    clock,
    log,
    ...(options.webhooks?.retryAfterSeconds === undefined
      ? {}
      : { retryAfterSeconds: options.webhooks.retryAfterSeconds }),
  });
  dispatcher.start();
  budgetWatch.start();
  scope.defer(() => budgetWatch.close());
  scope.defer(() => dispatcher.close());
  watch.start();
  scope.defer(() => watch.close());
  const owned = scope.move();
  return {
    url: door.url,
    tlsPort: door.tlsPort,
    database,
    eventStore,
    sandboxStore,
    idempotencyStore,
    keyStore,
    watch,
    close: () => owned.close(),
  };
}
