import { type Kysely, sql } from "kysely";
import {
  addQuantities,
  costOf,
  type MeteredState,
  NO_QUANTITIES,
  type Prices,
  type Quantities,
  quantitiesIn,
  type SandboxState,
  type UsageGroup,
  type UsageInterval,
  type UsageItem,
  type UsageSums,
} from "@torpor/protocol";
import type { OperatorScope, ServerScope, TenantScope } from "../auth/tenant-scope.ts";
import { usedSince } from "../usage/metered.ts";
import type { Database } from "./open-database.ts";
import type { SnapshotTable, Tables, UsageIntervalTable } from "./schema.ts";
import { readMeterColumns } from "./usage-column.ts";

export interface UsageFilter {
  /** Unix milliseconds; what lies partly within is counted in part. */
  from: number;
  to: number;
  /** Where open intervals end. */
  now: number;
  tenant?: string | undefined;
  template?: string | undefined;
  sandboxId?: string | undefined;
}

/** Whose: a caller's, or, in the server's own work, an account's or one of its tenants'. */
interface Owner {
  /** Null for all. */
  account: string | null;
  /** Null for all of the account's. */
  tenant: string | null;
}

/** Of everything in one state for one combination of what is grouped by; amounts are each times the seconds. */
interface Part {
  account: string;
  tenant: string;
  template: string;
  sandbox_id: string;
  day?: string;
  state: MeteredState;
  seconds: number;
  cpu: number;
  memory_mb: number;
  disk_mb: number;
  image_bytes: number;
  cpu_seconds: number;
  memory_peak_bytes: number;
  network_in_bytes: number;
  network_out_bytes: number;
  idle_seconds: number;
  idle_cpu: number;
  idle_memory_mb: number;
  idle_disk_mb: number;
  uncertain_ms: number;
}

const DAY_MS = 86_400_000;
/** Days since 1970, UTC. */
const dayOf = (unixMs: number): number => Math.floor(unixMs / DAY_MS);
const dayName = (day: number): string => new Date(day * DAY_MS).toISOString().slice(0, 10);

/** Reads the meter: intervals that are over, and those that are open up to now. */
export class UsageStore {
  readonly #db: Kysely<Tables>;
  readonly #kind: Database["kind"];

  constructor(database: Database) {
    this.#db = database.db;
    this.#kind = database.kind;
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
  ): Promise<{ items: UsageItem[]; total: UsageSums }> {
    const owner = "account" in scope ? scope : { account: null, tenant: null };
    const parts = groupBy.includes("day")
      ? await this.#byDay(owner, filter, groupBy)
      : await this.#parts(owner, filter, groupBy);
    const groups = new Map<string, { keys: Partial<UsageItem>; sums: Sums }>();
    const total = new Sums();
    for (const part of parts) {
      const keys = keysOf(part, groupBy);
      const name = JSON.stringify(Object.values(keys));
      const group = groups.get(name) ?? { keys, sums: new Sums() };
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
    const byTenant = new Map<string, Sums>();
    for (const part of await this.#parts({ account, tenant: null }, filter, ["tenant"])) {
      const sums = byTenant.get(part.tenant) ?? new Sums();
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

  /**
   * What lies within one day is added up by the database; what spans days, or begins or ends outside of what is asked for,
   * is cut here.
   */
  async #byDay(owner: Owner, filter: UsageFilter, groupBy: readonly UsageGroup[]): Promise<Part[]> {
    const days = (interval: Omit<UsageIntervalTable, "number" | "uncertain_ms">): Part[] => {
      const parts: Part[] = [];
      const from = Math.max(interval.from_at, filter.from);
      const to = Math.min(interval.to_at, filter.to);
      for (let day = dayOf(from); day * DAY_MS < to; day += 1) {
        const part = clipped(
          interval,
          Math.max(day * DAY_MS, filter.from),
          Math.min((day + 1) * DAY_MS, filter.to),
        );
        if (part !== undefined) parts.push({ ...part, day: dayName(day) });
      }
      return parts;
    };
    const within = await this.#closedParts(owner, filter, groupBy, true);
    const cut = await this.#closedRows(owner, filter)
      .where((where) =>
        where.or([
          where("from_at", "<", filter.from),
          where("to_at", ">", filter.to),
          where(sql`from_at / ${sql.lit(DAY_MS)}`, "<>", sql`(to_at - 1) / ${sql.lit(DAY_MS)}`),
        ]),
      )
      .selectAll()
      .execute();
    const open = [...(await this.#openIntervals(owner, filter)), ...(await this.#snapshots(owner, filter))];
    return [...within, ...cut.flatMap(days), ...open.flatMap(days)];
  }

  async #parts(owner: Owner, filter: UsageFilter, groupBy: readonly UsageGroup[]): Promise<Part[]> {
    return [
      ...(await this.#closedParts(owner, filter, groupBy)),
      ...[...(await this.#openIntervals(owner, filter)), ...(await this.#snapshots(owner, filter))].flatMap(
        (interval) => clipped(interval, filter.from, filter.to) ?? [],
      ),
    ];
  }

  /** Intervals that are over, and lie at least in part in what is asked for. */
  #closedRows(owner: Owner, { from, to, tenant, template, sandboxId }: UsageFilter) {
    let query = this.#db.selectFrom("usage_intervals").where("to_at", ">", from).where("from_at", "<", to);
    if (owner.account !== null) query = query.where("account", "=", owner.account);
    if (owner.tenant !== null) query = query.where("tenant", "=", owner.tenant);
    if (tenant !== undefined) query = query.where("tenant", "=", tenant);
    if (template !== undefined) query = query.where("template", "=", template);
    if (sandboxId !== undefined) query = query.where("sandbox_id", "=", sandboxId);
    return query;
  }

  /** @param isByDay only what lies whole within one day of what is asked for, by day */
  async #closedParts(
    owner: Owner,
    filter: UsageFilter,
    groupBy: readonly UsageGroup[],
    isByDay = false,
  ): Promise<Part[]> {
    const { from, to } = filter;
    const [least, greatest] = this.#kind === "postgres" ? ["least", "greatest"] : ["min", "max"];
    const seconds = sql<number>`((${sql.raw(least)}(to_at, ${to}) - ${sql.raw(greatest)}(from_at, ${from})) / 1000.0)`;
    const share = sql<number>`(${seconds} * 1000.0 / (to_at - from_at))`;
    const isGrouped = (group: UsageGroup, column: "tenant" | "template" | "sandbox_id") =>
      groupBy.includes(group) ? sql<string>`${sql.ref(column)}` : sql<string>`''`;
    const sum = (value: ReturnType<typeof sql<number>>) => sql<number | string>`coalesce(sum(${value}), 0)`;
    let query = this.#closedRows(owner, filter).select([
      "account",
      isGrouped("tenant", "tenant").as("tenant_key"),
      isGrouped("template", "template").as("template_key"),
      isGrouped("sandbox", "sandbox_id").as("sandbox_key"),
      (isByDay ? sql<number | string>`from_at / ${sql.lit(DAY_MS)}` : sql<number | string>`0`).as("day_key"),
      "state",
      sum(sql`${seconds}`).as("seconds"),
      sum(sql`cpu * ${seconds}`).as("cpu"),
      sum(sql`memory_mb * ${seconds}`).as("memory_mb"),
      sum(sql`disk_mb * ${seconds}`).as("disk_mb"),
      sum(sql`image_bytes * ${seconds}`).as("image_bytes"),
      sum(sql`cpu_seconds * ${share}`).as("cpu_seconds"),
      sql<number | string>`coalesce(max(memory_peak_bytes), 0)`.as("memory_peak_bytes"),
      sum(sql`network_in_bytes * ${share}`).as("network_in_bytes"),
      sum(sql`network_out_bytes * ${share}`).as("network_out_bytes"),
      sum(sql`idle_seconds * ${share}`).as("idle_seconds"),
      sum(sql`cpu * idle_seconds * ${share}`).as("idle_cpu"),
      sum(sql`memory_mb * idle_seconds * ${share}`).as("idle_memory_mb"),
      sum(sql`disk_mb * idle_seconds * ${share}`).as("idle_disk_mb"),
      // Told once, where the interval ends.
      sum(sql`case when to_at <= ${to} then uncertain_ms else 0 end`).as("uncertain_ms"),
    ]);
    if (isByDay)
      query = query
        .where("from_at", ">=", from)
        .where("to_at", "<=", to)
        .where(sql<boolean>`from_at / ${sql.lit(DAY_MS)} = (to_at - 1) / ${sql.lit(DAY_MS)}`);
    const rows = await query
      .groupBy(["account", "tenant_key", "template_key", "sandbox_key", "day_key", "state"])
      .execute();
    return rows.map(
      ({
        account,
        tenant_key: tenant,
        template_key: template,
        sandbox_key: sandboxId,
        day_key: day,
        state,
        ...sums
      }) => ({
        account,
        tenant,
        template,
        sandbox_id: sandboxId,
        state,
        ...(isByDay ? { day: dayName(Number(day)) } : {}),
        ...(Object.fromEntries(Object.entries(sums).map(([name, value]) => [name, Number(value)])) as Omit<
          Part,
          "account" | "tenant" | "template" | "sandbox_id" | "state" | "day"
        >),
      }),
    );
  }

  /** Those of living sandboxes, until now or where their end was accepted. */
  async #openIntervals(owner: Owner, { to, now, tenant, template, sandboxId }: UsageFilter) {
    let query = this.#db
      .selectFrom("sandboxes")
      .select(["id", "account", "tenant", "template", "cpu", "memory_mb", "disk_mb"])
      .select(["metered_state", "metered_from", "metered_intervals", "metered_move", "metered_use"])
      .where(sql<boolean>`state <> 'destroyed'`) // written out, so that the index of what lives is used
      .where("metered_state", "<>", "destroyed")
      .where("metered_from", "<", to);
    if (owner.account !== null) query = query.where("account", "=", owner.account);
    if (owner.tenant !== null) query = query.where("tenant", "=", owner.tenant);
    if (tenant !== undefined) query = query.where("tenant", "=", tenant);
    if (template !== undefined) query = query.where("template", "=", template);
    if (sandboxId !== undefined) query = query.where("id", "=", sandboxId);
    return (await query.execute()).map((row) => {
      const metered = readMeterColumns(row);
      return {
        ...row,
        sandbox_id: row.id,
        state: metered.state,
        image_bytes: metered.imageBytes,
        from_at: metered.from,
        to_at: Math.min(now, metered.until ?? now),
        ...usedSince(metered.base, metered.used),
      };
    });
  }

  /** Of snapshots that are kept, until now. */
  async #snapshots(
    owner: Owner,
    { to, now, tenant, template, sandboxId }: UsageFilter,
  ): Promise<UsageIntervalTable[]> {
    let query = this.#db
      .selectFrom("snapshots")
      .select(["id", "account", "tenant", "template", "size_bytes", "created_at"])
      .where("kind", "<>", "fork")
      .where("size_bytes", ">", 0)
      .where("created_at", "<", to);
    if (owner.account !== null) query = query.where("account", "=", owner.account);
    if (owner.tenant !== null) query = query.where("tenant", "=", owner.tenant);
    if (tenant !== undefined) query = query.where("tenant", "=", tenant);
    if (template !== undefined) query = query.where("template", "=", template);
    if (sandboxId !== undefined) query = query.where("id", "=", sandboxId);
    return (await query.execute()).map((row) => snapshotInterval(row, now));
  }
}

/** What a snapshot that was kept took from its making to its end. */
export function snapshotInterval(
  {
    id,
    account,
    tenant,
    template,
    size_bytes: bytes,
    created_at: from,
  }: Pick<SnapshotTable, "id" | "account" | "tenant" | "template" | "size_bytes" | "created_at">,
  to: number,
): UsageIntervalTable {
  return {
    sandbox_id: id,
    number: 1,
    account,
    tenant,
    template,
    state: "snapshot",
    cpu: 0,
    memory_mb: 0,
    disk_mb: 0,
    image_bytes: bytes,
    from_at: from,
    to_at: to,
    cpu_seconds: 0,
    memory_peak_bytes: 0,
    network_in_bytes: 0,
    network_out_bytes: 0,
    idle_seconds: 0,
    uncertain_ms: 0,
  };
}

/** The part of an interval that lies within a time; undefined for none. As the database does it for those that are over. */
function clipped(
  interval: Omit<UsageIntervalTable, "number" | "uncertain_ms">,
  from: number,
  to: number,
): Part | undefined {
  const wholeMs = interval.to_at - interval.from_at;
  const partMs = Math.min(interval.to_at, to) - Math.max(interval.from_at, from);
  if (partMs <= 0) return undefined;
  const { account, tenant, template, sandbox_id: sandboxId, state, cpu, memory_mb: memoryMb } = interval;
  const [seconds, share] = [partMs / 1_000, partMs / wholeMs];
  const idle = interval.idle_seconds * share;
  return {
    account,
    tenant,
    template,
    sandbox_id: sandboxId,
    state,
    seconds,
    cpu: cpu * seconds,
    memory_mb: memoryMb * seconds,
    disk_mb: interval.disk_mb * seconds,
    image_bytes: interval.image_bytes * seconds,
    cpu_seconds: interval.cpu_seconds * share,
    memory_peak_bytes: interval.memory_peak_bytes,
    network_in_bytes: interval.network_in_bytes * share,
    network_out_bytes: interval.network_out_bytes * share,
    idle_seconds: idle,
    idle_cpu: cpu * idle,
    idle_memory_mb: memoryMb * idle,
    idle_disk_mb: interval.disk_mb * idle,
    uncertain_ms: 0,
  };
}

function keysOf(part: Part, groupBy: readonly UsageGroup[]): Partial<UsageItem> {
  const keys: Partial<UsageItem> = {};
  for (const group of groupBy) {
    if (group === "account") keys.account = part.account;
    else if (group === "tenant") keys.tenant = part.tenant;
    else if (group === "template") keys.template = part.template;
    else if (group === "sandbox") keys.sandbox_id = part.sandbox_id;
    else if (group === "day") keys.day = part.day ?? "";
    else keys.state = part.state;
  }
  return keys;
}

/** A snapshot takes what an image does. */
const asState = (state: MeteredState): SandboxState => (state === "snapshot" ? "hibernated" : state);

const round = (value: number): number => Math.round(value * 1e6) / 1e6;

/** Adds up parts, each with the prices of its account. */
class Sums {
  cost = 0;
  readonly #currencies = new Set<string>();
  #saved = 0;
  #wasted = 0;
  #quantities: Quantities = NO_QUANTITIES;
  readonly #seconds = { running: 0, paused: 0, hibernated: 0 };
  readonly #counts = { cpu: 0, peak: 0, in: 0, out: 0, idle: 0, uncertainMs: 0 };

  add(part: Part, prices: Prices): void {
    // Amounts are times the seconds already.
    const held = quantitiesIn(asState(part.state), part, 1);
    this.#currencies.add(prices.currency);
    const cost = costOf(held, prices);
    this.#quantities = addQuantities(this.#quantities, held);
    this.cost += cost;
    if (part.state === "hibernated") this.#saved += costOf(quantitiesIn("running", part, 1), prices) - cost;
    const idle = {
      cpu: part.idle_cpu,
      memory_mb: part.idle_memory_mb,
      disk_mb: part.idle_disk_mb,
      image_bytes: 0,
    };
    this.#wasted += costOf(quantitiesIn("running", idle, 1), prices);
    if (part.state === "running" || part.state === "paused" || part.state === "hibernated")
      this.#seconds[part.state] += part.seconds;
    const counts = this.#counts;
    counts.cpu += part.cpu_seconds;
    counts.peak = Math.max(counts.peak, part.memory_peak_bytes);
    counts.in += part.network_in_bytes;
    counts.out += part.network_out_bytes;
    counts.idle += part.idle_seconds;
    counts.uncertainMs += part.uncertain_ms;
  }

  rounded(): UsageSums {
    const [seconds, held, counts] = [this.#seconds, this.#quantities, this.#counts];
    return {
      seconds: {
        running: round(seconds.running),
        paused: round(seconds.paused),
        hibernated: round(seconds.hibernated),
      },
      vcpu_seconds: round(held.vcpu_seconds),
      memory_gib_seconds: round(held.memory_gib_seconds),
      disk_gib_seconds: round(held.disk_gib_seconds),
      image_gib_seconds: round(held.image_gib_seconds),
      cpu_seconds: round(counts.cpu),
      memory_peak_bytes: counts.peak,
      network_in_bytes: Math.round(counts.in),
      network_out_bytes: Math.round(counts.out),
      idle_seconds: round(counts.idle),
      currency: this.#currencies.size === 1 ? ([...this.#currencies][0] ?? null) : null,
      cost: round(this.cost),
      saved_by_sleeping: round(this.#saved),
      wasted_by_idling: round(this.#wasted),
      uncertain_seconds: counts.uncertainMs / 1_000,
    };
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
