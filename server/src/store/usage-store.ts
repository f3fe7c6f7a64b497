import type { Kysely } from "kysely";
import type { Prices, UsageGroup, UsageInterval, UsageItem, UsageSums as ToldSums } from "@torpor/protocol";
import type { OperatorScope, ServerScope, TenantScope } from "../auth/tenant-scope.ts";
import { usedSince } from "../usage/metered.ts";
import { clipped, clippedByDay, type HeldInterval, keysOf, type UsagePart } from "../usage/usage-part.ts";
import { UsageSums } from "../usage/usage-sums.ts";
import { ClosedUsage } from "./closed-usage.ts";
import type { Database } from "./open-database.ts";
import { openUsage } from "./open-usage.ts";
import type { Tables, UsageIntervalTable } from "./schema.ts";
import { readMeterColumns } from "./usage-column.ts";
import type { UsageFilter, UsageOwner } from "./usage-filter.ts";

/** Reads the meter: intervals that are over, and those that are open up to now. */
export class UsageStore {
  readonly #db: Kysely<Tables>;
  readonly #closed: ClosedUsage;

  constructor(database: Database) {
    this.#db = database.db;
    this.#closed = new ClosedUsage(database);
  }

  /**
   * Sums by what is asked for, of the caller's own; sorted by that.
   *
   * @param pricesOf what each account pays
   */
  async sums(
    scope: TenantScope | OperatorScope,
    filter: UsageFilter,
    groupBy: readonly UsageGroup[],
    pricesOf: (account: string) => Prices,
  ): Promise<{ items: UsageItem[]; total: ToldSums }> {
    const owner = "account" in scope ? scope : { account: null, tenant: null };
    const parts = await this.#parts(owner, filter, groupBy);
    const groups = new Map<string, { keys: Partial<UsageItem>; sums: UsageSums }>();
    const total = new UsageSums();
    for (const part of parts) {
      const keys = keysOf(part, groupBy);
      const name = JSON.stringify(Object.values(keys));
      const group = groups.get(name) ?? { keys, sums: new UsageSums() };
      groups.set(name, group);
      const prices = pricesOf(part.account);
      group.sums.add(part, prices);
      total.add(part, prices);
    }
    const items = [...groups.entries()].toSorted(([one], [other]) => (one < other ? -1 : 1));
    return {
      items: items.map(([, { keys, sums }]) => ({ ...keys, ...sums.rounded() })),
      total: total.rounded(),
    };
  }

  /** What an account has spent in a time, by tenant. */
  async spent(
    _scope: ServerScope,
    account: string,
    filter: UsageFilter,
    prices: Prices,
  ): Promise<Map<string, number>> {
    const byTenant = new Map<string, UsageSums>();
    for (const part of await this.#parts({ account, tenant: null }, filter, ["tenant"])) {
      const sums = byTenant.get(part.tenant) ?? new UsageSums();
      byTenant.set(part.tenant, sums);
      sums.add(part, prices);
    }
    return new Map([...byTenant].map(([tenant, { cost }]) => [tenant, cost]));
  }

  /** At most `limit` intervals of one sandbox of the caller's after number `after`, oldest first; the open one is the last of all. */
  async intervals(
    scope: TenantScope,
    sandboxId: string,
    { after = 0, limit = 1_000 }: { after?: number; limit?: number } = {},
  ): Promise<{ items: UsageInterval[]; nextAfter: number | null }> {
    let closed = this.#db
      .selectFrom("usage_intervals")
      .selectAll()
      .where("sandbox_id", "=", sandboxId)
      .where("account", "=", scope.account)
      .where("number", ">", after);
    if (scope.tenant !== null) closed = closed.where("tenant", "=", scope.tenant);
    const rows = await closed.orderBy("number").limit(limit).execute();
    const shown = rows.map((row) => toInterval(row, row.to_at));
    if (rows.length === limit) return { items: shown, nextAfter: rows.at(-1)?.number ?? null };
    let open = this.#db
      .selectFrom("sandboxes")
      .selectAll()
      .where("id", "=", sandboxId)
      .where("account", "=", scope.account)
      .where("metered_state", "<>", "destroyed");
    if (scope.tenant !== null) open = open.where("tenant", "=", scope.tenant);
    const row = await open.executeTakeFirst();
    if (row === undefined) return { items: shown, nextAfter: null };
    const { account, tenant, template, cpu, memory_mb, disk_mb } = row;
    const metered = readMeterColumns(row);
    const rest: Omit<UsageIntervalTable, "to_at"> = {
      sandbox_id: sandboxId,
      number: metered.intervals + 1,
      account,
      tenant,
      template,
      cpu,
      memory_mb,
      disk_mb,
      state: metered.state,
      image_bytes: metered.imageBytes,
      from_at: metered.from,
      ...usedSince(metered.base, metered.used),
      uncertain_ms: metered.uncertainMs,
    };
    return { items: [...shown, toInterval(rest, metered.until)], nextAfter: null };
  }

  async #parts(owner: UsageOwner, filter: UsageFilter, groupBy: readonly UsageGroup[]): Promise<UsagePart[]> {
    const { from, to } = filter;
    // What is over is read first: an interval that closes meanwhile is not counted twice.
    const closed = groupBy.includes("day")
      ? await this.#closed.partsByDay(owner, filter, groupBy)
      : await this.#closed.parts(owner, filter, groupBy);
    const open = await openUsage(this.#db, owner, filter);
    const cut = (interval: HeldInterval): UsagePart[] =>
      groupBy.includes("day") ? clippedByDay(interval, from, to) : clipped(interval, from, to);
    return [...closed, ...open.flatMap(cut)];
  }
}

function toInterval(row: Omit<UsageIntervalTable, "to_at">, to: number | null): UsageInterval {
  const { account: _account, from_at: from, ...rest } = row;
  const { to_at: _to, ...shown } = rest as typeof rest & { to_at?: number };
  return {
    ...shown,
    from: new Date(from).toISOString(),
    to: to === null ? null : new Date(to).toISOString(),
  };
}
