import { z } from "zod";
import { accountIdSchema } from "./account.ts";
import { tenantSchema } from "./ids.ts";

/** `admin` holds all before it, within one account; `operator` holds all there is, and the accounts themselves. */
export const SCOPES = [
  "sandbox:read",
  "sandbox:write",
  "sandbox:exec",
  "template:write",
  "admin",
  "operator",
] as const;
export type Scope = (typeof SCOPES)[number];

const OF_ACCOUNT = ["sandbox:read", "sandbox:write", "sandbox:exec", "template:write"] as const;

/**
 * What else a scope holds. Whoever writes to sandboxes or runs things in them may look at them too: clients fetch a
 * sandbox before they work on it, and code inside could tell all of it anyway. Never another tenant's or account's.
 */
const IMPLIED: Readonly<Record<Scope, readonly Scope[]>> = {
  "sandbox:read": [],
  "sandbox:write": ["sandbox:read"],
  "sandbox:exec": ["sandbox:read"],
  "template:write": [],
  admin: OF_ACCOUNT,
  operator: [...OF_ACCOUNT, "admin"],
};

/** Whether a key with `scopes` may do what takes the scope `needed`. */
export function holdsScope(scopes: readonly Scope[], needed: Scope): boolean {
  return scopes.some((scope) => scope === needed || IMPLIED[scope].includes(needed));
}

/** Body of `POST /v1/keys`. */
export const createKeySchema = z.strictObject({
  name: z.string().min(1).max(128),
  /** Default: the account of the key that asks. Another is for the operator to name. */
  account: accountIdSchema.optional(),
  /** Binds the key to one tenant: it sees and makes only that tenant's. */
  tenant: tenantSchema.optional(),
  scopes: z.array(z.enum(SCOPES)).min(1).default(["sandbox:read", "sandbox:write", "sandbox:exec"]),
  /** 1 second to 10 years; without it the key does not expire. */
  expires_in_seconds: z.number().int().min(1).max(315_360_000).optional(),
});
export type CreateKeyRequest = z.output<typeof createKeySchema>;

export const keySchema = z.object({
  id: z.string(),
  name: z.string(),
  /** First characters of the key, enough to recognise it. */
  prefix: z.string(),
  account: z.string(),
  tenant: z.string().nullable(),
  scopes: z.array(z.enum(SCOPES)),
  created_at: z.string(),
  expires_at: z.string().nullable(),
  last_used_at: z.string().nullable(),
  revoked_at: z.string().nullable(),
});
export type ApiKey = z.infer<typeof keySchema>;

/** Answer of `POST /v1/keys`: the only time the key itself is shown. */
export type CreatedApiKey = ApiKey & { key: string };
