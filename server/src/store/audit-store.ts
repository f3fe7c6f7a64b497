import type { Kysely } from "kysely";
import type { Database } from "./open-database.ts";
import type { SandboxRecord } from "./sandbox-record.ts";
import type { AuditTable, Tables } from "./schema.ts";

/** What was decided about sandboxes, by which key and why. Rows are only ever added. */
export class AuditStore {
  readonly #db: Kysely<Tables>;

  constructor(database: Database) {
    this.#db = database.db;
  }

  async add(
    { account, tenant, id }: SandboxRecord,
    entry: Omit<AuditTable, "account" | "tenant" | "sandbox_id">,
  ): Promise<void> {
    await this.#db
      .insertInto("audit")
      .values({ account, tenant, sandbox_id: id, ...entry })
      .execute();
  }
}
