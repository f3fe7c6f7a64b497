import type { Expression, ExpressionBuilder, Kysely, Selectable, SqlBool } from "kysely";
import type { ApiKey, Scope } from "@torpor/protocol";
import { OperatorScope, type TenantScope } from "../auth/tenant-scope.ts";
import { KeptQueries } from "./kept-queries.ts";
import type { Database } from "./open-database.ts";
import { type ReadableRows, readableRows } from "./readable-rows.ts";
import { parseJsonColumn } from "./json-column.ts";
import type { KeyTable, Tables } from "./schema.ts";

export interface KeyRecord {
  id: string;
  account: string;
  name: string;
  prefix: string;
  tenant: string | null;
  scopes: readonly Scope[];
  /** Unix milliseconds, as are all times. */
  createdAt: number;
  expiresAt: number | null;
  lastUsedAt: number | null;
  revokedAt: number | null;
}

export interface NewKey {
  id: string;
  account: string;
  name: string;
  prefix: string;
  hash: string;
  tenant: string | null;
  scopes: readonly Scope[];
  createdAt: number;
  expiresAt: number | null;
}

function toKeyRecord(row: Selectable<KeyTable>): KeyRecord {
  return {
    id: row.id,
    account: row.account,
    name: row.name,
    prefix: row.prefix,
    tenant: row.tenant,
    scopes: parseJsonColumn(row.scopes) as Scope[],
    createdAt: row.created_at,
    expiresAt: row.expires_at,
    lastUsedAt: row.last_used_at,
    revokedAt: row.revoked_at,
  };
}

type KeyCondition = (where: ExpressionBuilder<Tables, "api_keys">) => Expression<SqlBool>;

/** Which keys a caller may see and revoke: those of its account, or of its tenant; the operator, all. */
function within(scope: TenantScope | OperatorScope): KeyCondition {
  return (where) => {
    if (scope instanceof OperatorScope) return where.and([]);
    const ofAccount = where("account", "=", scope.account);
    return scope.tenant === null ? ofAccount : where.and([ofAccount, where("tenant", "=", scope.tenant)]);
  };
}

const isoOrNull = (unixMs: number | null): string | null =>
  unixMs === null ? null : new Date(unixMs).toISOString();

/** Record to what the API shows: never the key or its hash. */
export function toApiKey(record: KeyRecord): ApiKey {
  return {
    id: record.id,
    name: record.name,
    prefix: record.prefix,
    account: record.account,
    tenant: record.tenant,
    scopes: [...record.scopes],
    created_at: new Date(record.createdAt).toISOString(),
    expires_at: isoOrNull(record.expiresAt),
    last_used_at: isoOrNull(record.lastUsedAt),
    revoked_at: isoOrNull(record.revokedAt),
  };
}

/** API keys. Only their hashes are kept; a key bound to a tenant manages that tenant's keys alone. */
export class KeyStore {
  readonly #db: Kysely<Tables>;
  readonly #queries = new KeptQueries();

  constructor(database: Database) {
    this.#db = database.db;
  }

  async insert(key: NewKey): Promise<KeyRecord> {
    const row = {
      id: key.id,
      account: key.account,
      name: key.name,
      prefix: key.prefix,
      hash: key.hash,
      tenant: key.tenant,
      scopes: JSON.stringify(key.scopes),
      created_at: key.createdAt,
      expires_at: key.expiresAt,
      last_used_at: null,
      revoked_at: null,
    };
    await this.#db.insertInto("api_keys").values(row).execute();
    return toKeyRecord(row);
  }

  /**
   * Keeps a key that a caller makes.
   *
   * @throws Error when it is of another account or tenant than the caller's, which the caller should have been told
   */
  async issue(scope: TenantScope | OperatorScope, key: NewKey): Promise<KeyRecord> {
    const isWithin =
      scope instanceof OperatorScope ||
      (key.account === scope.account && (scope.tenant === null || key.tenant === scope.tenant));
    if (!isWithin)
      throw new Error(`a key of account ${key.account}, tenant ${key.tenant} is beyond its maker`);
    return await this.insert(key);
  }

  /** The key with this hash, revoked and expired ones too. Read on every request: a revocation counts at once. */
  async findByHash(hash: string): Promise<KeyRecord | undefined> {
    const { rows } = await this.#queries.run(this.#db, "by hash", [hash], () =>
      this.#db.selectFrom("api_keys").selectAll().where("hash", "=", hash),
    );
    const [row] = rows;
    return row === undefined ? undefined : toKeyRecord(row);
  }

  /** The keys as they are now, those of them that are still there. */
  async reload(keys: readonly KeyRecord[]): Promise<KeyRecord[]> {
    const ids = keys.map(({ id }) => id);
    const rows = await this.#db.selectFrom("api_keys").selectAll().where("id", "in", ids).execute();
    return readableRows(rows, toKeyRecord).items; // one that cannot be read lets nobody in either
  }

  /** One of the caller's keys, of the operator any; undefined for one that does not exist and, just the same, for another's. */
  async find(scope: TenantScope | OperatorScope, id: string): Promise<KeyRecord | undefined> {
    const row = await this.#db
      .selectFrom("api_keys")
      .selectAll()
      .where("id", "=", id)
      .where(within(scope))
      .executeTakeFirst();
    return row === undefined ? undefined : toKeyRecord(row);
  }

  /** The caller's keys, newest first, at most 1,000. */
  list(scope: TenantScope): Promise<ReadableRows<KeyRecord>> {
    return this.#list(within(scope));
  }

  /** The keys of any account, newest first, at most 1,000. */
  listOf(_operator: OperatorScope, account: string): Promise<ReadableRows<KeyRecord>> {
    return this.#list((where) => where("account", "=", account));
  }

  async #list(condition: KeyCondition): Promise<ReadableRows<KeyRecord>> {
    const rows = await this.#db
      .selectFrom("api_keys")
      .selectAll()
      .where(condition)
      .orderBy("created_at", "desc")
      .orderBy("id", "desc")
      .limit(1_000)
      .execute();
    return readableRows(rows, toKeyRecord);
  }

  /** Revokes one of the caller's keys, of the operator any; a second time changes nothing. @returns undefined when it is not the caller's. */
  async revoke(
    scope: TenantScope | OperatorScope,
    id: string,
    revokedAt: number,
  ): Promise<KeyRecord | undefined> {
    await this.#db
      .updateTable("api_keys")
      .set({ revoked_at: revokedAt })
      .where("id", "=", id)
      .where(within(scope))
      .where("revoked_at", "is", null)
      .execute();
    return await this.find(scope, id);
  }

  /** Gives a key more than it had, for the first key of a server alone. */
  async grant(key: KeyRecord, scopes: readonly Scope[]): Promise<void> {
    await this.#db
      .updateTable("api_keys")
      .set({ scopes: JSON.stringify([...new Set([...key.scopes, ...scopes])]) })
      .where("id", "=", key.id)
      .execute();
  }

  async markUsed(key: KeyRecord, usedAt: number): Promise<void> {
    await this.#db.updateTable("api_keys").set({ last_used_at: usedAt }).where("id", "=", key.id).execute();
  }
}
