import { randomBytes } from "node:crypto";
import { type Kysely, type Migration, sql } from "kysely";
import { KeptQueries } from "./kept-queries.ts";
import { appendToLedger } from "./ledger-store.ts";
import type { ColumnTypes } from "./migrations.ts";
import type { Tables } from "./schema.ts";

/** The ledger, and what a sandbox's record says of what it holds. */
export function ledgerMigration(types: ColumnTypes): Migration {
  return {
    async up(db: Kysely<Tables>): Promise<void> {
      const time = sql.raw<number>(types.time);
      await db.schema
        .createTable("ledger")
        .addColumn("seq", time, (column) => column.primaryKey())
        .addColumn("hash", "text", (column) => column.notNull())
        .addColumn("account", "text", (column) => column.notNull())
        .addColumn("tenant", "text")
        .addColumn("sandbox_id", "text")
        .addColumn("entry", "text", (column) => column.notNull())
        .execute();
      await db.schema
        .createIndex("ledger_tenant")
        .on("ledger")
        .columns(["account", "tenant", "seq"])
        .execute();
      await db.schema.createIndex("ledger_sandbox").on("ledger").columns(["sandbox_id", "seq"]).execute();
      await db.schema
        .createTable("ledger_head")
        .addColumn("ledger", "text", (column) => column.notNull())
        .addColumn("seq", time, (column) => column.notNull())
        .addColumn("hash", "text", (column) => column.notNull())
        .execute();
      const ledger = randomBytes(32).toString("hex");
      await sql`insert into ledger_head (ledger, seq, hash) values (${ledger}, 0, ${ledger})`.execute(db);
      await db.schema
        .alterTable("sandboxes")
        .addColumn("incarnation", "integer", (column) => column.notNull().defaultTo(0))
        .execute();
      for (const name of ["machine_id", "address", "image_id", "created_by", "ended_by"])
        await db.schema.alterTable("sandboxes").addColumn(name, "text").execute();
      await db.schema.createIndex("sandboxes_address").on("sandboxes").columns(["host", "address"]).execute();
      await bindWhatIsThere(db);
    },
  };
}

/** The ledger begins with what is bound already; which machines those have is told by their hosts. */
async function bindWhatIsThere(db: Kysely<Tables>): Promise<void> {
  const entry = {
    action: "bind",
    actor: "system:migration",
    reason: "held before the ledger began",
  } as const;
  const sandboxes = await db
    .selectFrom("sandboxes")
    .select(["id", "account", "tenant", "host", "generation"])
    .where("state", "<>", "destroyed")
    .execute();
  const snapshots = await db
    .selectFrom("snapshots")
    .select(["id", "account", "tenant", "host", "generation", "sandbox_id"])
    .execute();
  const drafts = [
    ...sandboxes.map(({ id, ...owner }) => ({
      ...entry,
      ...owner,
      sandbox_id: id,
      resources: [{ kind: "sandbox" as const, id }],
    })),
    ...snapshots.map(({ id, ...owner }) => ({
      ...entry,
      ...owner,
      resources: [{ kind: "snapshot" as const, id }],
    })),
  ];
  for (let from = 0; from < drafts.length; from += 100)
    await appendToLedger(db, drafts.slice(from, from + 100), Date.now(), new KeptQueries());
}
