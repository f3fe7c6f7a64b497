import type { Kysely, Selectable } from "kysely";
import {
  type Account,
  accountLimitsSchema,
  type AccountLimits,
  type ChangedAccountLimits,
  type ChangedQuotas,
  CodedError,
  type QuotaLimits,
  type QuotaUsage,
} from "@torpor/protocol";
import type { OperatorScope, TenantScope } from "../auth/tenant-scope.ts";
import { KeptQueries } from "./kept-queries.ts";
import type { Database } from "./open-database.ts";
import { decodeCursor, type RecordPage, toPage } from "./page-cursor.ts";
import { quotasOf, quotaUsage } from "./quota.ts";
import { parseJsonColumn } from "./json-column.ts";
import type { AccountTable, Tables } from "./schema.ts";

declare const fromStore: unique symbol;

/** One account as the store gave it out: holding it is the right to see it. */
export interface AccountRecord {
  readonly [fromStore]: true;
  readonly id: string;
  readonly limits: AccountLimits;
  /** Of each tenant. */
  readonly tenantLimits: QuotaLimits;
  /** Unix milliseconds. */
  readonly createdAt: number;
}

/** Limits to set; what is left out stays. */
export interface LimitChanges {
  limits: ChangedAccountLimits;
  tenantLimits: ChangedQuotas;
}

/** Those who pay, and what each may have. Only the operator makes, lists and limits them. */
export class AccountStore {
  readonly #db: Kysely<Tables>;
  readonly #queries = new KeptQueries();
  readonly #kind: Database["kind"];

  constructor(database: Database) {
    this.#db = database.db;
    this.#kind = database.kind;
  }

  /** @returns undefined when there is one of that name already. */
  async insert(
    _operator: OperatorScope,
    id: string,
    { limits, tenantLimits }: LimitChanges,
    createdAt: number,
  ): Promise<AccountRecord | undefined> {
    const row = await this.#db
      .insertInto("accounts")
      .values({
        id,
        created_at: createdAt,
        limits: JSON.stringify(limits),
        tenant_limits: JSON.stringify(tenantLimits),
      })
      .onConflict((conflict) => conflict.column("id").doNothing())
      .returningAll()
      .executeTakeFirst();
    return row === undefined ? undefined : toAccountRecord(row);
  }

  /** The caller's own account. @throws Error when it has no row: keys are made in accounts alone */
  async own(scope: TenantScope): Promise<AccountRecord> {
    const record = await this.#find(scope.account);
    if (record === undefined) throw new Error(`account ${scope.account} has keys, but no row of its own`);
    return record;
  }

  /** Any account. */
  find(_operator: OperatorScope, id: string): Promise<AccountRecord | undefined> {
    return this.#find(id);
  }

  async #find(id: string): Promise<AccountRecord | undefined> {
    const { rows } = await this.#queries.run(this.#db, "by id", [id], () =>
      this.#db.selectFrom("accounts").selectAll().where("id", "=", id),
    );
    const [row] = rows;
    return row === undefined ? undefined : toAccountRecord(row);
  }

  /** One page, newest first. @throws CodedError invalid_request for a cursor that is not ours. */
  async list(
    _operator: OperatorScope,
    { limit, cursor }: { limit: number; cursor?: string | undefined },
  ): Promise<RecordPage<AccountRecord>> {
    let query = this.#db.selectFrom("accounts").selectAll();
    if (cursor !== undefined) {
      const { createdAt, id } = decodeCursor(cursor);
      query = query.where((where) =>
        where.or([
          where("created_at", "<", createdAt),
          where.and([where("created_at", "=", createdAt), where("id", "<", id)]),
        ]),
      );
    }
    const rows = await query
      .orderBy("created_at", "desc")
      .orderBy("id", "desc")
      .limit(limit + 1)
      .execute();
    return toPage(rows, limit, toAccountRecord);
  }

  /** Sets some limits and leaves the others. @returns undefined when there is no such account. */
  async setLimits(
    _operator: OperatorScope,
    id: string,
    changes: LimitChanges,
  ): Promise<AccountRecord | undefined> {
    return await this.#db.transaction().execute(async (transaction) => {
      const row = await transaction
        .selectFrom("accounts")
        .selectAll()
        .where("id", "=", id)
        // SQLite has one writer at a time as it is.
        .$if(this.#kind === "postgres", (query) => query.forUpdate())
        .executeTakeFirst();
      if (row === undefined) return undefined;
      const before = toAccountRecord(row);
      const changed = await transaction
        .updateTable("accounts")
        .set({
          limits: JSON.stringify({ ...before.limits, ...changes.limits }),
          tenant_limits: JSON.stringify({ ...before.tenantLimits, ...changes.tenantLimits }),
        })
        .where("id", "=", id)
        .returningAll()
        .executeTakeFirstOrThrow();
      return toAccountRecord(changed);
    });
  }

  /** What an account that was found has now. */
  usage(record: AccountRecord, now: number): Promise<QuotaUsage> {
    return quotaUsage(this.#db, this.#kind, { account: record.id }, now);
  }

  /** What one tenant of the caller's account has now. */
  tenantUsage(scope: TenantScope, tenant: string, now: number): Promise<QuotaUsage> {
    if (scope.tenant !== null && scope.tenant !== tenant)
      throw new Error(`a key bound to tenant ${scope.tenant} may not see the use of tenant ${tenant}`);
    return quotaUsage(this.#db, this.#kind, { account: scope.account, tenant }, now);
  }
}

/** @throws CodedError internal when its limits cannot be read: then nothing may be made in it, rather than anything. */
function toAccountRecord(row: Selectable<AccountTable>): AccountRecord {
  let limits: AccountLimits;
  let tenantLimits: QuotaLimits;
  try {
    const quotas = quotasOf(row.limits);
    const { max_lifetime_seconds = null } = parseJsonColumn(row.limits) as Partial<AccountLimits>;
    limits = accountLimitsSchema.parse({ ...quotas, max_lifetime_seconds });
    tenantLimits = quotasOf(row.tenant_limits);
  } catch (cause) {
    throw new CodedError(
      "internal",
      `the limits of account ${row.id} cannot be read (${cause instanceof Error ? cause.message : String(cause)}); set them anew in its row, or restore the store from a backup`,
      { cause, details: { account: row.id } },
    );
  }
  const record: Omit<AccountRecord, typeof fromStore> = {
    id: row.id,
    limits,
    tenantLimits,
    createdAt: row.created_at,
  };
  return record as AccountRecord;
}

/** Record to what the API shows. */
export function toAccount(record: AccountRecord, usage: QuotaUsage): Account {
  return {
    id: record.id,
    created_at: new Date(record.createdAt).toISOString(),
    limits: record.limits,
    tenant_limits: record.tenantLimits,
    usage,
  };
}
