import Sqlite from "better-sqlite3";
import {
  type CompiledQuery,
  type DatabaseConnection,
  type Dialect,
  type Driver,
  Kysely,
  type QueryResult,
  SqliteDialect,
} from "kysely";
import type { Database } from "../../src/store/open-database.ts";
import type { Tables } from "../../src/store/schema.ts";
import type { KillSwitch } from "./kill-switch.ts";

/**
 * A migrated SQLite file as one mortal server sees it. Its death closes the file at once, so that what was not committed
 * is rolled back, as the kernel and SQLite do for a process that is no more.
 */
export function openMortal(path: string, life: KillSwitch): Database {
  const file = new Sqlite(path);
  file.pragma("synchronous = OFF"); // the machine does not lose power here
  life.onKill(() => file.close());
  const inner = new SqliteDialect({ database: file });
  const dialect: Dialect = {
    createDriver: () => new MortalDriver(inner.createDriver(), life),
    createQueryCompiler: () => inner.createQueryCompiler(),
    createAdapter: () => inner.createAdapter(),
    createIntrospector: (db) => inner.createIntrospector(db),
  };
  const db = new Kysely<Tables>({ dialect });
  return {
    kind: "sqlite",
    db,
    relaxed: (write) => write(db),
    flush: async () => {},
    close: () => (life.dead ? Promise.resolve() : db.destroy()),
  };
}

class MortalDriver implements Driver {
  readonly #inner: Driver;
  readonly #life: KillSwitch;

  constructor(inner: Driver, life: KillSwitch) {
    this.#inner = inner;
    this.#life = life;
  }

  init(): Promise<void> {
    return this.#inner.init();
  }

  async acquireConnection(): Promise<DatabaseConnection> {
    return new MortalConnection(await this.#inner.acquireConnection(), this.#life);
  }

  beginTransaction(connection: DatabaseConnection): Promise<void> {
    return this.#inner.beginTransaction(connection, {});
  }

  commitTransaction(connection: DatabaseConnection): Promise<void> {
    return this.#inner.commitTransaction(connection);
  }

  rollbackTransaction(connection: DatabaseConnection): Promise<void> {
    return this.#inner.rollbackTransaction(connection);
  }

  releaseConnection(connection: DatabaseConnection): Promise<void> {
    return this.#inner.releaseConnection((connection as MortalConnection).inner);
  }

  destroy(): Promise<void> {
    return this.#inner.destroy();
  }
}

class MortalConnection implements DatabaseConnection {
  readonly inner: DatabaseConnection;
  readonly #life: KillSwitch;

  constructor(inner: DatabaseConnection, life: KillSwitch) {
    this.inner = inner;
    this.#life = life;
  }

  async executeQuery<R>(query: CompiledQuery): Promise<QueryResult<R>> {
    const name = query.sql.slice(0, 60);
    this.#life.point(`before ${name}`);
    const result = await this.inner.executeQuery<R>(query);
    this.#life.point(`after ${name}`);
    return result;
  }

  streamQuery<R>(query: CompiledQuery, chunkSize: number): AsyncIterableIterator<QueryResult<R>> {
    return this.inner.streamQuery<R>(query, chunkSize);
  }
}
