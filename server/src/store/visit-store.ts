import type { Kysely } from "kysely";
import type { Database } from "./open-database.ts";
import { type SandboxRecord, toSandboxRecord } from "./sandbox-record.ts";
import type { Tables } from "./schema.ts";

/**
 * Sandboxes as they are named by visitors, who have no API key. For the ingress alone, which decides who is let in: routes
 * are not given it.
 */
export class VisitStore {
  readonly #db: Kysely<Tables>;

  constructor(database: Database) {
    this.#db = database.db;
  }

  /** The sandbox of that id, whatever its state. */
  async find(id: string): Promise<SandboxRecord | undefined> {
    const row = await this.#db.selectFrom("sandboxes").selectAll().where("id", "=", id).executeTakeFirst();
    return row === undefined ? undefined : toSandboxRecord(row);
  }

  /** Ids of all that have not ended, to find the one whose token made a signature. */
  async livingIds(): Promise<string[]> {
    const rows = await this.#db
      .selectFrom("sandboxes")
      .select("id")
      .where("state", "!=", "destroyed")
      .execute();
    return rows.map(({ id }) => id);
  }
}
