import { accountIdSchema, CodedError, createKeySchema, keySchema, randomText } from "@torpor/protocol";
import { z } from "zod";
import { apiKeyPrefix, hashApiKey, newApiKey } from "../auth/authenticator.ts";
import { refused } from "../sandbox/create-plan.ts";
import { toApiKey } from "../store/key-store.ts";
import type { Call } from "../http/api.ts";
import { onceShown } from "./once-shown.ts";
import { accountNotFound } from "./account-routes.ts";
import { listSchema, shownList } from "./shown-page.ts";
import type { RouteDeps } from "./route-deps.ts";

/** Make, list and revoke API keys. A key bound to a tenant manages that tenant's keys alone. */
export function addKeyRoutes(deps: RouteDeps): void {
  const { api, keyStore } = deps;
  api.add(
    {
      method: "post",
      path: "/v1/keys",
      tag: "keys",
      summary: "Make an API key",
      description:
        "The answer shows the key, this once. It can do no more than the key it is made with: that one's tenant if it is bound to one, its scopes, and its end. Only a key with the scope `operator` makes keys of other accounts (`account`) and hands on `operator`, which no key of another account or of one tenant can have. A repeat with the same Idempotency-Key is refused instead of answered: the key itself is kept nowhere.",
      scope: "admin",
      body: createKeySchema,
      answers: {
        201: { description: "The key, shown this once", schema: keySchema.extend({ key: z.string() }) },
      },
    },
    async (call) => await onceShown(deps, call, "API key", async () => await makeKey(deps, call)),
  );

  api.add(
    {
      method: "get",
      path: "/v1/keys",
      tag: "keys",
      summary: "List API keys, newest first",
      description: "Of one's own account. The operator lists those of any (`account`).",
      scope: "admin",
      query: z.strictObject({
        account: accountIdSchema
          .optional()
          .describe("Default: the account of the key that asks. Another is for the operator to name."),
      }),
      answers: {
        200: {
          description: "Keys, revoked ones too, never the keys themselves",
          schema: listSchema(keySchema),
        },
      },
    },
    async (call) => {
      const { operator, scope } = call.caller;
      const { account = scope.account } = call.query;
      if (account === scope.account)
        return { status: 200, body: shownList(await keyStore.list(scope), toApiKey) };
      if (operator === undefined)
        throw new CodedError(
          "permission_denied",
          `this API key is of account ${scope.account}, so it cannot list the keys of account ${account}; leave the account out, or use a key with the scope operator`,
        );
      if ((await deps.accountStore.find(operator, account)) === undefined) throw accountNotFound(account);
      return { status: 200, body: shownList(await keyStore.listOf(operator, account), toApiKey) };
    },
  );

  api.add(
    {
      method: "get",
      path: "/v1/keys/{key_id}",
      tag: "keys",
      summary: "Get an API key",
      description: "One of one's own account; the operator gets any.",
      scope: "admin",
      answers: { 200: { description: "What is known of it, never the key itself", schema: keySchema } },
    },
    async (call) => {
      const id = call.param("key_id");
      const key = await keyStore.find(call.caller.operator ?? call.caller.scope, id);
      if (key === undefined) throw keyNotFound(id);
      return { status: 200, body: toApiKey(key) };
    },
  );

  api.add(
    {
      method: "delete",
      path: "/v1/keys/{key_id}",
      tag: "keys",
      summary: "Revoke an API key",
      description:
        "One of one's own account; the operator revokes any. Counts at once: the next request with it is refused, and what is under way with it is cut off within about a second. Again: the same answer.",
      scope: "admin",
      answers: { 200: { description: "The key, revoked", schema: keySchema } },
    },
    async (call) => {
      const id = call.param("key_id");
      const { operator, scope } = call.caller;
      const revoked = await keyStore.revoke(operator ?? scope, id, deps.clock.now());
      if (revoked === undefined) throw keyNotFound(id);
      return { status: 200, body: toApiKey(revoked) };
    },
  );
}

function keyNotFound(id: string): CodedError {
  return new CodedError("not_found", `there is no API key ${id.slice(0, 80)}; list them with GET /v1/keys`);
}

/** A key gives no more than it has: not another tenant, no further scope, no longer life. */
async function makeKey(
  deps: RouteDeps,
  call: Call<unknown, z.output<typeof createKeySchema>>,
): Promise<unknown> {
  const { name, tenant, scopes, expires_in_seconds: seconds } = call.body;
  const own = call.caller.scope.tenant;
  if (own !== null && tenant !== undefined && tenant !== own) {
    throw new CodedError(
      "permission_denied",
      `this API key is bound to tenant ${own}, so it cannot make a key for tenant ${tenant}`,
    );
  }
  const account = await accountFor(deps, call);
  const maker = call.caller.key;
  const key = newApiKey();
  const now = deps.clock.now();
  const expiresAt = seconds === undefined ? maker.expiresAt : now + seconds * 1_000;
  if (maker.expiresAt !== null && expiresAt !== null && expiresAt > maker.expiresAt) {
    throw new CodedError(
      "permission_denied",
      `this API key expires at ${new Date(maker.expiresAt).toISOString()}, so it cannot make one that lives longer; ask for less, or leave expires_in_seconds out for the same end`,
      { details: { expires_at: new Date(maker.expiresAt).toISOString() } },
    );
  }
  const record = await deps.keyStore.issue(call.caller.operator ?? call.caller.scope, {
    id: `key_${randomText(20)}`,
    account,
    name,
    prefix: apiKeyPrefix(key),
    hash: hashApiKey(key),
    tenant: tenant ?? own,
    scopes: [...new Set(scopes)],
    createdAt: now,
    expiresAt,
  });
  return { ...toApiKey(record), key };
}

/** The account a new key is made in. @throws CodedError permission_denied, not_found */
async function accountFor(
  { accountStore }: RouteDeps,
  { body, caller }: Call<unknown, z.output<typeof createKeySchema>>,
): Promise<string> {
  const { operator, scope } = caller;
  const account = body.account ?? scope.account;
  const isOther = account !== scope.account;
  if (isOther && operator === undefined)
    throw new CodedError(
      "permission_denied",
      `this API key is of account ${scope.account}, so it cannot make a key of account ${account}; leave the account out, or use a key with the scope operator`,
    );
  if (body.scopes.includes("operator")) {
    if (operator === undefined)
      throw new CodedError(
        "permission_denied",
        "only a key with the scope operator can hand that scope on; use one, or make the key without it",
      );
    if (isOther || body.tenant !== undefined)
      throw refused("scopes", "hold operator, which a key of another account or of one tenant cannot have");
  }
  if (isOther && operator !== undefined && (await accountStore.find(operator, account)) === undefined)
    throw accountNotFound(account);
  return account;
}
