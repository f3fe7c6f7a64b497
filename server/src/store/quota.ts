import { type Kysely, sql, type Transaction } from "kysely";
import { CodedError, type QuotaLimits, quotaLimitsSchema, type QuotaUsage } from "@torpor/protocol";
import type { Database } from "./open-database.ts";
import { parseJsonColumn } from "./json-column.ts";
import type { Tables } from "./schema.ts";

/** Whose limits: an account's, or those of one of its tenants. */
export interface QuotaOwner {
  account: string;
  tenant?: string;
}

/** What is about to be had more. */
export interface QuotaDemand {
  what: "create" | "wake" | "snapshot";
  cpu: number;
  memoryMb: number;
  diskMb: number;
  /** Whether an image comes of it. */
  image: boolean;
}

/** The window of `creates_per_minute`. */
const RATE_WINDOW_MS = 60_000;

const QUOTA_NAMES = quotaLimitsSchema.keyof().options;

const NO_LIMITS: QuotaLimits = {
  sandboxes: null,
  sandboxes_awake: null,
  cpu: null,
  memory_mb: null,
  disk_mb: null,
  image_bytes: null,
  creates_per_minute: null,
};

/** What of a JSON column of limits is a quota; what is not set is no limit. @throws Error when it holds something else */
export function quotasOf(column: unknown): QuotaLimits {
  return quotaLimitsSchema.parse({ ...NO_LIMITS, ...(parseJsonColumn(column) as object) });
}

/** What an owner has now. Reads records alone. */
export async function quotaUsage(
  db: Kysely<Tables>,
  kind: Database["kind"],
  { account, tenant }: QuotaOwner,
  now: number,
): Promise<QuotaUsage> {
  const isAwake = sql`state not in ('hibernated', 'failed', 'destroying')`;
  const imageBytes =
    kind === "postgres" ? sql`(image ->> 'size_bytes')::bigint` : sql`json_extract(image, '$.size_bytes')`;
  let living = db
    .selectFrom("sandboxes")
    .select([
      sql<number | string>`count(*)`.as("sandboxes"),
      sql<number | string>`coalesce(sum(case when ${isAwake} then 1 else 0 end), 0)`.as("awake"),
      sql<number | string>`coalesce(sum(case when ${isAwake} then cpu else 0 end), 0)`.as("cpu"),
      sql<number | string>`coalesce(sum(case when ${isAwake} then memory_mb else 0 end), 0)`.as("memory"),
      sql<number | string>`coalesce(sum(disk_mb), 0)`.as("disk"),
      sql<number | string>`coalesce(sum(${imageBytes}), 0)`.as("images"),
    ])
    .where("account", "=", account)
    .where(sql<boolean>`state <> 'destroyed'`); // written out, so that the index of what lives is used
  let kept = db
    .selectFrom("snapshots")
    .select(sql<number | string>`coalesce(sum(size_bytes), 0)`.as("bytes"))
    .where("account", "=", account);
  let made = db
    .selectFrom("sandboxes")
    .select(sql<number | string>`count(*)`.as("count"))
    .where("account", "=", account)
    .where("created_at", ">", now - RATE_WINDOW_MS);
  if (tenant !== undefined) {
    living = living.where("tenant", "=", tenant);
    kept = kept.where("tenant", "=", tenant);
    made = made.where("tenant", "=", tenant);
  }
  const sums = await living.executeTakeFirstOrThrow();
  const snapshots = await kept.executeTakeFirstOrThrow();
  const recent = await made.executeTakeFirstOrThrow();
  return {
    sandboxes: Number(sums.sandboxes),
    sandboxes_awake: Number(sums.awake),
    cpu: Math.round(Number(sums.cpu) * 1_000) / 1_000,
    memory_mb: Number(sums.memory),
    disk_mb: Number(sums.disk),
    image_bytes: Number(sums.images) + Number(snapshots.bytes),
    creates_per_minute: Number(recent.count),
  };
}

/** Whether any of the quotas is set. */
export function isLimited(limits: QuotaLimits): boolean {
  return QUOTA_NAMES.some((name) => limits[name] !== null);
}

/**
 * Makes sure, inside the transaction that is about to write it, that what is demanded stays within the limits of the tenant
 * and of its account. Where several servers share the store the account's row is locked until the transaction ends, so that
 * however many ask at once, what is counted holds.
 *
 * @returns whether there are limits at all
 * @throws CodedError quota_exceeded, or rate_limited with `retry_after_seconds` in its details
 */
export async function requireQuota(
  transaction: Transaction<Tables>,
  kind: Database["kind"],
  { account, tenant }: Required<QuotaOwner>,
  demand: QuotaDemand,
  now: number,
): Promise<boolean> {
  const row = transaction
    .selectFrom("accounts")
    .select(["limits", "tenant_limits"])
    .where("id", "=", account);
  const seen = await row.executeTakeFirst();
  if (seen === undefined) return false;
  const limits = { account: quotasOf(seen.limits), tenant: quotasOf(seen.tenant_limits) };
  if (!isLimited(limits.account) && !isLimited(limits.tenant)) return false;
  if (kind === "postgres") await row.forUpdate().execute(); // SQLite has one writer at a time as it is
  for (const level of ["tenant", "account"] as const) {
    if (!isLimited(limits[level])) continue;
    const owner = level === "tenant" ? { account, tenant } : { account };
    const usage = await quotaUsage(transaction, kind, owner, now);
    const name = level === "tenant" ? `tenant ${tenant}` : `account ${account}`;
    requireWithin(name, level, limits[level], usage, demand);
    const rate = limits[level].creates_per_minute;
    if (demand.what === "create" && rate !== null && usage.creates_per_minute >= rate)
      throw rateLimited(name, level, rate, usage, await freeIn(transaction, owner, rate, now));
  }
  return true;
}

/** What can be done about each, as the message says it. */
const REMEDIES: Record<Exclude<keyof QuotaLimits, "creates_per_minute">, [unit: string, remedy: string]> = {
  sandboxes: ["sandboxes", "destroy some"],
  sandboxes_awake: ["sandboxes awake", "hibernate or destroy some"],
  cpu: ["cores of sandboxes awake", "hibernate or destroy some, or ask for less cpu"],
  memory_mb: ["MiB of memory of sandboxes awake", "hibernate or destroy some, or ask for less memory_mb"],
  disk_mb: ["MiB of disk", "destroy some sandboxes, or ask for less disk_mb"],
  image_bytes: [
    "bytes of snapshots and hibernation images",
    "delete snapshots or destroy sandboxes that sleep",
  ],
};

function requireWithin(
  name: string,
  level: "account" | "tenant",
  limits: QuotaLimits,
  usage: QuotaUsage,
  { what, cpu, memoryMb, diskMb, image }: QuotaDemand,
): void {
  const wakes = what !== "snapshot";
  const more = {
    sandboxes: what === "create" ? 1 : 0,
    sandboxes_awake: wakes ? 1 : 0,
    cpu: wakes ? cpu : 0,
    memory_mb: wakes ? memoryMb : 0,
    disk_mb: what === "create" ? diskMb : 0,
    image_bytes: image ? 1 : 0, // how large it becomes is known when it is there
  };
  for (const [limit, asked] of Object.entries(more) as [keyof typeof more, number][]) {
    const value = limits[limit];
    if (asked === 0 || value === null || usage[limit] + asked <= value) continue;
    const [unit, remedy] = REMEDIES[limit];
    const wanted = limit === "image_bytes" ? "" : `, and this ${what} needs ${asked} more`;
    throw new CodedError(
      "quota_exceeded",
      `${name} may have ${value} ${unit} and has ${usage[limit]}${wanted}: ${remedy}, or have the limit ${limit} raised by whoever runs this server`,
      {
        details: {
          limit,
          of: level,
          value,
          usage: usage[limit],
          asked: limit === "image_bytes" ? null : asked,
        },
      },
    );
  }
}

function rateLimited(
  name: string,
  level: "account" | "tenant",
  rate: number,
  usage: QuotaUsage,
  freeInMs: number,
): CodedError {
  const seconds = Math.max(1, Math.ceil(freeInMs / 1_000));
  return new CodedError(
    "rate_limited",
    `${name} may make ${rate} sandboxes a minute and has made ${usage.creates_per_minute} within the last: try again in ${seconds} s, or have the limit creates_per_minute raised by whoever runs this server`,
    {
      details: {
        limit: "creates_per_minute",
        of: level,
        value: rate,
        usage: usage.creates_per_minute,
        retry_after_seconds: seconds,
      },
    },
  );
}

/** Milliseconds until one more may be made: when the last of the newest `rate` leaves the window. */
async function freeIn(
  transaction: Transaction<Tables>,
  { account, tenant }: QuotaOwner,
  rate: number,
  now: number,
): Promise<number> {
  if (rate === 0) return RATE_WINDOW_MS;
  let query = transaction.selectFrom("sandboxes").select("created_at").where("account", "=", account);
  if (tenant !== undefined) query = query.where("tenant", "=", tenant);
  const row = await query
    .orderBy("created_at", "desc")
    .limit(1)
    .offset(rate - 1)
    .executeTakeFirst();
  return row === undefined ? RATE_WINDOW_MS : row.created_at + RATE_WINDOW_MS - now;
}
