import { z } from "zod";
import { pricesSchema } from "./price.ts";
import { SANDBOX_STATES } from "./states.ts";

/** By what usage can be added up. */
export const USAGE_GROUPS = ["account", "tenant", "template", "sandbox", "day", "state"] as const;
export type UsageGroup = (typeof USAGE_GROUPS)[number];

/** What is metered: the states of sandboxes, and snapshots, which take room on the disk as images do. */
export const METERED_STATES = [...SANDBOX_STATES, "snapshot"] as const;
export type MeteredState = (typeof METERED_STATES)[number];

const amount = z.number().describe("In the currency of the prices, rounded to a millionth.");

const usageFields = {
  seconds: z
    .object({ running: z.number(), paused: z.number(), hibernated: z.number() })
    .describe("Time in these states, added up over sandboxes."),
  vcpu_seconds: z.number().describe("Cores allotted while running, used or not."),
  memory_gib_seconds: z.number().describe("Memory allotted while running or paused."),
  disk_gib_seconds: z.number().describe("Disk allotted while not hibernated."),
  image_gib_seconds: z.number().describe("What hibernated sandboxes and snapshots took on the disk."),
  cpu_seconds: z.number().describe("CPU time really used."),
  memory_peak_bytes: z.number().describe("The most memory one of them really held at once."),
  network_in_bytes: z.number(),
  network_out_bytes: z.number(),
  idle_seconds: z.number().describe("Time awake with nobody asking anything and nothing computing."),
  currency: z
    .string()
    .nullable()
    .describe(
      "Of the amounts; null where there are none, or of accounts with several, whose sum says nothing.",
    ),
  cost: amount,
  saved_by_sleeping: amount.describe("What the time asleep would have cost awake, less what it cost."),
  wasted_by_idling: amount.describe("What of the cost was for `idle_seconds`."),
  uncertain_seconds: z
    .number()
    .describe(
      "Time that may be missing in here: the end of a sandbox was noticed so much later, or its host no longer told of all it did.",
    ),
};

/** One row of `GET /v1/usage`: what it is grouped by, and the sums. */
export const usageItemSchema = z.object({
  account: z.string().optional(),
  tenant: z.string().optional(),
  template: z.string().optional(),
  sandbox_id: z.string().optional(),
  /** UTC. */
  day: z.string().optional(),
  state: z.enum(METERED_STATES).optional(),
  ...usageFields,
});
export type UsageItem = z.infer<typeof usageItemSchema>;

/** Answer of `GET /v1/usage`. */
export const usageSchema = z.object({
  from: z.string(),
  to: z.string(),
  prices: pricesSchema.describe(
    "Of the account that asks; of each account its own where `group_by` names it.",
  ),
  items: z.array(usageItemSchema),
  total: z.object(usageFields),
});
export type Usage = z.infer<typeof usageSchema>;
export type UsageSums = z.infer<typeof usageSchema>["total"];

/** One interval of the meter: what was held from one moment to the next, unchanged. */
export const usageIntervalSchema = z.object({
  sandbox_id: z.string().describe("Or the id of a snapshot."),
  /** Counts those of a sandbox from 1; each begins where the one before ends. */
  number: z.number().int(),
  tenant: z.string(),
  template: z.string(),
  state: z.enum(METERED_STATES),
  cpu: z.number(),
  memory_mb: z.number(),
  disk_mb: z.number(),
  image_bytes: z.number(),
  from: z.string(),
  /** Null while it goes on. */
  to: z.string().nullable(),
  cpu_seconds: z.number(),
  memory_peak_bytes: z.number(),
  network_in_bytes: z.number(),
  network_out_bytes: z.number(),
  idle_seconds: z.number(),
  /** Its end was noticed this much later, which is not counted; or so much of it may have been something else. */
  uncertain_ms: z.number(),
});
export type UsageInterval = z.infer<typeof usageIntervalSchema>;

/** Budgets begin anew at 00:00 UTC, of each day or of the first of the month. */
export const BUDGET_PERIODS = ["day", "month"] as const;
export type BudgetPeriod = (typeof BUDGET_PERIODS)[number];

/** Body of `PUT /v1/account/budget` and `PUT /v1/tenants/{tenant}/budget`. */
export const setBudgetSchema = z.strictObject({
  amount: z.number().min(0).max(1_000_000_000).describe("In the currency of the account's prices."),
  period: z.enum(BUDGET_PERIODS).default("month"),
});

export const budgetSchema = z.object({
  /** Null for the account's own. */
  tenant: z.string().nullable(),
  amount: z.number(),
  period: z.enum(BUDGET_PERIODS),
  spent: z.number().describe("In this period, rounded to a millionth."),
  state: z.enum(["ok", "warned", "exhausted"]),
  /** When it begins anew. */
  renews_at: z.string(),
});
export type Budget = z.infer<typeof budgetSchema>;
