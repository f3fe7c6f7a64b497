import { createHash } from "node:crypto";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import Sqlite from "better-sqlite3";
import { Kysely, Migrator, PostgresDialect, SqliteDialect } from "kysely";
import { Pool } from "pg";
import { describe, expect, onTestFinished, test } from "vitest";
import { BodyHashes } from "../src/http/body-hashes.ts";
import { migrationProvider, POSTGRES_COLUMNS, SQLITE_COLUMNS } from "../src/store/migrations.ts";
import { type DatabaseLocation, openDatabase } from "../src/store/open-database.ts";
import { ServerSecretStore } from "../src/store/server-secret-store.ts";
import type { Tables } from "../src/store/schema.ts";
import { startPostgres } from "./postgres.ts";
import { DATABASE_KINDS } from "./stores.ts";

/** A busy day's. */
const KEPT = 20_000;

/** An empty database of that kind, gone after the test. */
async function location(kind: (typeof DATABASE_KINDS)[number]): Promise<DatabaseLocation> {
  if (kind === "postgres") {
    const postgres = await startPostgres();
    onTestFinished(() => postgres[Symbol.asyncDispose]());
    return { kind, url: postgres.url };
  }
  const directory = mkdtempSync(join(tmpdir(), "torpor-body-hashes-"));
  onTestFinished(() => rmSync(directory, { recursive: true, force: true }));
  return { kind, path: join(directory, "server.sqlite") };
}

/** Fills it as the build before the migration did. */
async function fill(at: DatabaseLocation, rows: { key: string; body_hash: string }[]): Promise<void> {
  const [dialect, columns] =
    at.kind === "sqlite"
      ? [new SqliteDialect({ database: new Sqlite(at.path) }), SQLITE_COLUMNS]
      : [new PostgresDialect({ pool: new Pool({ connectionString: at.url }) }), POSTGRES_COLUMNS];
  const db = new Kysely<Tables>({ dialect });
  await new Migrator({ db, provider: migrationProvider(columns) }).migrateTo("0011_hibernate_memory");
  const same = { account: "default", tenant: "", route: "r", owner: "srv", heartbeat_at: 1, created_at: 1 };
  for (let from = 0; from < rows.length; from += 1_000)
    await db
      .insertInto("idempotency")
      .values(rows.slice(from, from + 1_000).map((row) => ({ ...same, ...row })))
      .execute();
  await db.destroy();
}

describe.each(DATABASE_KINDS)("on %s, hashes of bodies that were kept before they were keyed", (kind) => {
  test(
    "are keyed, and still those of their bodies, in seconds for a busy day's",
    { timeout: 120_000 },
    async () => {
      const body = (n: number): Buffer => Buffer.from(`{"secrets":{"PIN":"${n}"}}`);
      const unkeyed = (n: number): string => createHash("sha256").update(body(n)).digest("hex");
      const at = await location(kind);
      await fill(at, [
        ...Array.from({ length: KEPT }, (_, n) => ({ key: `key-${n}`, body_hash: unkeyed(n) })),
        { key: "again", body_hash: unkeyed(0) },
      ]);
      const began = process.cpuUsage();
      const database = await openDatabase(at);
      const { user, system } = process.cpuUsage(began);
      onTestFinished(() => database.close());
      const kept = await database.db.selectFrom("idempotency").select(["key", "body_hash"]).execute();
      const hashes = new BodyHashes(await new ServerSecretStore(database).secret("body-hashes"));
      const expected = Array.from({ length: KEPT }, (_, n) => [`key-${n}`, hashes.of(body(n))] as const);
      expect(new Map(kept.map((row) => [row.key, row.body_hash]))).toEqual(
        new Map([...expected, ["again", hashes.of(body(0))]]),
      );
      expect(hashes.of(body(0))).not.toBe(unkeyed(0));
      // Of work, not of waiting: a laden machine says nothing about it. PostgreSQL does its own elsewhere.
      expect((user + system) / 1_000_000).toBeLessThan(15);
    },
  );
});
