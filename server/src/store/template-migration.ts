import { type Kysely, type Migration, sql } from "kysely";
import type { ColumnTypes } from "./migrations.ts";

/** Templates that are built here: their builds, tags and logs. */
export function templateMigration(types: ColumnTypes): Migration {
  return {
    async up(db: Kysely<unknown>): Promise<void> {
      const json = sql.raw<string>(types.json);
      const time = sql.raw<number>(types.time);
      await db.schema
        .createTable("built_templates")
        .addColumn("id", "text", (column) => column.primaryKey())
        .addColumn("account", "text", (column) => column.notNull())
        .addColumn("tenant", "text", (column) => column.notNull())
        .addColumn("name", "text", (column) => column.notNull())
        .addColumn("created_at", time, (column) => column.notNull())
        .addColumn("updated_at", time, (column) => column.notNull())
        .addUniqueConstraint("built_templates_name", ["account", "tenant", "name"])
        .execute();
      await db.schema
        .createTable("template_builds")
        .addColumn("id", "text", (column) => column.primaryKey())
        .addColumn("template_id", "text", (column) => column.notNull())
        .addColumn("account", "text", (column) => column.notNull())
        .addColumn("tenant", "text", (column) => column.notNull())
        .addColumn("status", "text", (column) => column.notNull())
        .addColumn("tags", json, (column) => column.notNull())
        .addColumn("cpu", sql.raw(types.real))
        .addColumn("memory_mb", "integer")
        .addColumn("min_free_disk_mb", "integer")
        .addColumn("snapshot_id", "text")
        .addColumn("defaults", json)
        .addColumn("reason", json)
        .addColumn("heartbeat_at", time, (column) => column.notNull())
        .addColumn("created_at", time, (column) => column.notNull())
        .addColumn("finished_at", time)
        .execute();
      await db.schema
        .createIndex("template_builds_template")
        .on("template_builds")
        .columns(["template_id", "created_at"])
        .execute();
      await db.schema
        .createIndex("template_builds_status")
        .on("template_builds")
        .columns(["status", "heartbeat_at"])
        .execute();
      await db.schema
        .createTable("template_tags")
        .addColumn("template_id", "text", (column) => column.notNull())
        .addColumn("tag", "text", (column) => column.notNull())
        .addColumn("build_id", "text", (column) => column.notNull())
        .addColumn("created_at", time, (column) => column.notNull())
        .addPrimaryKeyConstraint("template_tags_pk", ["template_id", "tag"])
        .execute();
      await db.schema
        .createTable("template_build_logs")
        .addColumn("build_id", "text", (column) => column.notNull())
        .addColumn("seq", "integer", (column) => column.notNull())
        .addColumn("at", time, (column) => column.notNull())
        .addColumn("level", "text", (column) => column.notNull())
        .addColumn("message", "text", (column) => column.notNull())
        .addColumn("step", "text")
        .addPrimaryKeyConstraint("template_build_logs_pk", ["build_id", "seq"])
        .execute();
    },
  };
}
