import type { Kysely, Selectable } from "kysely";
import type { EventType, Webhook } from "@torpor/protocol";
import type { ServerScope, TenantScope } from "../auth/tenant-scope.ts";
import type { Database } from "./open-database.ts";
import { type ReadableRows, readableRows } from "./readable-rows.ts";
import { parseJsonColumn } from "./json-column.ts";
import type { Tables, WebhookTable } from "./schema.ts";

declare const fromStore: unique symbol;

/** One webhook as the store gave it out: holding it is the right to deal with it. */
export interface WebhookRecord {
  readonly [fromStore]: true;
  readonly id: string;
  readonly account: string;
  readonly tenant: string | null;
  readonly url: string;
  readonly types: readonly EventType[];
  readonly description: string;
  readonly secret: string;
  readonly enabled: boolean;
  readonly disabledBecause: string | null;
  readonly afterSeq: number;
  readonly createdAt: number;
  readonly lastDeliveredAt: number | null;
  readonly lastError: string | null;
}

export interface WebhookChanges {
  url?: string | undefined;
  types?: readonly EventType[] | undefined;
  description?: string | undefined;
  enabled?: boolean | undefined;
  disabledBecause?: string | null;
  afterSeq?: number;
}

/** One event on its way to one webhook. */
export interface Delivery {
  webhookId: string;
  seq: number;
  /** Tries so far. */
  attempts: number;
  /** Unix milliseconds of the next try; also what a claim is compared with. */
  nextAt: number;
}

function toWebhookRecord(row: Selectable<WebhookTable>): WebhookRecord {
  const record: Omit<WebhookRecord, typeof fromStore> = {
    id: row.id,
    account: row.account,
    tenant: row.tenant,
    url: row.url,
    types: parseJsonColumn(row.types) as EventType[],
    description: row.description,
    secret: row.secret,
    enabled: row.enabled !== 0,
    disabledBecause: row.disabled_because,
    afterSeq: row.after_seq,
    createdAt: row.created_at,
    lastDeliveredAt: row.last_delivered_at,
    lastError: row.last_error,
  };
  return record as WebhookRecord;
}

/** Record to what the API shows: never the secret. */
export function toWebhook(record: WebhookRecord, counts: { pending: number; failed: number }): Webhook {
  return {
    id: record.id,
    url: record.url,
    types: [...record.types],
    description: record.description,
    tenant: record.tenant,
    enabled: record.enabled,
    disabled_because: record.disabledBecause,
    created_at: new Date(record.createdAt).toISOString(),
    ...counts,
    last_delivered_at:
      record.lastDeliveredAt === null ? null : new Date(record.lastDeliveredAt).toISOString(),
    last_error: record.lastError,
  };
}

/** Webhooks, and the deliveries that are owed to them. */
export class WebhookStore {
  readonly #db: Kysely<Tables>;

  constructor(database: Database) {
    this.#db = database.db;
  }

  /** Makes one of the caller's, for the events the caller may see. */
  async insert(
    scope: TenantScope,
    webhook: Pick<
      WebhookRecord,
      "id" | "url" | "types" | "description" | "secret" | "afterSeq" | "createdAt"
    >,
  ): Promise<WebhookRecord> {
    const row = {
      id: webhook.id,
      account: scope.account,
      tenant: scope.tenant,
      url: webhook.url,
      types: JSON.stringify(webhook.types),
      description: webhook.description,
      secret: webhook.secret,
      enabled: 1,
      disabled_because: null,
      after_seq: webhook.afterSeq,
      created_at: webhook.createdAt,
      last_delivered_at: null,
      last_error: null,
    };
    await this.#db.insertInto("webhooks").values(row).execute();
    return toWebhookRecord(row);
  }

  /** The caller's webhook; a key bound to a tenant has that tenant's alone. */
  async find(scope: TenantScope, id: string): Promise<WebhookRecord | undefined> {
    let query = this.#db
      .selectFrom("webhooks")
      .selectAll()
      .where("id", "=", id)
      .where("account", "=", scope.account);
    if (scope.tenant !== null) query = query.where("tenant", "=", scope.tenant);
    const row = await query.executeTakeFirst();
    return row === undefined ? undefined : toWebhookRecord(row);
  }

  /** The caller's webhooks, newest first. */
  async list(scope: TenantScope): Promise<ReadableRows<WebhookRecord>> {
    let query = this.#db.selectFrom("webhooks").selectAll().where("account", "=", scope.account);
    if (scope.tenant !== null) query = query.where("tenant", "=", scope.tenant);
    const rows = await query.orderBy("created_at", "desc").orderBy("id", "desc").limit(1_000).execute();
    return readableRows(rows, toWebhookRecord);
  }

  /** How many the caller's account has. */
  async countOf({ account }: TenantScope): Promise<number> {
    const row = await this.#db
      .selectFrom("webhooks")
      .select((query) => query.fn.countAll<number | string>().as("count"))
      .where("account", "=", account)
      .executeTakeFirst();
    return Number(row?.count ?? 0);
  }

  /** Every webhook that is enabled, for the dispatcher alone. */
  async enabled(_scope: ServerScope): Promise<ReadableRows<WebhookRecord>> {
    const rows = await this.#db.selectFrom("webhooks").selectAll().where("enabled", "=", 1).execute();
    return readableRows(rows, toWebhookRecord);
  }

  async update(record: WebhookRecord, changes: WebhookChanges): Promise<WebhookRecord | undefined> {
    const row = await this.#db
      .updateTable("webhooks")
      .set({
        ...(changes.url === undefined ? {} : { url: changes.url }),
        ...(changes.types === undefined ? {} : { types: JSON.stringify(changes.types) }),
        ...(changes.description === undefined ? {} : { description: changes.description }),
        ...(changes.enabled === undefined ? {} : { enabled: changes.enabled ? 1 : 0 }),
        ...(changes.disabledBecause === undefined ? {} : { disabled_because: changes.disabledBecause }),
        ...(changes.afterSeq === undefined ? {} : { after_seq: changes.afterSeq }),
      })
      .where("id", "=", record.id)
      .where("account", "=", record.account)
      .returningAll()
      .executeTakeFirst();
    return row === undefined ? undefined : toWebhookRecord(row);
  }

  /** Forgets it and what was owed to it. */
  async remove(record: WebhookRecord): Promise<void> {
    await this.#db.transaction().execute(async (transaction) => {
      await transaction.deleteFrom("webhook_deliveries").where("webhook_id", "=", record.id).execute();
      await transaction
        .deleteFrom("webhooks")
        .where("id", "=", record.id)
        .where("account", "=", record.account)
        .execute();
    });
  }

  /** Forgets what was owed to it. */
  async forgetDeliveries(record: WebhookRecord): Promise<void> {
    await this.#db.deleteFrom("webhook_deliveries").where("webhook_id", "=", record.id).execute();
  }

  /** Deliveries that wait, and those that were given up. */
  async counts({ id: webhookId }: WebhookRecord): Promise<{ pending: number; failed: number }> {
    const row = await this.#db
      .selectFrom("webhook_deliveries")
      .select((query) => [
        query.fn.countAll<number | string>().as("all"),
        query.fn.count<number | string>("next_at").as("pending"),
      ])
      .where("webhook_id", "=", webhookId)
      .executeTakeFirst();
    const pending = Number(row?.pending ?? 0);
    return { pending, failed: Number(row?.all ?? 0) - pending };
  }

  /**
   * Commits that these events are owed and that the log was looked at up to `afterSeq`, both or neither.
   *
   * @returns false when another server did so first
   */
  async owe(
    webhook: WebhookRecord,
    seqs: readonly number[],
    afterSeq: number,
    now: number,
  ): Promise<boolean> {
    return await this.#db.transaction().execute(async (transaction) => {
      const moved = await transaction
        .updateTable("webhooks")
        .set({ after_seq: afterSeq })
        .where("id", "=", webhook.id)
        .where("after_seq", "=", webhook.afterSeq)
        .executeTakeFirst();
      if (Number(moved.numUpdatedRows) !== 1) return false;
      if (seqs.length > 0) {
        await transaction
          .insertInto("webhook_deliveries")
          .values(seqs.map((seq) => ({ webhook_id: webhook.id, seq, attempts: 0, next_at: now })))
          .execute();
      }
      return true;
    });
  }

  /** At most `limit` that are due, oldest event first. */
  async due(webhookId: string, now: number, limit: number): Promise<Delivery[]> {
    const rows = await this.#db
      .selectFrom("webhook_deliveries")
      .selectAll()
      .where("webhook_id", "=", webhookId)
      .where("next_at", "<=", now)
      .orderBy("seq")
      .limit(limit)
      .execute();
    return rows.map((row) => ({
      webhookId,
      seq: row.seq,
      attempts: row.attempts,
      nextAt: row.next_at ?? now,
    }));
  }

  /** When the next delivery of that webhook is due; null when none waits. */
  async nextDueAt(webhookId: string): Promise<number | null> {
    const row = await this.#db
      .selectFrom("webhook_deliveries")
      .select((query) => query.fn.min("next_at").as("next_at"))
      .where("webhook_id", "=", webhookId)
      .executeTakeFirst();
    return row?.next_at == null ? null : row.next_at;
  }

  /**
   * Counts a try and puts the next one off to `nextAt`, before the request is sent: a server that dies in mid-request
   * leaves a try that counts.
   *
   * @returns false when another server has taken it
   */
  async claim(delivery: Delivery, nextAt: number): Promise<boolean> {
    const result = await this.#db
      .updateTable("webhook_deliveries")
      .set({ attempts: delivery.attempts + 1, next_at: nextAt })
      .where("webhook_id", "=", delivery.webhookId)
      .where("seq", "=", delivery.seq)
      .where("attempts", "=", delivery.attempts)
      .executeTakeFirst();
    return Number(result.numUpdatedRows) === 1;
  }

  /** No try is left: it stays, to be counted, as long as its event. */
  async giveUp(delivery: Delivery): Promise<void> {
    await this.#db
      .updateTable("webhook_deliveries")
      .set({ next_at: null })
      .where("webhook_id", "=", delivery.webhookId)
      .where("seq", "=", delivery.seq)
      .where("attempts", "=", delivery.attempts)
      .execute();
  }

  /** It arrived, or its event is no longer kept. */
  async settle(delivery: Delivery): Promise<void> {
    await this.#db
      .deleteFrom("webhook_deliveries")
      .where("webhook_id", "=", delivery.webhookId)
      .where("seq", "=", delivery.seq)
      .execute();
  }

  /** What the last try came to, for those who look at the webhook. */
  async noteOutcome(webhookId: string, outcome: { deliveredAt: number } | { error: string }): Promise<void> {
    await this.#db
      .updateTable("webhooks")
      .set(
        "deliveredAt" in outcome
          ? { last_delivered_at: outcome.deliveredAt, last_error: null }
          : { last_error: outcome.error },
      )
      .where("id", "=", webhookId)
      .execute();
  }

  /** Forgets deliveries of events up to `seq`, which are no longer kept. @returns how many. */
  async purge(_scope: ServerScope, seq: number): Promise<number> {
    const result = await this.#db.deleteFrom("webhook_deliveries").where("seq", "<=", seq).executeTakeFirst();
    return Number(result.numDeletedRows);
  }
}
