import type { Kysely, Migration } from "kysely";
import { keyedBodyHash } from "../http/body-hashes.ts";
import { ServerSecretStore } from "./server-secret-store.ts";
import type { Tables } from "./schema.ts";

/** Keys the hashes of bodies that are kept already, so that repeats of those requests are still known. */
export const bodyHashMigration: Migration = {
  async up(untyped: Kysely<unknown>): Promise<void> {
    const db = untyped as Kysely<Tables>;
    const secret = await new ServerSecretStore({ db }).secret("body-hashes");
    const kept = await db.selectFrom("idempotency").select("body_hash").distinct().execute();
    for (const { body_hash: hash } of kept)
      await db
        .updateTable("idempotency")
        .set({ body_hash: keyedBodyHash(secret, hash) })
        .where("body_hash", "=", hash)
        .execute();
  },
};
