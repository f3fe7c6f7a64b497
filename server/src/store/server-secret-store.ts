import { randomBytes } from "node:crypto";
import type { Kysely } from "kysely";
import type { Database } from "./open-database.ts";
import type { Tables } from "./schema.ts";

/** Secrets of the server's own, made once for a store: every server of it, now and later, has the same. */
export class ServerSecretStore {
  readonly #db: Kysely<Tables>;

  constructor(database: Pick<Database, "db">) {
    this.#db = database.db;
  }

  /** The secret of that name: 256 random bits, made at the first call. */
  async secret(name: string): Promise<Buffer> {
    await this.#db
      .insertInto("server_secrets")
      .values({ name, value: randomBytes(32).toString("hex") })
      .onConflict((conflict) => conflict.doNothing())
      .execute();
    const { value } = await this.#db
      .selectFrom("server_secrets")
      .select("value")
      .where("name", "=", name)
      .executeTakeFirstOrThrow();
    return Buffer.from(value, "hex");
  }
}
