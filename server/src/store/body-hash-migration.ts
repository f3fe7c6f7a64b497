import type { Kysely, Migration } from "kysely";
import { keyedBodyHash } from "../http/body-hashes.ts";
import { ServerSecretStore } from "./server-secret-store.ts";
import type { Tables } from "./schema.ts";

/** Keys the hashes of bodies that are kept already, so that repeats of those requests are still known. */
export const bodyHashMigration: Migration = {
  async up(untyped: Kysely<unknown>): Promise<void> {
    const db = untyped as Kysely<Tables>;
    const secret = await new ServerSecretStore({ db }).secret("body-hashes");
    const kept = await db
      .selectFrom("idempotency")
      .select(["account", "tenant", "route", "key", "body_hash"])
      .execute();
    // By the primary key: no index has the hash, and a busy day keeps tens of thousands of rows.
    for (const { body_hash: hash, ...slot } of kept)
      await db
        .updateTable("idempotency")
        .set({ body_hash: keyedBodyHash(secret, hash) })
        .where((where) => where.and(slot))
        .execute();
  },
};
