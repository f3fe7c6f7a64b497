import { chmodSync } from "node:fs";
import { type FileHandle, open } from "node:fs/promises";
import Sqlite from "better-sqlite3";
import { Kysely, Migrator, PostgresDialect, SqliteDialect } from "kysely";
import { Pool, TypeOverrides, types } from "pg";
import { migrationProvider, POSTGRES_COLUMNS, SQLITE_COLUMNS } from "./migrations.ts";
import type { Tables } from "./schema.ts";

export interface Database {
  readonly kind: "sqlite" | "postgres";
  readonly db: Kysely<Tables>;
  /**
   * Writes what may be forgotten in a power cut, unless a later commit has reached the disk: order is kept. It survives
   * `kill -9` like any other. On PostgreSQL it is as durable as all else.
   */
  relaxed<T>(write: (db: Kysely<Tables>) => Promise<T>): Promise<T>;
  /** Resolves when what was written `relaxed` before the call is on the disk. Holds nobody up meanwhile. */
  flush(): Promise<void>;
  close(): Promise<void>;
}

/** Where the records are kept: a SQLite file, or a PostgreSQL URL for several servers. */
export type DatabaseLocation = { kind: "sqlite"; path: string } | { kind: "postgres"; url: string };

/** Opens the database and brings its schema up to date. @throws the driver's error, or the failed migration's. */
export async function openDatabase(location: DatabaseLocation): Promise<Database> {
  const database = location.kind === "sqlite" ? openSqlite(location.path) : openPostgres(location.url);
  try {
    const types = location.kind === "sqlite" ? SQLITE_COLUMNS : POSTGRES_COLUMNS;
    const migrator = new Migrator({ db: database.db, provider: migrationProvider(types) });
    const { error } = await migrator.migrateToLatest();
    if (error !== undefined) throw error;
    return database;
  } catch (error) {
    await database.close().catch(() => {}); // what failed first is what a person needs to see
    throw error;
  }
}

/** Loads SQLite itself, which is otherwise read from the program's folder when a database is first opened. */
export function loadSqlite(): void {
  new Sqlite(":memory:").close();
}

/**
 * WAL with `synchronous=FULL`: every commit reaches the disk, so a revoked key stays revoked and an answered create
 * stays recorded over a power cut. Measured on a virtio disk: 0.5 ms a commit that comes alone, against 0.1 with NORMAL; one
 * such commits a create. Statements are prepared once and kept: kysely gives the same text for the same query.
 */
function openSqlite(path: string): Database {
  const file = new Sqlite(path);
  chmodSync(path, 0o600);
  file.pragma("journal_mode = WAL");
  file.pragma("synchronous = FULL");
  file.pragma("busy_timeout = 5000");
  file.pragma("foreign_keys = ON");
  const statements = new Map<string, Sqlite.Statement>();
  /** The write-ahead log, one file as long as the database is open. */
  let log: Promise<FileHandle> | undefined;
  const prepared = {
    close: () => file.close(),
    prepare(text: string) {
      let statement = statements.get(text);
      if (statement === undefined) {
        if (statements.size >= 256) statements.clear(); // filters make many texts; none is worth keeping for ever
        statement = file.prepare(text);
        statements.set(text, statement);
      }
      return statement;
    },
  };
  const db = new Kysely<Tables>({ dialect: new SqliteDialect({ database: prepared }) });
  return {
    kind: "sqlite",
    db,
    // Nobody else uses the one connection meanwhile. Not by a kept statement: this pragma acts when it is prepared.
    relaxed: (write) =>
      db.connection().execute(async (connection) => {
        file.pragma("synchronous = NORMAL");
        try {
          return await write(connection);
        } finally {
          file.pragma("synchronous = FULL");
        }
      }),
    flush: async () => {
      log ??= open(`${path}-wal`, "r");
      await (await log).datasync();
    },
    close: async () => {
      await (await log)?.close();
      await db.destroy();
    },
  };
}

function openPostgres(url: string): Database {
  const parsers = new TypeOverrides();
  // pg gives 64-bit numbers as text unless told otherwise; ours are milliseconds and counts.
  parsers.setTypeParser(types.builtins.INT8, Number);
  const pool = new Pool({
    connectionString: url,
    max: 16,
    connectionTimeoutMillis: 5_000,
    statement_timeout: 15_000,
    types: parsers,
  });
  pool.on("error", () => {}); // an idle connection that breaks is replaced by the next query
  const db = new Kysely<Tables>({ dialect: new PostgresDialect({ pool }) });
  return {
    kind: "postgres",
    db,
    relaxed: (write) => write(db),
    flush: async () => {},
    close: () => db.destroy(),
  };
}
