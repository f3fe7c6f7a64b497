import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import Sqlite from "better-sqlite3";
import { Kysely, Migrator, SqliteDialect } from "kysely";
import { expect, test } from "vitest";
import { migrationProvider, SQLITE_COLUMNS } from "../src/store/migrations.ts";
import { openDatabase } from "../src/store/open-database.ts";
import { auditOf, ledgerOf } from "./ledger-world.ts";

test("a ledger that begins on a store in use begins with what is bound already", async () => {
  const directory = mkdtempSync(join(tmpdir(), "torpor-ledger-migration-"));
  try {
    const path = join(directory, "server.sqlite");
    const file = new Sqlite(path);
    const db = new Kysely<unknown>({ dialect: new SqliteDialect({ database: file }) });
    const { error } = await new Migrator({ db, provider: migrationProvider(SQLITE_COLUMNS) }).migrateTo(
      "0006_quotas",
    );
    expect(error).toBeUndefined();
    for (const [id, state] of [
      ["lives", "running"],
      ["sleeps", "hibernated"],
      ["ended", "destroyed"],
    ])
      file
        .prepare(
          "insert into sandboxes (id, account, tenant, state, generation, template, metadata, cpu, memory_mb, disk_mb, network, on_expire, host, created_at, last_activity_at) values (?, 'default', 'acme', ?, 3, 'base', '{}', 1, 512, 1024, 'none', 'destroy', 'h', 1, 1)",
        )
        .run(id, state);
    file.exec(
      "insert into snapshots (id, account, tenant, sandbox_id, host, kind, state, template, cpu, memory_mb, disk_mb, network, size_bytes, generation, created_at) values ('snp1', 'default', 'acme', 'gone', 'h', 'user', 'ready', 'base', 1, 512, 1024, 'none', 5, 2, 1)",
    );
    await db.destroy();
    const database = await openDatabase({ kind: "sqlite", path });
    const { lines } = await ledgerOf(database);
    expect(lines.map(({ sandbox_id }) => sandbox_id)).toEqual(["lives", "sleeps", "gone"]);
    expect(lines.every(({ entry }) => entry.includes('"actor":"system:migration"'))).toBe(true);
    expect(await auditOf(database)).toMatchObject({
      findings: [],
      held: { sandboxes: 2, machines: 0, snapshots: 1 },
    });
    await database.close();
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
});
