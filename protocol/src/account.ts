import { z } from "zod";
import { tenantSchema } from "./ids.ts";

/** Account names are chosen by whoever runs the server, and follow the rules of tenant names. */
export const accountIdSchema = tenantSchema;

/** The longest `max_lifetime_seconds`: 10 years. */
const MAX_LIFETIME_SECONDS = 315_360_000;

const limitFields = {
  max_lifetime_seconds: z
    .number()
    .int()
    .min(1)
    .max(MAX_LIFETIME_SECONDS)
    .nullable()
    .describe("The absolute end of each sandbox made from now on, seconds from its create. Null: none."),
};

/** What an account may have at most; null for no limit. The server's own limits hold beside them. */
export const accountLimitsSchema = z.object(limitFields);
export type AccountLimits = z.infer<typeof accountLimitsSchema>;

/** Limits to set; what is left out stays. */
const changedLimitsSchema = z.strictObject(limitFields).partial();

/** Body of `POST /v1/accounts`. */
export const createAccountSchema = z.strictObject({
  id: accountIdSchema,
  limits: changedLimitsSchema.default({}),
});
export type CreateAccountRequest = z.output<typeof createAccountSchema>;

/** Body of `PATCH /v1/accounts/{account_id}`. */
export const updateAccountSchema = z.strictObject({ limits: changedLimitsSchema });
export type ChangedAccountLimits = z.output<typeof changedLimitsSchema>;

/** What an account has now. */
const accountUsageSchema = z.object({
  sandboxes: z.number().int().describe("All that have not been destroyed, asleep or awake."),
  sandboxes_awake: z.number().int().describe("Those of them that hold a machine: all but hibernated ones."),
});
export type AccountUsage = z.infer<typeof accountUsageSchema>;

export const accountSchema = z.object({
  id: z.string(),
  created_at: z.string(),
  limits: accountLimitsSchema,
  usage: accountUsageSchema,
});
export type Account = z.infer<typeof accountSchema>;
