import { type Kysely, type Migration, type MigrationProvider, sql } from "kysely";
import { bodyHashMigration } from "./body-hash-migration.ts";
import { ledgerMigration } from "./ledger-migration.ts";
import { usageMigration } from "./usage-migration.ts";
import { templateMigration } from "./template-migration.ts";

/** Column types that differ between the two databases. */
export interface ColumnTypes {
  json: "text" | "jsonb";
  /** Unix milliseconds. */
  time: "integer" | "bigint";
  real: "real" | "double precision";
  /** A number that counts up by itself. */
  serial: "integer" | "bigserial";
}

export const SQLITE_COLUMNS: ColumnTypes = { json: "text", time: "integer", real: "real", serial: "integer" };
export const POSTGRES_COLUMNS: ColumnTypes = {
  json: "jsonb",
  time: "bigint",
  real: "double precision",
  serial: "bigserial",
};

/** Schema changes in order; a released one is never edited. */
function migrations(types: ColumnTypes): Record<string, Migration> {
  return {
    "0001_sandboxes_keys_idempotency": {
      async up(db: Kysely<unknown>): Promise<void> {
        const json = sql.raw<string>(types.json);
        const time = sql.raw<number>(types.time);
        await db.schema
          .createTable("sandboxes")
          .addColumn("id", "text", (column) => column.primaryKey())
          .addColumn("account", "text", (column) => column.notNull())
          .addColumn("tenant", "text", (column) => column.notNull())
          .addColumn("name", "text")
          .addColumn("state", "text", (column) => column.notNull())
          .addColumn("generation", "integer", (column) => column.notNull())
          .addColumn("reason", "text")
          .addColumn("template", "text", (column) => column.notNull())
          .addColumn("driver", "text")
          .addColumn("metadata", json, (column) => column.notNull())
          .addColumn("cpu", sql.raw(types.real), (column) => column.notNull())
          .addColumn("memory_mb", "integer", (column) => column.notNull())
          .addColumn("disk_mb", "integer", (column) => column.notNull())
          .addColumn("network", "text", (column) => column.notNull())
          .addColumn("on_expire", "text", (column) => column.notNull())
          .addColumn("host", "text", (column) => column.notNull())
          .addColumn("attestation", json)
          .addColumn("created_at", time, (column) => column.notNull())
          .addColumn("started_at", time)
          .addColumn("expires_at", time)
          .addColumn("last_activity_at", time, (column) => column.notNull())
          .addColumn("ended_at", time)
          .execute();
        await db.schema
          .createIndex("sandboxes_page")
          .on("sandboxes")
          .columns(["account", "created_at", "id"])
          .execute();
        await db.schema
          .createIndex("sandboxes_tenant_page")
          .on("sandboxes")
          .columns(["account", "tenant", "created_at", "id"])
          .execute();
        await db.schema
          .createIndex("sandboxes_host_state")
          .on("sandboxes")
          .columns(["host", "state"])
          .execute();
        await db.schema.createIndex("sandboxes_ended").on("sandboxes").columns(["ended_at"]).execute();
        await db.schema
          .createTable("api_keys")
          .addColumn("id", "text", (column) => column.primaryKey())
          .addColumn("account", "text", (column) => column.notNull())
          .addColumn("name", "text", (column) => column.notNull())
          .addColumn("prefix", "text", (column) => column.notNull())
          .addColumn("hash", "text", (column) => column.notNull().unique())
          .addColumn("tenant", "text")
          .addColumn("scopes", json, (column) => column.notNull())
          .addColumn("created_at", time, (column) => column.notNull())
          .addColumn("expires_at", time)
          .addColumn("last_used_at", time)
          .addColumn("revoked_at", time)
          .execute();
        await db.schema
          .createTable("idempotency")
          .addColumn("account", "text", (column) => column.notNull())
          .addColumn("tenant", "text", (column) => column.notNull())
          .addColumn("route", "text", (column) => column.notNull())
          .addColumn("key", "text", (column) => column.notNull())
          .addColumn("body_hash", "text", (column) => column.notNull())
          .addColumn("owner", "text", (column) => column.notNull())
          .addColumn("heartbeat_at", time, (column) => column.notNull())
          .addColumn("created_at", time, (column) => column.notNull())
          .addColumn("progress", "text")
          .addColumn("status", "integer")
          .addColumn("body", "text")
          .addPrimaryKeyConstraint("idempotency_pk", ["account", "tenant", "route", "key"])
          .execute();
        await db.schema.createIndex("idempotency_age").on("idempotency").columns(["created_at"]).execute();
      },
    },
    "0002_stateful": {
      async up(db: Kysely<unknown>): Promise<void> {
        const json = sql.raw<string>(types.json);
        const time = sql.raw<number>(types.time);
        const flag = (name: string, value: number): Promise<void> =>
          db.schema
            .alterTable("sandboxes")
            .addColumn(name, "integer", (column) => column.notNull().defaultTo(value))
            .execute();
        // One column a statement: SQLite takes no more.
        await flag("persistent", 0);
        await flag("auto_wake", 1);
        await db.schema.alterTable("sandboxes").addColumn("idle_timeout_seconds", "integer").execute();
        await db.schema
          .alterTable("sandboxes")
          .addColumn("on_idle", "text", (column) => column.notNull().defaultTo("hibernate"))
          .execute();
        await db.schema.alterTable("sandboxes").addColumn("retention_seconds", "integer").execute();
        await db.schema.alterTable("sandboxes").addColumn("image", json).execute();
        await db.schema
          .createTable("snapshots")
          .addColumn("id", "text", (column) => column.primaryKey())
          .addColumn("account", "text", (column) => column.notNull())
          .addColumn("tenant", "text", (column) => column.notNull())
          .addColumn("sandbox_id", "text", (column) => column.notNull())
          .addColumn("host", "text", (column) => column.notNull())
          .addColumn("name", "text")
          .addColumn("kind", "text", (column) => column.notNull())
          .addColumn("state", "text", (column) => column.notNull())
          .addColumn("template", "text", (column) => column.notNull())
          .addColumn("cpu", sql.raw(types.real), (column) => column.notNull())
          .addColumn("memory_mb", "integer", (column) => column.notNull())
          .addColumn("disk_mb", "integer", (column) => column.notNull())
          .addColumn("network", "text", (column) => column.notNull())
          .addColumn("size_bytes", time, (column) => column.notNull())
          .addColumn("generation", "integer", (column) => column.notNull())
          .addColumn("retention_seconds", "integer")
          .addColumn("created_at", time, (column) => column.notNull())
          .addColumn("expires_at", time)
          .execute();
        await db.schema
          .createIndex("snapshots_page")
          .on("snapshots")
          .columns(["account", "created_at", "id"])
          .execute();
        await db.schema
          .createTable("sessions")
          .addColumn("account", "text", (column) => column.notNull())
          .addColumn("tenant", "text", (column) => column.notNull())
          .addColumn("key", "text", (column) => column.notNull())
          .addColumn("sandbox_id", "text", (column) => column.notNull())
          .addColumn("chosen_at", time, (column) => column.notNull())
          .addPrimaryKeyConstraint("sessions_pk", ["account", "tenant", "key"])
          .execute();
        await db.schema
          .createTable("audit")
          .addColumn("account", "text", (column) => column.notNull())
          .addColumn("tenant", "text", (column) => column.notNull())
          .addColumn("sandbox_id", "text", (column) => column.notNull())
          .addColumn("action", "text", (column) => column.notNull())
          .addColumn("reason", "text", (column) => column.notNull())
          .addColumn("key_id", "text", (column) => column.notNull())
          .addColumn("at", time, (column) => column.notNull())
          .execute();
        await db.schema.createIndex("audit_sandbox").on("audit").columns(["account", "sandbox_id"]).execute();
      },
    },
    "0003_events_webhooks_max_lifetime": {
      async up(db: Kysely<unknown>): Promise<void> {
        const json = sql.raw<string>(types.json);
        const time = sql.raw<number>(types.time);
        await db.schema.alterTable("sandboxes").addColumn("max_lifetime_at", time).execute();
        await db.schema
          .createTable("events")
          .addColumn("seq", sql.raw(types.serial), (column) =>
            types.serial === "integer" ? column.primaryKey().autoIncrement() : column.primaryKey(),
          )
          .addColumn("account", "text", (column) => column.notNull())
          .addColumn("tenant", "text", (column) => column.notNull())
          .addColumn("sandbox_id", "text", (column) => column.notNull())
          .addColumn("type", "text", (column) => column.notNull())
          .addColumn("at", time, (column) => column.notNull())
          .addColumn("body", "text", (column) => column.notNull())
          .execute();
        await db.schema
          .createIndex("events_tenant")
          .on("events")
          .columns(["account", "tenant", "seq"])
          .execute();
        await db.schema.createIndex("events_sandbox").on("events").columns(["sandbox_id", "seq"]).execute();
        await db.schema
          .createTable("webhooks")
          .addColumn("id", "text", (column) => column.primaryKey())
          .addColumn("account", "text", (column) => column.notNull())
          .addColumn("tenant", "text")
          .addColumn("url", "text", (column) => column.notNull())
          .addColumn("types", json, (column) => column.notNull())
          .addColumn("description", "text", (column) => column.notNull())
          .addColumn("secret", "text", (column) => column.notNull())
          .addColumn("enabled", "integer", (column) => column.notNull())
          .addColumn("disabled_because", "text")
          .addColumn("after_seq", time, (column) => column.notNull())
          .addColumn("created_at", time, (column) => column.notNull())
          .addColumn("last_delivered_at", time)
          .addColumn("last_error", "text")
          .execute();
        await db.schema
          .createTable("webhook_deliveries")
          .addColumn("webhook_id", "text", (column) => column.notNull())
          .addColumn("seq", time, (column) => column.notNull())
          .addColumn("attempts", "integer", (column) => column.notNull())
          .addColumn("next_at", time)
          .addPrimaryKeyConstraint("webhook_deliveries_pk", ["webhook_id", "seq"])
          .execute();
        await db.schema
          .createIndex("webhook_deliveries_due")
          .on("webhook_deliveries")
          .columns(["webhook_id", "next_at"])
          .execute();
      },
    },
    "0004_accounts": {
      async up(db: Kysely<unknown>): Promise<void> {
        const json = sql.raw<string>(types.json);
        const time = sql.raw<number>(types.time);
        await db.schema
          .createTable("accounts")
          .addColumn("id", "text", (column) => column.primaryKey())
          .addColumn("created_at", time, (column) => column.notNull())
          .addColumn("limits", json, (column) => column.notNull())
          .execute();
        // Those that were there before there was a table of them.
        await sql`insert into accounts (id, created_at, limits)
          select account, min(created_at), '{}' from
            (select account, created_at from api_keys union all select account, created_at from sandboxes) as known
          group by account`.execute(db);
        await sql`insert into accounts (id, created_at, limits) values ('default', ${Date.now()}, '{}')
          on conflict (id) do nothing`.execute(db);
      },
    },
    "0005_preview_urls": {
      async up(db: Kysely<unknown>): Promise<void> {
        const time = sql.raw<number>(types.time);
        await db.schema
          .createTable("preview_urls")
          .addColumn("id", "text", (column) => column.primaryKey())
          .addColumn("account", "text", (column) => column.notNull())
          .addColumn("tenant", "text", (column) => column.notNull())
          .addColumn("sandbox_id", "text", (column) => column.notNull())
          .addColumn("port", "integer", (column) => column.notNull())
          .addColumn("hash", "text", (column) => column.notNull().unique())
          .addColumn("key_id", "text", (column) => column.notNull())
          .addColumn("auto_wake", "integer", (column) => column.notNull())
          .addColumn("created_at", time, (column) => column.notNull())
          .addColumn("expires_at", time, (column) => column.notNull())
          .addColumn("revoked_at", time)
          .execute();
        await db.schema
          .createIndex("preview_urls_sandbox")
          .on("preview_urls")
          .columns(["sandbox_id", "created_at"])
          .execute();
        await db.schema
          .createIndex("preview_urls_expiry")
          .on("preview_urls")
          .columns(["expires_at"])
          .execute();
      },
    },
    "0006_quotas": {
      async up(db: Kysely<unknown>): Promise<void> {
        await db.schema
          .alterTable("accounts")
          .addColumn("tenant_limits", sql.raw(types.json), (column) => column.notNull().defaultTo("{}"))
          .execute();
        // What lives is counted at every create of an account with limits, beside 7 days of what has ended.
        await sql`create index sandboxes_living on sandboxes (account, tenant) where state <> 'destroyed'`.execute(
          db,
        );
        await db.schema
          .createIndex("snapshots_owner")
          .on("snapshots")
          .columns(["account", "tenant"])
          .execute();
      },
    },
    "0007_ledger": ledgerMigration(types),
    "0008_e2b": {
      async up(db: Kysely<unknown>): Promise<void> {
        await db.schema.alterTable("sandboxes").addColumn("e2b", sql.raw(types.json)).execute();
        await db.schema
          .createTable("server_secrets")
          .addColumn("name", "text", (column) => column.primaryKey())
          .addColumn("value", "text", (column) => column.notNull())
          .execute();
      },
    },
    "0009_usage": usageMigration(types),
    "0010_templates": templateMigration(types),
    "0011_hibernate_memory": {
      async up(db: Kysely<unknown>): Promise<void> {
        await db.schema
          .alterTable("sandboxes")
          .addColumn("hibernate_memory", "integer", (column) => column.notNull().defaultTo(1))
          .execute();
      },
    },
    "0012_keyed_body_hashes": bodyHashMigration,
  };
}

/** The migrations of one database, for kysely's migrator. */
export function migrationProvider(types: ColumnTypes): MigrationProvider {
  return { getMigrations: () => Promise.resolve(migrations(types)) };
}
