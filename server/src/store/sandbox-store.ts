import { type Kysely, type Selectable, sql, type Transaction, type Updateable } from "kysely";
import { canTransition, isEnding, type SandboxState } from "@torpor/protocol";
import { type Clock, systemClock } from "@torpor/base";
import type { ServerScope, TenantScope } from "../auth/tenant-scope.ts";
import type { Database } from "./open-database.ts";
import { EventStore, type EventWriter } from "./event-store.ts";
import { bindingChanges, type Holdings, type ToldHoldings } from "../ledger/binding-changes.ts";
import { KeptQueries } from "./kept-queries.ts";
import { LedgerStore, type LedgerWriter } from "./ledger-store.ts";
import { type NewSandbox, newSandboxRow } from "./new-sandbox.ts";
import type { RecordPage } from "./page-cursor.ts";
import { readableRows } from "./readable-rows.ts";
import { requireBudget } from "./budget-store.ts";
import { requireQuota } from "./quota.ts";
import { changedColumns, type SandboxChanges } from "./sandbox-changes.ts";
import { countSandboxes, listSandboxes, type SandboxFilter, type SandboxMatch } from "./sandbox-list.ts";
import { type SandboxRecord, toHoldings, toSandboxRecord } from "./sandbox-record.ts";
import type { SandboxTable, Tables } from "./schema.ts";
import { intervalRow, meterColumns } from "./usage-column.ts";
import { meterChanges } from "../usage/metered.ts";

declare const fromStore: unique symbol;

/** A sandbox as the holder of an address: no more of its record is known, and none of it may be readable. */
export interface AddressHolder {
  readonly [fromStore]: true;
  readonly id: string;
}

/** A place in the list of idle sandboxes: behind this one. */
export interface IdlePlace {
  /** When it was last active, Unix milliseconds. */
  at: number;
  id: string;
}

/**
 * The sandboxes' records. Requests reach them through a {@link TenantScope}, the watch on a host through its own store: no
 * function takes a bare id. States change in `advance` alone, by compare-and-set on (id, state, generation).
 */
export class SandboxStore {
  readonly #db: Kysely<Tables>;
  readonly #database: Database;
  readonly #kind: Database["kind"];
  readonly #events: EventWriter;
  readonly #ledger: LedgerWriter;
  readonly #clock: Clock;
  readonly #queries = new KeptQueries();

  /**
   * @param events told of every move, in the transaction of the move
   * @param ledger likewise of every binding
   */
  constructor(
    database: Database,
    events: EventWriter = new EventStore(database),
    ledger: LedgerWriter = new LedgerStore(database),
    clock: Clock = systemClock,
  ) {
    this.#clock = clock;
    this.#db = database.db;
    this.#database = database;
    this.#kind = database.kind;
    this.#events = events;
    this.#ledger = ledger;
  }

  /**
   * Commits a record in state `creating`, generation 1. It is on its way to the disk when this resolves, while the host is
   * asked for its machine, and there before what moves it on; its event is told when it is there.
   *
   * @throws CodedError quota_exceeded, rate_limited
   */
  async insert(scope: TenantScope, sandbox: NewSandbox): Promise<SandboxRecord> {
    if (scope.tenant !== null && scope.tenant !== sandbox.tenant) {
      throw new Error(
        `a key bound to tenant ${scope.tenant} may not insert a sandbox of tenant ${sandbox.tenant}`,
      );
    }
    const row = newSandboxRow(scope, sandbox);
    const record = toSandboxRecord({ ...row, reason: null } as Parameters<typeof toSandboxRecord>[0]);
    const write = async (transaction: Transaction<Tables>): Promise<void> => {
      const { cpu, memoryMb, diskMb, persistent: image } = sandbox;
      await requireBudget(transaction, record, "create", sandbox.createdAt);
      const demand = { what: "create", cpu, memoryMb, diskMb, image } as const;
      await requireQuota(transaction, this.#kind, record, demand, sandbox.createdAt);
      await this.#queries.run(transaction, "insert", Object.values(row), () =>
        transaction.insertInto("sandboxes").values(row),
      );
      await this.#events.append(transaction, record, null, {});
      await this.#ledger.append(transaction, [
        {
          action: "bind",
          account: record.account,
          tenant: record.tenant,
          sandbox_id: record.id,
          generation: record.generation,
          host: record.host,
          actor: scope.keyId,
          reason: "create",
          resources: [{ kind: "sandbox", id: record.id }],
        },
      ]);
    };
    await this.#database.relaxed((db) => db.transaction().execute(write));
    // Should it fail, the next commit tells of it.
    this.#database.flush().then(
      () => this.#events.committed(),
      () => {},
    );
    return record;
  }

  /** The caller's sandbox of that id; undefined for one that does not exist and, just the same, for another's. */
  async find(scope: TenantScope, id: string): Promise<SandboxRecord | undefined> {
    const { account, tenant } = scope;
    const parameters = tenant === null ? [id, account] : [id, account, tenant];
    const { rows } = await this.#queries.run(this.#db, `find ${parameters.length}`, parameters, () => {
      const query = this.#db
        .selectFrom("sandboxes")
        .selectAll()
        .where("id", "=", id)
        .where("account", "=", account);
      return tenant === null ? query : query.where("tenant", "=", tenant);
    });
    const [row] = rows;
    return row === undefined ? undefined : toSandboxRecord(row);
  }

  /** One page. @throws CodedError invalid_request for a cursor that is not ours. */
  list(scope: TenantScope, filter: SandboxFilter): Promise<RecordPage<SandboxRecord>> {
    return listSandboxes({ db: this.#db, kind: this.#kind }, scope, filter);
  }

  /** How many the list has, on all its pages. */
  count(scope: TenantScope, filter: SandboxMatch): Promise<number> {
    return countSandboxes({ db: this.#db, kind: this.#kind }, scope, filter);
  }

  /**
   * At most `limit` sandboxes that run and have not been active since `before`, as far as is on record, the longest first.
   *
   * @param after where an earlier call left off; null for the first
   * @returns them, and where to go on; null at the end
   */
  async idleSince(
    _scope: ServerScope,
    before: number,
    after: IdlePlace | null,
    limit: number,
  ): Promise<{ records: SandboxRecord[]; next: IdlePlace | null }> {
    let query = this.#db
      .selectFrom("sandboxes")
      .selectAll()
      .where("state", "=", "running")
      .where("last_activity_at", "<", before);
    if (after !== null)
      query = query.where((where) =>
        where.or([
          where("last_activity_at", ">", after.at),
          where.and([where("last_activity_at", "=", after.at), where("id", ">", after.id)]),
        ]),
      );
    const rows = await query.orderBy("last_activity_at").orderBy("id").limit(limit).execute();
    const last = rows.length < limit ? undefined : rows.at(-1);
    return {
      records: readableRows(rows, toSandboxRecord).items,
      next: last === undefined ? null : { at: last.last_activity_at, id: last.id },
    };
  }

  /** Every sandbox of an account, or of one of its tenants, that holds memory. */
  async awakeOf(_scope: ServerScope, account: string, tenant: string | null): Promise<SandboxRecord[]> {
    let query = this.#db
      .selectFrom("sandboxes")
      .selectAll()
      .where("account", "=", account)
      .where("state", "in", ["running", "paused"]);
    if (tenant !== null) query = query.where("tenant", "=", tenant);
    return readableRows(await query.execute(), toSandboxRecord).items;
  }

  /** The record as it is now. */
  async reload(record: SandboxRecord): Promise<SandboxRecord | undefined> {
    const row = await this.#db
      .selectFrom("sandboxes")
      .selectAll()
      .where("id", "=", record.id)
      .where("account", "=", record.account)
      .executeTakeFirst();
    return row === undefined ? undefined : toSandboxRecord(row);
  }

  /**
   * The only writer of states: moves `record` to `state` if it still is where the caller saw it.
   *
   * @returns the record after the move, or undefined when another got there first.
   * @throws Error when the transition table has no such move: a bug, not a race.
   */
  advance(
    record: SandboxRecord,
    state: SandboxState,
    changes: SandboxChanges = {},
  ): Promise<SandboxRecord | undefined> {
    return this.advanceAlong(record, [state], changes);
  }

  /** As {@link SandboxStore.advance}, by way of several states, all or none; the changes are told with the last. */
  async advanceAlong(
    record: SandboxRecord,
    way: readonly SandboxState[],
    changes: SandboxChanges = {},
  ): Promise<SandboxRecord | undefined> {
    return await this.#write(async (transaction) => {
      let current: SandboxRecord | undefined = record;
      for (const [index, state] of way.entries()) {
        if (!canTransition(current.state, state))
          throw new Error(`sandbox ${record.id} cannot go from ${current.state} to ${state}`);
        const told = index === way.length - 1 ? changes : {};
        current = await this.#update(transaction, current, { ...changedColumns(told), state }, told);
        if (current === undefined) return undefined; // the first: the row is this transaction's after it
      }
      return current;
    });
  }

  /**
   * Records what has changed without a change of state, if `record` still is where the caller saw it.
   *
   * @returns undefined when another got there first.
   */
  async note(record: SandboxRecord, changes: SandboxChanges): Promise<SandboxRecord | undefined> {
    const set = changedColumns(changes);
    const isNothing =
      Object.keys(set).length === 0 && changes.told === undefined && changes.use === undefined;
    return isNothing
      ? record
      : await this.#write((transaction) => this.#update(transaction, record, set, changes));
  }

  /**
   * Before a hibernated sandbox is woken: counts it as awake, so that of many that wake at once none is let past a limit.
   *
   * @returns the record, `waking` now where there are limits. @throws CodedError quota_exceeded
   */
  async claimWake(record: SandboxRecord, now: number): Promise<SandboxRecord> {
    const { cpu, memoryMb, diskMb } = record;
    const demand = { what: "wake", cpu, memoryMb, diskMb, image: false } as const;
    try {
      const moved = await this.#write(async (transaction) => {
        await requireBudget(transaction, record, "wake", now);
        const isCounted = await requireQuota(transaction, this.#kind, record, demand, now);
        return isCounted ? await this.#update(transaction, record, { state: "waking" }, {}) : undefined;
      });
      return moved ?? record;
    } catch (error) {
      // What it is one too many beside may be itself: another was first to wake it, whom this one joins.
      if ((await this.reload(record))?.state === "hibernated") throw error;
      return record;
    }
  }

  /** The sandbox that has this address of the same host now, as far as is on record. */
  async holderOf(neighbour: SandboxRecord, address: string): Promise<AddressHolder | undefined> {
    const row = await this.#db
      .selectFrom("sandboxes")
      .select("id")
      .where("host", "=", neighbour.host)
      .where("address", "=", address)
      .executeTakeFirst();
    return row === undefined ? undefined : (row as AddressHolder);
  }

  /** Records what its host says that a sandbox holds, and nothing else: also where the rest of its record cannot be read. */
  async noteHoldings({ id }: AddressHolder, told: ToldHoldings): Promise<void> {
    await this.#db.transaction().execute(async (transaction) => {
      const found = transaction
        .selectFrom("sandboxes")
        .select(["account", "tenant", "host", "state", "generation", "reason", "ended_by"])
        .select(["incarnation", "machine_id", "address", "image_id"])
        .where("id", "=", id);
      // On SQLite nobody else writes meanwhile.
      const row = await (this.#kind === "postgres" ? found.forUpdate() : found).executeTakeFirst();
      if (row === undefined) return;
      const { account, tenant, host, state, generation } = row;
      const { holdings, drafts } = bindingChanges(
        toHoldings(row),
        told,
        { account, tenant, sandbox_id: id, host },
        {
          actor: row.ended_by ?? "system:host",
          state: state === "destroyed" ? "destroying" : state,
          generation,
          reason: isEnding(state) ? row.reason : null,
        },
      );
      await transaction.updateTable("sandboxes").set(holdingColumns(holdings)).where("id", "=", id).execute();
      await this.#ledger.append(transaction, drafts);
    });
  }

  /** The move, its event and its entries in the ledger, or none of them. */
  async #update(
    transaction: Transaction<Tables>,
    record: SandboxRecord,
    set: Updateable<SandboxTable>,
    changes: SandboxChanges,
  ): Promise<SandboxRecord | undefined> {
    const { holdings } = record;
    const state = set.state ?? record.state;
    const { holdings: after, drafts } = bindingChanges(
      holdings,
      changes.told,
      { account: record.account, tenant: record.tenant, sandbox_id: record.id, host: record.host },
      {
        actor: changes.actor ?? record.endedBy ?? "system:host",
        state,
        generation: changes.generation ?? record.generation,
        reason: isEnding(state) ? (changes.reason ?? record.reason) : null,
      },
    );
    const at = changes.endedAt ?? this.#clock.now();
    const { metered, closed } = meterChanges(record.metered, changes.use, state, at);
    const row = await this.#compareAndSet(transaction, record, {
      ...set,
      ...holdingColumns(after),
      ...(metered === record.metered ? {} : meterColumns(metered)),
    });
    if (row === undefined) return undefined;
    const moved = toSandboxRecord(row);
    // Of what the ledger alone tells there is no event.
    if (Object.keys(set).length > 0) await this.#events.append(transaction, moved, record.state, changes);
    await this.#ledger.append(transaction, drafts);
    for (const interval of closed) {
      const row = intervalRow(meteringOf(record), interval);
      await this.#queries.run(transaction, "interval", Object.values(row), () =>
        transaction.insertInto("usage_intervals").values(row),
      );
    }
    return moved;
  }

  /** A transaction that moves a record, or finds that another was first. */
  async #write(
    act: (transaction: Transaction<Tables>) => Promise<SandboxRecord | undefined>,
  ): Promise<SandboxRecord | undefined> {
    const moved = await this.#db.transaction().execute(act);
    if (moved !== undefined) this.#events.committed();
    return moved;
  }

  /** @returns the row as it is then; undefined when it is not where `record` has it */
  async #compareAndSet(
    transaction: Transaction<Tables>,
    { id, account, state, generation, holdings, metered }: SandboxRecord,
    set: Updateable<SandboxTable>,
  ): Promise<Selectable<SandboxTable> | undefined> {
    const expected = {
      id,
      account,
      state,
      generation,
      incarnation: holdings.incarnation,
      metered_intervals: metered.intervals,
      metered_move: metered.move,
    } as const;
    // A value that is null is a word of the text, not a parameter of it.
    const nullable = { machine_id: holdings.machineId, image_id: holdings.imageId };
    const known = Object.values(nullable).filter((value) => value !== null);
    const shape = `update ${Object.keys(set).join()} ${Object.values(nullable)
      .map((value) => value === null)
      .join()}`;
    const parameters = [...Object.values(set), ...Object.values(expected), ...known];
    const { rows } = await this.#queries.run(transaction, shape, parameters, () => {
      let query = transaction.updateTable("sandboxes").set(set);
      for (const [column, value] of Object.entries(expected) as [keyof typeof expected, string | number][])
        query = query.where(column, "=", value);
      for (const [column, value] of Object.entries(nullable) as [keyof typeof nullable, string | null][])
        query = query.where(column, value === null ? "is" : "=", value);
      return query.returningAll();
    });
    return rows[0];
  }

  /** Records owner activity; an older time never replaces a newer one. */
  async touch(record: SandboxRecord, activeAt: number): Promise<void> {
    await this.#db
      .updateTable("sandboxes")
      .set({ last_activity_at: activeAt })
      .where("id", "=", record.id)
      .where("account", "=", record.account)
      .where("last_activity_at", "<", activeAt)
      .execute();
  }

  /** Forgets at most `limit` sandboxes that ended before `before`. @returns how many. */
  async purgeEnded(_scope: ServerScope, before: number, limit: number): Promise<number> {
    const result = await this.#db
      .deleteFrom("sandboxes")
      .where("id", "in", (query) =>
        query
          .selectFrom("sandboxes")
          .select("id")
          .where("state", "=", "destroyed")
          .where("ended_at", "<", before)
          .orderBy("ended_at")
          .limit(limit),
      )
      .executeTakeFirst();
    return Number(result.numDeletedRows);
  }

  /** How many there are in each state that has any. */
  async countByState(_scope: ServerScope): Promise<{ state: SandboxState; count: number }[]> {
    const rows = await this.#db
      .selectFrom("sandboxes")
      .select(["state", (query) => query.fn.countAll<number | string>().as("count")])
      .groupBy("state")
      .execute();
    return rows.map((row) => ({ state: row.state, count: Number(row.count) }));
  }

  /** One cheap read. @throws the driver's error when the store cannot be read. */
  async ping(): Promise<void> {
    await sql`select 1`.execute(this.#db);
  }
}

function meteringOf({ id, account, tenant, template, cpu, memoryMb, diskMb }: SandboxRecord) {
  return { sandbox_id: id, account, tenant, template, cpu, memory_mb: memoryMb, disk_mb: diskMb };
}

function holdingColumns({ incarnation, machineId, address, imageId }: Holdings) {
  return { incarnation, machine_id: machineId, address, image_id: imageId };
}
