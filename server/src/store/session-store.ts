import type { Kysely, Selectable } from "kysely";
import type { ServerScope } from "../auth/tenant-scope.ts";
import type { Database } from "./open-database.ts";
import type { SessionTable, Tables } from "./schema.ts";

/** One session: a name of a tenant for the sandbox it has now. */
export type SessionRow = Readonly<Selectable<SessionTable>>;

/** Name of a session. */
export type SessionName = Pick<SessionRow, "account" | "tenant" | "key">;

/** Which sandbox a tenant's session key stands for. One row a key: the look-up that finds it is the one that guards it. */
export class SessionStore {
  readonly #db: Kysely<Tables>;

  constructor(database: Database) {
    this.#db = database.db;
  }

  /** The row of that name, made with `sandboxId` if there was none. */
  async findOrClaim(name: SessionName, sandboxId: string, now: number): Promise<SessionRow> {
    await this.#db
      .insertInto("sessions")
      .values({ ...name, sandbox_id: sandboxId, chosen_at: now })
      .onConflict((conflict) => conflict.doNothing())
      .execute();
    const row = await this.#db
      .selectFrom("sessions")
      .selectAll()
      .where("account", "=", name.account)
      .where("tenant", "=", name.tenant)
      .where("key", "=", name.key)
      .executeTakeFirst();
    return row ?? (await this.findOrClaim(name, sandboxId, now));
  }

  /** Gives the name to another sandbox, unless it has one already that the caller did not see. @returns whether it did. */
  async replace(row: SessionRow, sandboxId: string, now: number): Promise<boolean> {
    const result = await this.#db
      .updateTable("sessions")
      .set({ sandbox_id: sandboxId, chosen_at: now })
      .where("account", "=", row.account)
      .where("tenant", "=", row.tenant)
      .where("key", "=", row.key)
      .where("sandbox_id", "=", row.sandbox_id)
      .executeTakeFirst();
    return Number(result.numUpdatedRows) === 1;
  }

  /** Frees the name if it still stands for that sandbox. */
  async release(name: SessionName, sandboxId: string): Promise<void> {
    await this.#db
      .deleteFrom("sessions")
      .where("account", "=", name.account)
      .where("tenant", "=", name.tenant)
      .where("key", "=", name.key)
      .where("sandbox_id", "=", sandboxId)
      .execute();
  }

  /** Forgets at most `limit` sessions chosen before `before` whose sandbox the store no longer knows. @returns how many. */
  async purge(_scope: ServerScope, before: number, limit: number): Promise<number> {
    const gone = await this.#db
      .selectFrom("sessions")
      .selectAll()
      .where("chosen_at", "<", before)
      .where((where) =>
        where.not(
          where.exists(
            where
              .selectFrom("sandboxes")
              .select("sandboxes.id")
              .whereRef("sandboxes.id", "=", "sessions.sandbox_id"),
          ),
        ),
      )
      .limit(limit)
      .execute();
    for (const row of gone) await this.release(row, row.sandbox_id);
    return gone.length;
  }
}
