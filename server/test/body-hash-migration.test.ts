import { createHash } from "node:crypto";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import Sqlite from "better-sqlite3";
import { Kysely, Migrator, SqliteDialect } from "kysely";
import { expect, onTestFinished, test } from "vitest";
import { BodyHashes } from "../src/http/body-hashes.ts";
import { migrationProvider, SQLITE_COLUMNS } from "../src/store/migrations.ts";
import { openDatabase } from "../src/store/open-database.ts";
import { ServerSecretStore } from "../src/store/server-secret-store.ts";

test("hashes of bodies that were kept before they were keyed are keyed, and still those of their bodies", async () => {
  const directory = mkdtempSync(join(tmpdir(), "torpor-body-hashes-"));
  onTestFinished(() => rmSync(directory, { recursive: true, force: true }));
  const path = join(directory, "server.sqlite");
  const file = new Sqlite(path);
  const db = new Kysely<unknown>({ dialect: new SqliteDialect({ database: file }) });
  await new Migrator({ db, provider: migrationProvider(SQLITE_COLUMNS) }).migrateTo("0011_hibernate_memory");
  const body = Buffer.from('{"secrets":{"PIN":"1234"}}');
  const unkeyed = createHash("sha256").update(body).digest("hex");
  for (const key of ["one", "two"])
    file
      .prepare(
        "insert into idempotency (account, tenant, route, key, body_hash, owner, heartbeat_at, created_at) values ('default', '', 'r', ?, ?, 'srv', 1, 1)",
      )
      .run(key, unkeyed);
  await db.destroy();
  const database = await openDatabase({ kind: "sqlite", path });
  onTestFinished(() => database.close());
  const kept = await database.db.selectFrom("idempotency").select("body_hash").execute();
  const hashes = new BodyHashes(await new ServerSecretStore(database).secret("body-hashes"));
  expect(kept.map((row) => row.body_hash)).toEqual([hashes.of(body), hashes.of(body)]);
  expect(hashes.of(body)).not.toBe(unkeyed);
});
