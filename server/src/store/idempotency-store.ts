import type { Kysely, Selectable } from "kysely";
import type { ServerScope, TenantScope } from "../auth/tenant-scope.ts";
import { KeptQueries } from "./kept-queries.ts";
import type { Database } from "./open-database.ts";
import type { IdempotencyTable, Tables } from "./schema.ts";

declare const ofCaller: unique symbol;

/** One `Idempotency-Key` of one caller on one route. Made by {@link idempotencySlot} alone. */
export interface IdempotencySlot extends SlotColumns {
  readonly [ofCaller]: true;
}

interface SlotColumns {
  readonly account: string;
  readonly tenant: string;
  readonly route: string;
  readonly key: string;
}

export type IdempotencyRow = Readonly<Selectable<IdempotencyTable>>;

/** The slot of a caller's key. */
export function idempotencySlot(scope: TenantScope, route: string, key: string): IdempotencySlot {
  const columns: SlotColumns = { account: scope.account, tenant: scope.tenant ?? "", route, key };
  return columns as IdempotencySlot;
}

/** What became of requests that carried an `Idempotency-Key`. */
export class IdempotencyStore {
  readonly #db: Kysely<Tables>;
  readonly #queries = new KeptQueries();
  readonly #database: Database;

  constructor(database: Database) {
    this.#db = database.db;
    this.#database = database;
  }

  /**
   * Takes the slot, or gives the row of the request that has it. With `progress` it reaches the disk with the record of
   * what that names, which is committed before anything happens.
   */
  async claim(
    slot: IdempotencySlot,
    bodyHash: string,
    owner: string,
    now: number,
    progress: string | null,
  ): Promise<IdempotencyRow | "claimed"> {
    const insert = (db: Kysely<Tables>) => this.#insert(db, slot, bodyHash, owner, now, progress);
    const claimed = await (progress === null ? insert(this.#db) : this.#database.relaxed(insert));
    if (claimed) return "claimed";
    return (await this.find(slot)) ?? (await this.claim(slot, bodyHash, owner, now, progress));
  }

  async #insert(
    db: Kysely<Tables>,
    slot: IdempotencySlot,
    bodyHash: string,
    owner: string,
    now: number,
    progress: string | null,
  ): Promise<boolean> {
    const { account, tenant, route, key } = slot;
    const row = {
      account,
      tenant,
      route,
      key,
      body_hash: bodyHash,
      owner,
      heartbeat_at: now,
      created_at: now,
    };
    const columns = { ...row, progress, status: null, body: null };
    const { numAffectedRows } = await this.#queries.run(db, "claim", Object.values(columns), () =>
      db
        .insertInto("idempotency")
        .values(columns)
        .onConflict((conflict) => conflict.doNothing()),
    );
    return numAffectedRows === 1n;
  }

  async find(slot: IdempotencySlot): Promise<IdempotencyRow | undefined> {
    return await this.#at(this.#db.selectFrom("idempotency").selectAll(), slot).executeTakeFirst();
  }

  /** Takes an unfinished request over from an owner that is gone. @returns false when another did so first. */
  async takeOver(row: IdempotencyRow, owner: string, now: number): Promise<boolean> {
    const result = await this.#at(this.#db.updateTable("idempotency").set({ owner, heartbeat_at: now }), row)
      .where("owner", "=", row.owner)
      .where("heartbeat_at", "=", row.heartbeat_at)
      .where("status", "is", null)
      .executeTakeFirst();
    return Number(result.numUpdatedRows) === 1;
  }

  /** Notes what the request made or started, so that whoever takes it over can find it. */
  async noteProgress(slot: IdempotencySlot, progress: string): Promise<void> {
    await this.#at(this.#db.updateTable("idempotency").set({ progress }), slot).execute();
  }

  /** Keeps the answer; a null body stands for one too large to keep. */
  async finish(slot: IdempotencySlot, status: number, body: string | null): Promise<void> {
    await this.#finish(this.#db, slot, status, body);
  }

  /** As {@link IdempotencyStore.finish}, where a lost answer can be made up for. */
  async finishRelaxed(slot: IdempotencySlot, status: number, body: string | null): Promise<void> {
    await this.#database.relaxed((db) => this.#finish(db, slot, status, body));
  }

  async #finish(
    db: Kysely<Tables>,
    slot: IdempotencySlot,
    status: number,
    body: string | null,
  ): Promise<void> {
    await this.#at(db.updateTable("idempotency").set({ status, body }), slot).execute();
  }

  /** Frees the slot after a failure that did nothing, so that a retry runs. */
  async release(slot: IdempotencySlot): Promise<void> {
    await this.#at(this.#db.deleteFrom("idempotency"), slot).execute();
  }

  /** Says that `owner` still runs its unfinished requests. */
  async heartbeat(owner: string, now: number): Promise<void> {
    await this.#db
      .updateTable("idempotency")
      .set({ heartbeat_at: now })
      .where("owner", "=", owner)
      .where("status", "is", null)
      .execute();
  }

  /** Forgets at most `limit` keys made before `before`. @returns how many. */
  async purge(_scope: ServerScope, before: number, limit: number): Promise<number> {
    const old = await this.#db
      .selectFrom("idempotency")
      .select(["account", "tenant", "route", "key"])
      .where("created_at", "<", before)
      .orderBy("created_at")
      .limit(limit)
      .execute();
    for (const slot of old)
      await this.#at(this.#db.deleteFrom("idempotency"), slot).where("created_at", "<", before).execute();
    return old.length;
  }

  #at<
    Query extends {
      where(column: "account" | "tenant" | "route" | "key", operator: "=", value: string): Query;
    },
  >(query: Query, slot: SlotColumns): Query {
    return query
      .where("account", "=", slot.account)
      .where("tenant", "=", slot.tenant)
      .where("route", "=", slot.route)
      .where("key", "=", slot.key);
  }
}
