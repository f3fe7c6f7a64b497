import { type Kysely, type Migration, sql } from "kysely";
import type { ColumnTypes } from "./migrations.ts";

/** The meter's intervals, prices and budgets; what is there already is metered from now on. */
export function usageMigration(types: ColumnTypes): Migration {
  return {
    async up(db: Kysely<unknown>): Promise<void> {
      const time = sql.raw<string>(types.time);
      const real = sql.raw<string>(types.real);
      const json = sql.raw<string>(types.json);
      await db.schema
        .createTable("usage_intervals")
        .addColumn("sandbox_id", "text", (column) => column.notNull())
        .addColumn("number", "integer", (column) => column.notNull())
        .addColumn("account", "text", (column) => column.notNull())
        .addColumn("tenant", "text", (column) => column.notNull())
        .addColumn("template", "text", (column) => column.notNull())
        .addColumn("state", "text", (column) => column.notNull())
        .addColumn("cpu", real, (column) => column.notNull())
        .addColumn("memory_mb", "integer", (column) => column.notNull())
        .addColumn("disk_mb", "integer", (column) => column.notNull())
        .addColumn("image_bytes", time, (column) => column.notNull())
        .addColumn("from_at", time, (column) => column.notNull())
        .addColumn("to_at", time, (column) => column.notNull())
        .addColumn("cpu_seconds", real, (column) => column.notNull())
        .addColumn("memory_peak_bytes", time, (column) => column.notNull())
        .addColumn("network_in_bytes", time, (column) => column.notNull())
        .addColumn("network_out_bytes", time, (column) => column.notNull())
        .addColumn("idle_seconds", real, (column) => column.notNull())
        .addColumn("uncertain_ms", time, (column) => column.notNull())
        .addPrimaryKeyConstraint("usage_intervals_pk", ["sandbox_id", "number"])
        .execute();
      await db.schema
        .createIndex("usage_intervals_owner")
        .on("usage_intervals")
        .columns(["account", "to_at", "from_at"])
        .execute();
      const now = Date.now();
      const add = (name: string, type: typeof time, fallback: string | number): Promise<void> =>
        db.schema
          .alterTable("sandboxes")
          .addColumn(name, type, (column) => column.notNull().defaultTo(fallback))
          .execute();
      await add("metered_state", sql.raw("text"), "destroyed");
      await add("metered_from", time, 0);
      await add("metered_intervals", sql.raw("integer"), 0);
      await add("metered_move", sql.raw("integer"), 0);
      await add("metered_use", json, "{}");
      await sql`update sandboxes set metered_state = state, metered_from = ${now} where state <> 'destroyed'`.execute(
        db,
      );
      await db.schema
        .createTable("prices")
        .addColumn("account", "text", (column) => column.primaryKey())
        .addColumn("body", json, (column) => column.notNull())
        .execute();
      await db.schema
        .createTable("budgets")
        .addColumn("account", "text", (column) => column.notNull())
        .addColumn("tenant", "text", (column) => column.notNull())
        .addColumn("amount", real, (column) => column.notNull())
        .addColumn("period", "text", (column) => column.notNull())
        .addColumn("warned_at", time)
        .addColumn("exhausted_until", time)
        .addPrimaryKeyConstraint("budgets_pk", ["account", "tenant"])
        .execute();
    },
  };
}
