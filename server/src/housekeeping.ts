import type { Clock, Log } from "@torpor/base";
import { LIMITS } from "@torpor/protocol";
import type { IdleWatch } from "./advise/idle-watch.ts";
import type { ServerScope } from "./auth/tenant-scope.ts";
import type { Builds } from "./e2b/template/builds.ts";
import type { EventStore } from "./store/event-store.ts";
import type { IdempotencyStore } from "./store/idempotency-store.ts";
import type { Snapshots } from "./snapshot/snapshots.ts";
import type { PreviewUrlStore } from "./store/preview-url-store.ts";
import type { SandboxStore } from "./store/sandbox-store.ts";
import type { SessionStore } from "./store/session-store.ts";
import type { WebhookStore } from "./store/webhook-store.ts";

const EVERY_MS = 10 * 60_000;
/** Rows deleted in one statement, so that no request waits long behind it. */
const BATCH_ROWS = 200;
const MAX_BATCHES = 100;

/** A preview URL that has expired is still shown for this long, milliseconds. */
const EXPIRED_URL_MS = 24 * 60 * 60_000;
/** A session whose sandbox is still to be recorded is younger than this, milliseconds. */
const SESSION_GRACE_MS = 60 * 60_000;

export interface HousekeepingOptions {
  scope: ServerScope;
  sandboxes: SandboxStore;
  events: EventStore;
  webhooks: WebhookStore;
  previewUrls: PreviewUrlStore;
  sessions: SessionStore;
  snapshots: Snapshots;
  templateBuilds: Pick<Builds, "sweep">;
  idempotency: IdempotencyStore;
  idleWatch: IdleWatch;
  clock: Clock;
  log: Log;
}

/** Names what is awake for nothing, and forgets what is past its time: ended sandboxes after 7 days, idempotency keys after one, snapshots after their retention. */
export class Housekeeping {
  readonly #options: HousekeepingOptions;
  #cancel: (() => void) | undefined;
  #closed = false;

  constructor(options: HousekeepingOptions) {
    this.#options = options;
  }

  /** Sweeps now and then every ten minutes. */
  start(): void {
    const turn = async (): Promise<void> => {
      await this.sweep();
      if (!this.#closed) this.#cancel = this.#options.clock.after(EVERY_MS, () => void turn());
    };
    void turn();
  }

  /** One sweep. An error of the store ends it and is told; nothing is taken for gone that could not be read. */
  async sweep(): Promise<void> {
    const { sandboxes, events, webhooks, previewUrls, sessions, snapshots, idempotency } = this.#options;
    const { templateBuilds, idleWatch, clock, log, scope } = this.#options;
    const now = clock.now();
    try {
      const swept = {
        sandboxes: await this.#inBatches(() =>
          sandboxes.purgeEnded(scope, now - LIMITS.endedRetentionSeconds * 1_000, BATCH_ROWS),
        ),
        events: await this.#inBatches(() =>
          events.purge(scope, now - LIMITS.eventRetentionSeconds * 1_000, LIMITS.maxEvents, BATCH_ROWS),
        ),
        webhookDeliveries: await webhooks.purge(scope, await events.floor()),
        previewUrls: await this.#inBatches(() => previewUrls.purge(scope, now - EXPIRED_URL_MS, BATCH_ROWS)),
        idempotencyKeys: await this.#inBatches(() =>
          idempotency.purge(scope, now - LIMITS.idempotencyRetentionSeconds * 1_000, BATCH_ROWS),
        ),
        sessions: await this.#inBatches(() => sessions.purge(scope, now - SESSION_GRACE_MS, BATCH_ROWS)),
        templateBuilds: await templateBuilds.sweep(scope),
        snapshots: await snapshots.sweep(scope),
        toldIdle: await idleWatch.sweep(scope),
      };
      if (Object.values(swept).some((count) => count > 0))
        log.info({ op: "housekeeping", outcome: "done", ...swept });
    } catch (error) {
      log.error({ op: "housekeeping", outcome: "failed", err: error });
    }
  }

  close(): void {
    this.#closed = true;
    this.#cancel?.();
  }

  async #inBatches(purge: () => Promise<number>): Promise<number> {
    let total = 0;
    for (let batch = 0; batch < MAX_BATCHES && !this.#closed; batch += 1) {
      const purged = await purge();
      total += purged;
      if (purged < BATCH_ROWS) break;
      await new Promise(setImmediate); // requests come first
    }
    return total;
  }
}
