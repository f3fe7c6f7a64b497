import type { Kysely, Selectable } from "kysely";
import {
  type Account,
  accountLimitsSchema,
  type AccountLimits,
  type AccountUsage,
  type ChangedAccountLimits,
  CodedError,
} from "@torpor/protocol";
import type { OperatorScope, TenantScope } from "../auth/tenant-scope.ts";
import type { Database } from "./open-database.ts";
import { decodeCursor, type RecordPage, toPage } from "./page-cursor.ts";
import { parseJsonColumn } from "./sandbox-record.ts";
import type { AccountTable, Tables } from "./schema.ts";

declare const fromStore: unique symbol;

/** One account as the store gave it out: holding it is the right to see it. */
export interface AccountRecord {
  readonly [fromStore]: true;
  readonly id: string;
  readonly limits: AccountLimits;
  /** Unix milliseconds. */
  readonly createdAt: number;
}

/** States that hold no machine. */
const MACHINELESS = ["hibernated", "failed", "destroying", "destroyed"] as const;

/** Those who pay, and what each may have. Only the operator makes, lists and limits them. */
export class AccountStore {
  readonly #db: Kysely<Tables>;
  readonly #kind: Database["kind"];

  constructor(database: Database) {
    this.#db = database.db;
    this.#kind = database.kind;
  }

  /** @returns undefined when there is one of that name already. */
  async insert(
    _operator: OperatorScope,
    id: string,
    limits: ChangedAccountLimits,
    createdAt: number,
  ): Promise<AccountRecord | undefined> {
    const row = await this.#db
      .insertInto("accounts")
      .values({ id, created_at: createdAt, limits: JSON.stringify(limits) })
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
    const row = await this.#db.selectFrom("accounts").selectAll().where("id", "=", id).executeTakeFirst();
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
    changes: ChangedAccountLimits,
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
      const limits = { ...toAccountRecord(row).limits, ...changes };
      const changed = await transaction
        .updateTable("accounts")
        .set({ limits: JSON.stringify(limits) })
        .where("id", "=", id)
        .returningAll()
        .executeTakeFirstOrThrow();
      return toAccountRecord(changed);
    });
  }

  /** What these accounts have now. */
  async usageOf(records: readonly AccountRecord[]): Promise<Map<string, AccountUsage>> {
    const usage = new Map(records.map(({ id }) => [id, { sandboxes: 0, sandboxes_awake: 0 }]));
    if (usage.size === 0) return usage;
    const rows = await this.#db
      .selectFrom("sandboxes")
      .select(["account", "state", (query) => query.fn.countAll<number | string>().as("count")])
      .where("account", "in", [...usage.keys()])
      .where("state", "<>", "destroyed")
      .groupBy(["account", "state"])
      .execute();
    for (const row of rows) {
      const one = usage.get(row.account);
      if (one === undefined) continue;
      one.sandboxes += Number(row.count);
      if (!MACHINELESS.some((state) => state === row.state)) one.sandboxes_awake += Number(row.count);
    }
    return usage;
  }
}

/** @throws CodedError internal when its limits cannot be read: then nothing may be made in it, rather than anything. */
function toAccountRecord(row: Selectable<AccountTable>): AccountRecord {
  let limits: AccountLimits;
  try {
    limits = accountLimitsSchema.parse({ ...NO_LIMITS, ...(parseJsonColumn(row.limits) as object) });
  } catch (cause) {
    throw new CodedError(
      "internal",
      `the limits of account ${row.id} cannot be read (${cause instanceof Error ? cause.message : String(cause)}); set them anew in its row, or restore the store from a backup`,
      { cause, details: { account: row.id } },
    );
  }
  const record: Omit<AccountRecord, typeof fromStore> = { id: row.id, limits, createdAt: row.created_at };
  return record as AccountRecord;
}

const NO_LIMITS: AccountLimits = { max_lifetime_seconds: null };

/** Record to what the API shows. */
export function toAccount(record: AccountRecord, usage: AccountUsage): Account {
  return {
    id: record.id,
    created_at: new Date(record.createdAt).toISOString(),
    limits: record.limits,
    usage,
  };
}
