import type { Kysely, Selectable } from "kysely";
import type { ServerScope } from "../auth/tenant-scope.ts";
import type { PreviewTarget } from "../ingress/preview-origin.ts";
import type { Database } from "./open-database.ts";
import { type SandboxRecord, toSandboxRecord } from "./sandbox-record.ts";
import type { PreviewUrlTable, Tables } from "./schema.ts";

export interface PreviewUrlRecord {
  readonly id: string;
  readonly sandboxId: string;
  readonly port: number;
  readonly autoWake: boolean;
  /** Unix milliseconds, as are all times. */
  readonly createdAt: number;
  readonly expiresAt: number;
  readonly revokedAt: number | null;
}

function toPreviewUrlRecord(row: Omit<Selectable<PreviewUrlTable>, "hash">): PreviewUrlRecord {
  return {
    id: row.id,
    sandboxId: row.sandbox_id,
    port: row.port,
    autoWake: row.auto_wake !== 0,
    createdAt: row.created_at,
    expiresAt: row.expires_at,
    revokedAt: row.revoked_at,
  };
}

/** URLs asked for in one statement. */
const URLS_AT_ONCE = 500;

/** Preview URLs. Only their tokens' hashes are kept. */
export class PreviewUrlStore {
  readonly #db: Kysely<Tables>;

  constructor(database: Database) {
    this.#db = database.db;
  }

  async insert(
    sandbox: SandboxRecord,
    url: Pick<PreviewUrlRecord, "id" | "port" | "autoWake" | "createdAt" | "expiresAt"> & {
      hash: string;
      keyId: string;
    },
  ): Promise<PreviewUrlRecord> {
    const row = {
      id: url.id,
      account: sandbox.account,
      tenant: sandbox.tenant,
      sandbox_id: sandbox.id,
      port: url.port,
      hash: url.hash,
      key_id: url.keyId,
      auto_wake: url.autoWake ? 1 : 0,
      created_at: url.createdAt,
      expires_at: url.expiresAt,
      revoked_at: null,
    };
    await this.#db.insertInto("preview_urls").values(row).execute();
    return toPreviewUrlRecord(row);
  }

  /** How many of a sandbox's let anybody in. */
  async countLive(sandbox: SandboxRecord, now: number): Promise<number> {
    const row = await this.#db
      .selectFrom("preview_urls")
      .select((query) => query.fn.countAll<number | string>().as("count"))
      .where("sandbox_id", "=", sandbox.id)
      .where("expires_at", ">", now)
      .where("revoked_at", "is", null)
      .executeTakeFirst();
    return Number(row?.count ?? 0);
  }

  /** A sandbox's, newest first, at most 1,000; expired and revoked ones too, until they are purged. */
  async list(sandbox: SandboxRecord): Promise<PreviewUrlRecord[]> {
    const rows = await this.#db
      .selectFrom("preview_urls")
      .selectAll()
      .where("sandbox_id", "=", sandbox.id)
      .where("account", "=", sandbox.account)
      .orderBy("created_at", "desc")
      .orderBy("id", "desc")
      .limit(1_000)
      .execute();
    return rows.map(toPreviewUrlRecord);
  }

  /** Revokes one of a sandbox's; a second time changes nothing. @returns undefined when it has none of that id */
  async revoke(sandbox: SandboxRecord, id: string, revokedAt: number): Promise<PreviewUrlRecord | undefined> {
    const own = this.#db
      .selectFrom("preview_urls")
      .selectAll()
      .where("id", "=", id)
      .where("sandbox_id", "=", sandbox.id)
      .where("account", "=", sandbox.account);
    await this.#db
      .updateTable("preview_urls")
      .set({ revoked_at: revokedAt })
      .where("id", "=", id)
      .where("sandbox_id", "=", sandbox.id)
      .where("account", "=", sandbox.account)
      .where("revoked_at", "is", null)
      .execute();
    const row = await own.executeTakeFirst();
    return row === undefined ? undefined : toPreviewUrlRecord(row);
  }

  /**
   * What a token opens: the URL it is of, and its sandbox, when it is in force for that port of that sandbox and the API key
   * that made it has not been revoked. Read at every visit: a revocation counts at once.
   */
  async redeem(
    hash: string,
    target: PreviewTarget,
    now: number,
  ): Promise<{ url: PreviewUrlRecord; sandbox: SandboxRecord } | undefined> {
    const url = await this.#db
      .selectFrom("preview_urls")
      .innerJoin("api_keys", "api_keys.id", "preview_urls.key_id")
      .selectAll("preview_urls")
      .where("preview_urls.hash", "=", hash)
      .where("preview_urls.sandbox_id", "=", target.sandboxId)
      .where("preview_urls.port", "=", target.port)
      .where("preview_urls.expires_at", ">", now)
      .where("preview_urls.revoked_at", "is", null)
      .where("api_keys.revoked_at", "is", null)
      .executeTakeFirst();
    if (url === undefined) return undefined;
    const sandbox = await this.#db
      .selectFrom("sandboxes")
      .selectAll()
      .where("id", "=", url.sandbox_id)
      .where("account", "=", url.account)
      .where("tenant", "=", url.tenant)
      .executeTakeFirst();
    return sandbox === undefined
      ? undefined
      : { url: toPreviewUrlRecord(url), sandbox: toSandboxRecord(sandbox) };
  }

  /** Which of the URLs of visits that were let in still let anybody in. */
  async inForce(ids: ReadonlySet<string>, now: number): Promise<ReadonlySet<string>> {
    const all = [...ids];
    const found = new Set<string>();
    for (let from = 0; from < all.length; from += URLS_AT_ONCE) {
      const rows = await this.#db
        .selectFrom("preview_urls")
        .innerJoin("api_keys", "api_keys.id", "preview_urls.key_id")
        .select("preview_urls.id")
        .where("preview_urls.id", "in", all.slice(from, from + URLS_AT_ONCE))
        .where("preview_urls.expires_at", ">", now)
        .where("preview_urls.revoked_at", "is", null)
        .where("api_keys.revoked_at", "is", null)
        .execute();
      for (const { id } of rows) found.add(id);
    }
    return found;
  }

  /** Forgets at most `limit` that expired before `before`, or whose sandbox has ended. @returns how many */
  async purge(_scope: ServerScope, before: number, limit: number): Promise<number> {
    const result = await this.#db
      .deleteFrom("preview_urls")
      .where("id", "in", (query) =>
        query
          .selectFrom("preview_urls")
          .select("id")
          .where((where) =>
            where.or([
              where("expires_at", "<", before),
              where(
                "sandbox_id",
                "not in",
                where.selectFrom("sandboxes").select("sandboxes.id").where("state", "!=", "destroyed"),
              ),
            ]),
          )
          .limit(limit),
      )
      .executeTakeFirst();
    return Number(result.numDeletedRows);
  }
}
