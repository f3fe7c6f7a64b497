import { z } from "zod";
import { tenantSchema } from "./ids.ts";

/** Account names are chosen by whoever runs the server, and follow the rules of tenant names. */
export const accountIdSchema = tenantSchema;

/** The longest `max_lifetime_seconds`: 10 years. */
const MAX_LIFETIME_SECONDS = 315_360_000;

const most = (description: string) =>
  z.number().int().min(0).max(Number.MAX_SAFE_INTEGER).nullable().describe(description);

const quotaFields = {
  sandboxes: most("Sandboxes that have not been destroyed, awake or asleep."),
  sandboxes_awake: most("Sandboxes that hold a machine: all but hibernated and failed ones."),
  cpu: z.number().min(0).max(1_000_000).nullable().describe("Cores of those that are awake, together."),
  memory_mb: most("Memory of those that are awake, together, MiB."),
  disk_mb: most("Disks of all sandboxes, together, MiB."),
  image_bytes: most(
    "Snapshots and the images that hibernated sandboxes sleep in, bytes. From there on no snapshot is taken and no persistent sandbox made; going to sleep is never refused.",
  ),
  creates_per_minute: most("Sandboxes made within any 60 s, failed and ended ones too."),
};

const lifetimeField = {
  max_lifetime_seconds: z
    .number()
    .int()
    .min(1)
    .max(MAX_LIFETIME_SECONDS)
    .nullable()
    .describe("The absolute end of each sandbox made from now on, seconds from its create. Null: none."),
};

/** What a tenant may have at most; null for no limit. Those of its account hold beside them. */
export const quotaLimitsSchema = z.object(quotaFields);
export type QuotaLimits = z.infer<typeof quotaLimitsSchema>;

/** What an account may have at most; null for no limit. The server's own limits hold beside them. */
export const accountLimitsSchema = z.object({ ...lifetimeField, ...quotaFields });
export type AccountLimits = z.infer<typeof accountLimitsSchema>;

/** Limits to set; what is left out stays. */
const changedLimitsSchema = z.strictObject({ ...lifetimeField, ...quotaFields }).partial();
const changedQuotasSchema = z.strictObject(quotaFields).partial();
export type ChangedAccountLimits = z.output<typeof changedLimitsSchema>;
export type ChangedQuotas = z.output<typeof changedQuotasSchema>;

/** Body of `POST /v1/accounts`. */
export const createAccountSchema = z.strictObject({
  id: accountIdSchema,
  limits: changedLimitsSchema.default({}),
  /** Of each of its tenants. */
  tenant_limits: changedQuotasSchema.default({}),
});

/** Body of `PATCH /v1/accounts/{account_id}`. */
export const updateAccountSchema = z.strictObject({
  limits: changedLimitsSchema.default({}),
  tenant_limits: changedQuotasSchema.default({}),
});

/** What an account or a tenant has now, by the names of the limits. */
export const quotaUsageSchema = z.object({
  sandboxes: z.number().int(),
  sandboxes_awake: z.number().int(),
  cpu: z.number(),
  memory_mb: z.number().int(),
  disk_mb: z.number().int(),
  image_bytes: z.number().int(),
  creates_per_minute: z.number().int(),
});
export type QuotaUsage = z.infer<typeof quotaUsageSchema>;

export const accountSchema = z.object({
  id: z.string(),
  created_at: z.string(),
  limits: accountLimitsSchema,
  tenant_limits: quotaLimitsSchema.describe("What each of its tenants may have at most."),
  usage: quotaUsageSchema,
});
export type Account = z.infer<typeof accountSchema>;

/** A tenant's share of its account. */
export const tenantUsageSchema = z.object({
  tenant: z.string(),
  limits: quotaLimitsSchema,
  usage: quotaUsageSchema,
});
export type TenantUsage = z.infer<typeof tenantUsageSchema>;
