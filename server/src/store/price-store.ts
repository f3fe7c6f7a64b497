import type { Kysely } from "kysely";
import { CodedError, DEFAULT_PRICES, type Prices, pricesSchema } from "@torpor/protocol";
import type { OperatorScope, ServerScope, TenantScope } from "../auth/tenant-scope.ts";
import { parseJsonColumn } from "./json-column.ts";
import type { Database } from "./open-database.ts";
import type { Tables } from "./schema.ts";

/** The prices of accounts without their own. */
const EVERYBODY = "";

/** What is paid: each account's own prices, else the operator's for all, else {@link DEFAULT_PRICES}. */
export class PriceStore {
  readonly #db: Kysely<Tables>;

  constructor(database: Database) {
    this.#db = database.db;
  }

  /** What the caller's account pays. */
  async own(scope: TenantScope): Promise<Prices> {
    return (await this.all(scope))(scope.account);
  }

  /** What each account pays. @throws CodedError internal when a row cannot be read */
  async all(_scope: TenantScope | OperatorScope | ServerScope): Promise<(account: string) => Prices> {
    const rows = await this.#db.selectFrom("prices").selectAll().execute();
    const prices = new Map(rows.map(({ account, body }) => [account, readPrices(account, body)]));
    return (account) => prices.get(account) ?? prices.get(EVERYBODY) ?? DEFAULT_PRICES;
  }

  /** Sets what an account pays, or, with null, what all pay that have none of their own. */
  async set(_operator: OperatorScope, account: string | null, prices: Prices): Promise<void> {
    const body = JSON.stringify(prices);
    await this.#db
      .insertInto("prices")
      .values({ account: account ?? EVERYBODY, body })
      .onConflict((conflict) => conflict.column("account").doUpdateSet({ body }))
      .execute();
  }

  /** Takes them off again. Idempotent. */
  async remove(_operator: OperatorScope, account: string | null): Promise<void> {
    await this.#db
      .deleteFrom("prices")
      .where("account", "=", account ?? EVERYBODY)
      .execute();
  }
}

function readPrices(account: string, body: unknown): Prices {
  const read = pricesSchema.safeParse(parseJsonColumn(body));
  if (read.success) return read.data;
  throw new CodedError(
    "internal",
    `the prices of ${account === EVERYBODY ? "all accounts" : `account ${account}`} cannot be read (${read.error.issues[0]?.message ?? ""}); set them anew`,
  );
}
