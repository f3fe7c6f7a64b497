import { type Kysely, sql } from "kysely";
import type { Database } from "./open-database.ts";
import type { Tables } from "./schema.ts";

/** Things that have an owner and are named by requests. */
export type OwnedKind = "sandbox" | "snapshot" | "key" | "webhook" | "preview_url";

export interface Owner {
  account: string;
  tenant: string | null;
}

const TABLES = {
  sandbox: "sandboxes",
  snapshot: "snapshots",
  key: "api_keys",
  webhook: "webhooks",
  preview_url: "preview_urls",
} as const satisfies Record<OwnedKind, keyof Tables>;

/** Whose things are, whoever asks: for the ledger's denials alone, whose answers no request waits for. */
export class OwnerStore {
  readonly #db: Kysely<Tables>;

  constructor(database: Database) {
    this.#db = database.db;
  }

  /** The owners of those that exist. */
  async ownersOf(kind: OwnedKind, ids: readonly string[]): Promise<Map<string, Owner>> {
    if (ids.length === 0) return new Map();
    const { rows } = await sql<Owner & { id: string }>`
      select id, account, tenant from ${sql.table(TABLES[kind])} where id in (${sql.join(ids)})
    `.execute(this.#db);
    return new Map(rows.map(({ id, account, tenant }) => [id, { account, tenant }]));
  }
}
