import type { Kysely, Selectable } from "kysely";
import type { NetworkPolicy, Snapshot } from "@torpor/protocol";
import { type Clock, systemClock } from "@torpor/base";
import type { ServerScope, TenantScope } from "../auth/tenant-scope.ts";
import { type LedgerDraft, LedgerStore, type LedgerWriter } from "./ledger-store.ts";
import type { Database } from "./open-database.ts";
import { networkColumn, readNetworkColumn } from "./network-column.ts";
import { decodeCursor, type RecordPage, toPage } from "./page-cursor.ts";
import { requireQuota } from "./quota.ts";
import type { SnapshotTable, Tables } from "./schema.ts";
import { snapshotInterval } from "./open-usage.ts";
import type { BuildRecord } from "./template-store.ts";

declare const fromStore: unique symbol;

/** One snapshot as the store gave it out: holding it is the right to use it. */
export interface SnapshotRecord {
  readonly [fromStore]: true;
  readonly id: string;
  readonly account: string;
  readonly tenant: string;
  readonly sandboxId: string;
  readonly host: string;
  readonly name: string | null;
  readonly kind: SnapshotTable["kind"];
  readonly template: string;
  readonly cpu: number;
  readonly memoryMb: number;
  readonly diskMb: number;
  readonly network: NetworkPolicy;
  readonly sizeBytes: number;
  readonly generation: number;
  readonly retentionSeconds: number | null;
  /** Times are Unix milliseconds. */
  readonly createdAt: number;
}

export type NewSnapshot = Omit<SnapshotTable, "state" | "network"> & { network: NetworkPolicy };

export interface SnapshotFilter {
  sandboxId?: string;
  name?: string;
  tenant?: string;
  limit: number;
  cursor?: string;
  /** Unix milliseconds: what expired before is not shown. */
  now: number;
}

/** The snapshots' records. The bytes are the host's. */
export class SnapshotStore {
  readonly #db: Kysely<Tables>;
  readonly #kind: Database["kind"];
  readonly #ledger: LedgerWriter;
  readonly #clock: Clock;

  /** @param ledger told of what is bound and released, in the transaction of that */
  constructor(
    database: Database,
    ledger: LedgerWriter = new LedgerStore(database),
    clock: Clock = systemClock,
  ) {
    this.#clock = clock;
    this.#db = database.db;
    this.#kind = database.kind;
    this.#ledger = ledger;
  }

  /** Commits the intent to make one. @throws CodedError quota_exceeded */
  async insert(scope: TenantScope, snapshot: NewSnapshot): Promise<SnapshotRecord> {
    const row: SnapshotTable = { ...snapshot, network: networkColumn(snapshot.network), state: "creating" };
    const record = toSnapshotRecord(row);
    const reason = record.kind === "user" ? "snapshot" : record.kind;
    await this.#db.transaction().execute(async (transaction) => {
      const demand = { what: "snapshot", cpu: 0, memoryMb: 0, diskMb: 0, image: true } as const;
      await requireQuota(transaction, this.#kind, snapshot, demand, snapshot.created_at);
      await transaction.insertInto("snapshots").values(row).execute();
      await this.#ledger.append(transaction, [bindingOf(record, "bind", scope.keyId, reason)]);
    });
    return record;
  }

  /** Records that it can be used. @returns undefined when it has been given up meanwhile. */
  async finish(
    record: SnapshotRecord,
    made: { sizeBytes: number; generation: number },
  ): Promise<SnapshotRecord | undefined> {
    const row = await this.#db
      .updateTable("snapshots")
      .set({ state: "ready", size_bytes: made.sizeBytes, generation: made.generation })
      .where("id", "=", record.id)
      .where("state", "=", "creating")
      .returningAll()
      .executeTakeFirst();
    return row === undefined ? undefined : toSnapshotRecord(row);
  }

  /** The caller's snapshot, usable now; undefined for one that does not exist and, just the same, for another's. */
  async find(scope: TenantScope, id: string, now: number): Promise<SnapshotRecord | undefined> {
    const row = await this.#visible(scope, now).where("id", "=", id).executeTakeFirst();
    return row === undefined ? undefined : toSnapshotRecord(row);
  }

  /** As {@link SnapshotStore.find}, those of built templates too: to make a sandbox from, or to remove with its template. */
  async findUsable(scope: TenantScope, id: string, now: number): Promise<SnapshotRecord | undefined> {
    const row = await this.#visible(scope, now, ["user", "template"]).where("id", "=", id).executeTakeFirst();
    return row === undefined ? undefined : toSnapshotRecord(row);
  }

  /** The image of a build; undefined when it has none, or none any more. */
  async ofBuild({ snapshotId, account, tenant }: BuildRecord): Promise<SnapshotRecord | undefined> {
    if (snapshotId === null) return undefined;
    const row = await this.#db
      .selectFrom("snapshots")
      .selectAll()
      .where("id", "=", snapshotId)
      .where("account", "=", account)
      .where("tenant", "=", tenant)
      .where("kind", "=", "template")
      .executeTakeFirst();
    return row === undefined ? undefined : toSnapshotRecord(row);
  }

  /** One page, newest first. @throws CodedError invalid_request for a cursor that is not ours. */
  async list(scope: TenantScope, filter: SnapshotFilter): Promise<RecordPage<SnapshotRecord>> {
    let query = this.#visible(scope, filter.now);
    if (filter.tenant !== undefined) query = query.where("tenant", "=", filter.tenant);
    if (filter.sandboxId !== undefined) query = query.where("sandbox_id", "=", filter.sandboxId);
    if (filter.name !== undefined) query = query.where("name", "=", filter.name);
    if (filter.cursor !== undefined) {
      const { createdAt, id } = decodeCursor(filter.cursor);
      query = query.where((where) =>
        where.or([
          where("created_at", "<", createdAt),
          where.and([where("created_at", "=", createdAt), where("id", "<", id)]),
        ]),
      );
    }
    const rows = await query
      .orderBy("created_at", "desc")
      .orderBy("id", "desc")
      .limit(filter.limit + 1)
      .execute();
    return toPage(rows, filter.limit, toSnapshotRecord);
  }

  /** Commits the intent to remove it: from then on nobody finds it. */
  async markDeleting(record: SnapshotRecord): Promise<void> {
    await this.#db
      .updateTable("snapshots")
      .set({ state: "deleting" })
      .where("id", "=", record.id)
      .where("account", "=", record.account)
      .execute();
  }

  /** Forgets it; its bytes are gone. @param actor who asked for that */
  async remove(record: SnapshotRecord, actor: string): Promise<void> {
    const now = this.#clock.now();
    await this.#db.transaction().execute(async (transaction) => {
      const { numDeletedRows } = await transaction
        .deleteFrom("snapshots")
        .where("id", "=", record.id)
        .where("account", "=", record.account)
        .executeTakeFirst();
      if (Number(numDeletedRows) === 1)
        // another may have been first
        await this.#ledger.append(transaction, [bindingOf(record, "release", actor, "deleted")]);
      if (
        Number(numDeletedRows) === 1 &&
        record.kind !== "fork" &&
        record.sizeBytes > 0 &&
        now > record.createdAt
      )
        await transaction
          .insertInto("usage_intervals")
          .values(
            snapshotInterval({ ...record, size_bytes: record.sizeBytes, created_at: record.createdAt }, now),
          )
          .execute();
    });
  }

  /** At most `limit` that are past their time, half removed, or left by a server that died while it made, forked or built with them. */
  async leftovers(
    _scope: ServerScope,
    now: number,
    madeBefore: number,
    limit: number,
  ): Promise<SnapshotRecord[]> {
    const rows = await this.#db
      .selectFrom("snapshots")
      .selectAll()
      .where((where) =>
        where.or([
          where("expires_at", "<=", now),
          where("state", "=", "deleting"),
          where.and([where("state", "=", "creating"), where("created_at", "<", madeBefore)]),
          where.and([where("kind", "=", "fork"), where("created_at", "<", madeBefore)]),
          where.and([
            where("kind", "=", "template"),
            where("created_at", "<", madeBefore),
            where.not(
              where.exists(
                where
                  .selectFrom("template_builds")
                  .select("template_builds.id")
                  .whereRef("template_builds.snapshot_id", "=", "snapshots.id"),
              ),
            ),
          ]),
        ]),
      )
      .limit(limit)
      .execute();
    return rows.map(toSnapshotRecord);
  }

  #visible(scope: TenantScope, now: number, kinds: readonly SnapshotTable["kind"][] = ["user"]) {
    let query = this.#db
      .selectFrom("snapshots")
      .selectAll()
      .where("account", "=", scope.account)
      .where("kind", "in", kinds)
      .where("state", "=", "ready")
      .where((where) => where.or([where("expires_at", "is", null), where("expires_at", ">", now)]));
    if (scope.tenant !== null) query = query.where("tenant", "=", scope.tenant);
    return query;
  }
}

function bindingOf(
  record: SnapshotRecord,
  action: "bind" | "release",
  actor: string,
  reason: string,
): LedgerDraft {
  return {
    action,
    account: record.account,
    tenant: record.tenant,
    sandbox_id: record.sandboxId,
    generation: record.generation,
    host: record.host,
    actor,
    reason,
    resources: [{ kind: "snapshot", id: record.id }],
  };
}

function toSnapshotRecord(row: Selectable<SnapshotTable>): SnapshotRecord {
  const record: Omit<SnapshotRecord, typeof fromStore> = {
    id: row.id,
    account: row.account,
    tenant: row.tenant,
    sandboxId: row.sandbox_id,
    host: row.host,
    name: row.name,
    kind: row.kind,
    template: row.template,
    cpu: row.cpu,
    memoryMb: row.memory_mb,
    diskMb: row.disk_mb,
    network: readNetworkColumn(row.network),
    sizeBytes: row.size_bytes,
    generation: row.generation,
    retentionSeconds: row.retention_seconds,
    createdAt: row.created_at,
  };
  return record as SnapshotRecord;
}

/** Record to what the API shows. */
export function toSnapshot(record: SnapshotRecord): Snapshot {
  return {
    id: record.id,
    name: record.name,
    sandbox_id: record.sandboxId,
    tenant: record.tenant,
    template: record.template,
    size_bytes: record.sizeBytes,
    generation: record.generation,
    created_at: new Date(record.createdAt).toISOString(),
    retention_seconds: record.retentionSeconds,
  };
}
