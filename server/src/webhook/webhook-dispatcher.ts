import { type Clock, type Log, pause } from "@torpor/base";
import { eventId } from "@torpor/protocol";
import type { EventFeed } from "../event/event-feed.ts";
import type { ServerScope } from "../auth/tenant-scope.ts";
import type { EventStore } from "../store/event-store.ts";
import type { Delivery, WebhookRecord, WebhookStore } from "../store/webhook-store.ts";
import { sendWebhook } from "./send-webhook.ts";
import type { TargetGuard } from "./target-guard.ts";

export interface WebhookDispatcherOptions {
  scope: ServerScope;
  store: WebhookStore;
  events: EventStore;
  feed: EventFeed;
  guard: TargetGuard;
  clock: Clock;
  log: Log;
  /** Seconds from one try to the next; as many retries as entries. Default {@link RETRY_AFTER_SECONDS}. */
  retryAfterSeconds?: readonly number[];
}

/** 10 retries within 25 hours, so that a receiver may be down for a day; each is spread by up to a fifth more. */
const RETRY_AFTER_SECONDS = [5, 30, 120, 600, 1_800, 3_600, 7_200, 14_400, 28_800, 28_800];
const SPREAD = 0.2;
/** Requests under way to one webhook. */
const AT_ONCE = 4;
/** Deliveries that wait at one webhook; above it the rest stays in the log, which is kept for 7 days. */
const MAX_PENDING = 1_000;
const PAGE_EVENTS = 200;
/** Events of others, after which a webhook's place is moved past them. */
const SKIP_EVENTS = 10_000;
/**
 * A look at all webhooks is followed by a rest of so many times its length, at most a second: however many there are and
 * however fast things happen, requests come first.
 */
const REST_FACTOR = 4;
const MAX_REST_MS = 1_000;
/** Longest time between two looks, milliseconds. */
const MAX_WAIT_MS = 30_000;
/** After an error of the store. */
const STORE_BACKOFF_MS = 1_000;

/**
 * Sends events to webhooks, each at least once. What is owed is committed before it is sent and forgotten only after the
 * receiver said yes, so a death in between costs a repeat and never an event. Webhooks share nothing: one that is slow or
 * dead waits alone.
 */
export class WebhookDispatcher {
  readonly #options: WebhookDispatcherOptions;
  readonly #retryAfterSeconds: readonly number[];
  readonly #closing = new AbortController();
  /** Those that could not be read at the last look: told of once. */
  #unreadable = new Set<string>();
  readonly #inFlight = new Map<string, Map<number, Promise<void>>>();
  #running: Promise<void> | undefined;

  constructor(options: WebhookDispatcherOptions) {
    this.#options = options;
    this.#retryAfterSeconds = options.retryAfterSeconds ?? RETRY_AFTER_SECONDS;
  }

  start(): void {
    this.#running ??= this.#run();
  }

  /** Ends what is under way; it is sent again after the next start. */
  async close(): Promise<void> {
    this.#closing.abort();
    await this.#running;
    await Promise.all([...this.#inFlight.values()].flatMap((deliveries) => [...deliveries.values()]));
  }

  async #run(): Promise<void> {
    const { feed, clock, log } = this.#options;
    const { signal } = this.#closing;
    while (!signal.aborted) {
      const { version } = feed;
      let waitMs = MAX_WAIT_MS;
      const startedAt = clock.monotonic();
      try {
        const nextAt = await this.#turn();
        await pause(clock, Math.min((clock.monotonic() - startedAt) * REST_FACTOR, MAX_REST_MS), signal);
        if (nextAt !== null) waitMs = Math.min(Math.max(nextAt - clock.now(), 0), MAX_WAIT_MS);
      } catch (error) {
        if (signal.aborted) return;
        log.error({ op: "webhooks", outcome: "store unreadable", err: error });
        waitMs = STORE_BACKOFF_MS;
        await feed.wait(feed.version, waitMs, signal);
        continue;
      }
      if ((await feed.wait(version, waitMs, signal)) === "closed") return;
    }
  }

  /** Looks at every webhook once. @returns when there is something to do again, if nothing happens before */
  async #turn(): Promise<number | null> {
    const { store, clock, log } = this.#options;
    let nextAt: number | null = null;
    const { items, unreadable } = await store.enabled(this.#options.scope);
    for (const id of unreadable) {
      if (!this.#unreadable.has(id))
        log.error({ op: "webhooks", outcome: "record unreadable, left", webhook: id });
    }
    this.#unreadable = new Set(unreadable);
    for (const webhook of items) {
      await this.#owe(webhook);
      await this.#sendDue(webhook);
      // One whose hands are full is looked at when one of them is free: its end wakes us.
      if (this.#handsOf(webhook.id).size >= AT_ONCE) continue;
      const dueAt = await store.nextDueAt(webhook.id);
      if (dueAt !== null) nextAt = Math.min(nextAt ?? Number.POSITIVE_INFINITY, Math.max(dueAt, clock.now()));
    }
    return nextAt;
  }

  /** Commits what the log holds for it beyond what was looked at. */
  async #owe(webhook: WebhookRecord): Promise<void> {
    const { store, events, clock, log } = this.#options;
    let current = webhook;
    let { pending } = await store.counts(webhook);
    while (pending < MAX_PENDING && !this.#closing.signal.aborted) {
      const newest = await events.lastSeq();
      const page = await events.read(webhook, { after: current.afterSeq, limit: PAGE_EVENTS });
      if (current.afterSeq < (await events.floor()))
        log.error({
          op: "webhooks",
          outcome: "events were forgotten before they were sent",
          webhook: webhook.id,
        });
      const last = page.at(-1);
      if (last === undefined) {
        // The others' events: passed over now and then, so that its place does not fall behind what is kept.
        if (newest - current.afterSeq > SKIP_EVENTS) await store.owe(current, [], newest, clock.now());
        return;
      }
      const wanted = page.filter(
        ({ event }) => webhook.types.length === 0 || webhook.types.includes(event.type),
      );
      const seqs = wanted.map(({ seq }) => seq);
      if (!(await store.owe(current, seqs, last.seq, clock.now()))) return; // another server looks after it
      pending += seqs.length;
      current = { ...current, afterSeq: last.seq };
    }
  }

  async #sendDue(webhook: WebhookRecord): Promise<void> {
    const { store, events, clock, feed } = this.#options;
    const hands = this.#handsOf(webhook.id);
    const due = await store.due(webhook.id, clock.now(), AT_ONCE * 2);
    const ready = due.filter(({ seq }) => !hands.has(seq)).slice(0, AT_ONCE - hands.size);
    const bodies = await events.byNumber(
      webhook,
      ready.map(({ seq }) => seq),
    );
    for (const delivery of ready) {
      const event = bodies.get(delivery.seq);
      if (event === undefined) {
        await store.settle(delivery); // forgotten with its age
        continue;
      }
      const sending = this.#deliver(webhook, delivery, JSON.stringify(event)).finally(() => {
        hands.delete(delivery.seq);
        if (!this.#closing.signal.aborted) feed.wake();
      });
      hands.set(delivery.seq, sending);
    }
  }

  #handsOf(webhookId: string): Map<number, Promise<void>> {
    let hands = this.#inFlight.get(webhookId);
    if (hands === undefined) {
      hands = new Map();
      this.#inFlight.set(webhookId, hands);
    }
    return hands;
  }

  async #deliver(webhook: WebhookRecord, delivery: Delivery, body: string): Promise<void> {
    const { store, guard, clock, log } = this.#options;
    const id = eventId(delivery.seq);
    try {
      const afterSeconds = this.#retryAfterSeconds[delivery.attempts];
      const nextAt =
        afterSeconds === undefined
          ? null
          : Math.round(clock.now() + afterSeconds * 1_000 * (1 + Math.random() * SPREAD));
      // The last try is put off as well while it is under way: a death in the middle leaves it to be tried again.
      if (!(await store.claim(delivery, nextAt ?? clock.now() + MAX_WAIT_MS))) return;
      const outcome = await sendWebhook(
        {
          url: webhook.url,
          secret: webhook.secret,
          id,
          body,
          timestampSeconds: Math.floor(clock.now() / 1_000),
        },
        guard,
        this.#closing.signal,
      );
      if (outcome.kind === "delivered") {
        await store.settle(delivery);
        await store.noteOutcome(webhook.id, { deliveredAt: clock.now() });
        return;
      }
      if (this.#closing.signal.aborted) return;
      if (outcome.kind === "gone") {
        await store.update(webhook, { enabled: false, disabledBecause: "the receiver answered 410 Gone" });
        log.warn({ op: "webhooks", outcome: "disabled", webhook: webhook.id, because: "410" });
        return;
      }
      const claimed = { ...delivery, attempts: delivery.attempts + 1 };
      if (nextAt === null) await store.giveUp(claimed);
      await store.noteOutcome(webhook.id, { error: `${id}: ${outcome.why}` });
      const line = {
        op: "webhooks",
        webhook: webhook.id,
        event: id,
        tries: claimed.attempts,
        why: outcome.why,
      };
      if (nextAt === null) log.error({ ...line, outcome: "given up" });
      else log.info({ ...line, outcome: "to be tried again" });
    } catch (error) {
      log.error({ op: "webhooks", outcome: "store unreadable", webhook: webhook.id, err: error });
    }
  }
}
