import { type Kysely, sql } from "kysely";
import type { UsageGroup } from "@torpor/protocol";
import { clippedByDay, DAY_MS, dayName, type UsagePart } from "../usage/usage-part.ts";
import type { Database } from "./open-database.ts";
import type { Tables } from "./schema.ts";
import { isAskedFor, type UsageFilter, type UsageOwner } from "./usage-filter.ts";

/** Intervals that are over, added up by the database. */
export class ClosedUsage {
  readonly #db: Kysely<Tables>;
  readonly #kind: Database["kind"];

  constructor({ db, kind }: Database) {
    this.#db = db;
    this.#kind = kind;
  }

  /** What lies within the time asked for. */
  parts(owner: UsageOwner, filter: UsageFilter, groupBy: readonly UsageGroup[]): Promise<UsagePart[]> {
    return this.#parts(owner, filter, groupBy, false);
  }

  /**
   * The same by day. What lies within one day is added up by the database; what spans days, or begins or ends outside of what
   * is asked for, is cut here.
   */
  async partsByDay(
    owner: UsageOwner,
    filter: UsageFilter,
    groupBy: readonly UsageGroup[],
  ): Promise<UsagePart[]> {
    const { from, to } = filter;
    const within = await this.#parts(owner, filter, groupBy, true);
    const cut = await this.#rows(owner, filter)
      .where((where) =>
        where.or([
          where("from_at", "<", from),
          where("to_at", ">", to),
          where(sql`from_at / ${sql.lit(DAY_MS)}`, "<>", sql`(to_at - 1) / ${sql.lit(DAY_MS)}`),
        ]),
      )
      .selectAll()
      .execute();
    return [...within, ...cut.flatMap((interval) => clippedByDay(interval, from, to))];
  }

  /** Those that lie at least in part in what is asked for. */
  #rows(owner: UsageOwner, filter: UsageFilter) {
    return this.#db
      .selectFrom("usage_intervals")
      .where("to_at", ">", filter.from)
      .where("from_at", "<", filter.to)
      .where(isAskedFor(owner, filter, "sandbox_id"));
  }

  /** @param isByDay only what lies whole within one day of what is asked for, by day */
  async #parts(
    owner: UsageOwner,
    filter: UsageFilter,
    groupBy: readonly UsageGroup[],
    isByDay: boolean,
  ): Promise<UsagePart[]> {
    const { from, to } = filter;
    const [least, greatest] = this.#kind === "postgres" ? ["least", "greatest"] : ["min", "max"];
    const seconds = sql<number>`((${sql.raw(least)}(to_at, ${to}) - ${sql.raw(greatest)}(from_at, ${from})) / 1000.0)`;
    const share = sql<number>`(${seconds} * 1000.0 / (to_at - from_at))`;
    const isGrouped = (group: UsageGroup, column: "tenant" | "template" | "sandbox_id") =>
      groupBy.includes(group) ? sql<string>`${sql.ref(column)}` : sql<string>`''`;
    const sum = (value: ReturnType<typeof sql<number>>) => sql<number | string>`coalesce(sum(${value}), 0)`;
    let query = this.#rows(owner, filter).select([
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
          UsagePart,
          "account" | "tenant" | "template" | "sandbox_id" | "state" | "day"
        >),
      }),
    );
  }
}
