import { type Kysely, type Selectable, type Transaction } from "kysely";
import { type BudgetPeriod, CodedError } from "@torpor/protocol";
import type { ServerScope, TenantScope } from "../auth/tenant-scope.ts";
import type { Database } from "./open-database.ts";
import type { BudgetTable, Tables } from "./schema.ts";

declare const fromStore: unique symbol;

/** One budget as the store gave it out. */
export interface BudgetRecord {
  readonly [fromStore]: true;
  readonly account: string;
  /** Null for the account's own. */
  readonly tenant: string | null;
  readonly amount: number;
  readonly period: BudgetPeriod;
  /** When it was last told that most of it is spent, Unix milliseconds. */
  readonly warnedAt: number | null;
  /** Until then nothing is made or woken; null while there is some left. */
  readonly exhaustedUntil: number | null;
}

/** An account's own budget. */
const WHOLE = "";

/** What tenants and accounts may spend in a period, and how far they are. */
export class BudgetStore {
  readonly #db: Kysely<Tables>;

  constructor(database: Database) {
    this.#db = database.db;
  }

  /** Sets one, or changes it; whether it is spent is found out anew. */
  async set(
    scope: TenantScope,
    tenant: string | null,
    { amount, period }: { amount: number; period: BudgetPeriod },
  ): Promise<BudgetRecord> {
    const fresh = { amount, period, warned_at: null, exhausted_until: null };
    const row = await this.#db
      .insertInto("budgets")
      .values({ account: scope.account, tenant: tenant ?? WHOLE, ...fresh })
      .onConflict((conflict) => conflict.columns(["account", "tenant"]).doUpdateSet(fresh))
      .returningAll()
      .executeTakeFirstOrThrow();
    return toBudgetRecord(row);
  }

  /** Idempotent. */
  async remove(scope: TenantScope, tenant: string | null): Promise<void> {
    await this.#db
      .deleteFrom("budgets")
      .where("account", "=", scope.account)
      .where("tenant", "=", tenant ?? WHOLE)
      .execute();
  }

  /** The caller's: all of its account, or its tenant's. */
  async list(scope: TenantScope): Promise<BudgetRecord[]> {
    let query = this.#db.selectFrom("budgets").selectAll().where("account", "=", scope.account);
    if (scope.tenant !== null) query = query.where("tenant", "=", scope.tenant);
    return (await query.orderBy("tenant").execute()).map(toBudgetRecord);
  }

  /** Whether one is spent, as it is on record now. */
  async isExhausted(_scope: ServerScope, { account, tenant }: BudgetRecord, now: number): Promise<boolean> {
    const row = await this.#db
      .selectFrom("budgets")
      .select("amount")
      .where("account", "=", account)
      .where("tenant", "=", tenant ?? WHOLE)
      .where("exhausted_until", ">", now)
      .executeTakeFirst();
    return row !== undefined;
  }

  /** Everybody's. */
  async all(_scope: ServerScope): Promise<BudgetRecord[]> {
    return (await this.#db.selectFrom("budgets").selectAll().execute()).map(toBudgetRecord);
  }
}

/** In the transaction that is about to make or wake one. @throws CodedError budget_exhausted */
export async function requireBudget(
  transaction: Transaction<Tables>,
  { account, tenant }: { account: string; tenant: string },
  what: "create" | "wake",
  now: number,
): Promise<void> {
  const row = await transaction
    .selectFrom("budgets")
    .selectAll()
    .where("account", "=", account)
    .where("tenant", "in", [WHOLE, tenant])
    .where("exhausted_until", ">", now)
    .executeTakeFirst();
  if (row === undefined) return;
  const until = new Date(row.exhausted_until ?? now).toISOString();
  const isOfAccount = row.tenant === WHOLE;
  // What the account may spend is not for each of its tenants to know.
  const whose = isOfAccount ? "the account" : `tenant ${tenant}`;
  const amount = isOfAccount ? "" : ` of ${row.amount}`;
  throw new CodedError(
    "budget_exhausted",
    `${whose} has spent its budget${amount} for this ${row.period}, so this ${what} is refused. What was awake sleeps, and is kept as its own clocks say. It begins anew at ${until}; raise the budget to go on before`,
    { details: { of: isOfAccount ? "account" : "tenant", period: row.period, renews_at: until } },
  );
}

/** Notes how far one is, in the transaction of whoever tells it. @returns false when it is not as the caller saw it any more */
export async function markBudget(
  transaction: Transaction<Tables>,
  { account, tenant, amount, period, warnedAt, exhaustedUntil }: BudgetRecord,
  to: { warnedAt: number | null; exhaustedUntil: number | null },
): Promise<boolean> {
  const { numUpdatedRows } = await transaction
    .updateTable("budgets")
    .set({ warned_at: to.warnedAt, exhausted_until: to.exhaustedUntil })
    .where("account", "=", account)
    .where("tenant", "=", tenant ?? WHOLE)
    .where("amount", "=", amount)
    .where("period", "=", period)
    .where("warned_at", warnedAt === null ? "is" : "=", warnedAt)
    .where("exhausted_until", exhaustedUntil === null ? "is" : "=", exhaustedUntil)
    .executeTakeFirst();
  return Number(numUpdatedRows) === 1;
}

function toBudgetRecord(row: Selectable<BudgetTable>): BudgetRecord {
  const record: Omit<BudgetRecord, typeof fromStore> = {
    account: row.account,
    tenant: row.tenant === WHOLE ? null : row.tenant,
    amount: row.amount,
    period: row.period,
    warnedAt: row.warned_at,
    exhaustedUntil: row.exhausted_until,
  };
  return record as BudgetRecord;
}
