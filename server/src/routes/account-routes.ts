import {
  type Account,
  accountSchema,
  CodedError,
  createAccountSchema,
  LIMITS,
  tenantSchema,
  tenantUsageSchema,
  updateAccountSchema,
} from "@torpor/protocol";
import { z } from "zod";
import type { Caller } from "../auth/authenticator.ts";
import { operatorOf } from "../auth/operator-of.ts";
import { type AccountRecord, toAccount } from "../store/account-store.ts";
import { pageCursor, pageSchema, shownPage } from "./shown-page.ts";
import type { RouteDeps } from "./route-deps.ts";

const listQuery = z.strictObject({
  limit: z.coerce
    .number({ error: "must be a whole number" })
    .int("must be a whole number")
    .min(1)
    .max(LIMITS.maxPageSize)
    .default(LIMITS.defaultPageSize)
    .describe(`Items on a page, 1 to ${LIMITS.maxPageSize}. Default ${LIMITS.defaultPageSize}.`),
  cursor: pageCursor,
});

/** Make, list and limit accounts, for whoever runs the server; an account's own admin sees that one. */
export function addAccountRoutes(deps: RouteDeps): void {
  const { api, accountStore, clock } = deps;

  const shown = async (record: AccountRecord): Promise<Account> =>
    toAccount(record, await accountStore.usage(record, clock.now()));

  api.add(
    {
      method: "post",
      path: "/v1/accounts",
      tag: "accounts",
      summary: "Make an account",
      description:
        "It has no keys yet: make its first with `POST /v1/keys` and `account`, scope `admin`; the account then looks after itself.",
      scope: "operator",
      body: createAccountSchema,
      answers: { 201: { description: "The account", schema: accountSchema } },
    },
    async (call) =>
      await api.once(
        call,
        async () => {
          const { id, limits, tenant_limits: tenantLimits } = call.body;
          const operator = operatorOf(call.caller);
          const made = await accountStore.insert(operator, id, { limits, tenantLimits }, clock.now());
          if (made === undefined)
            throw new CodedError(
              "already_exists",
              `there is an account ${id} already; set its limits with PATCH /v1/accounts/${id}`,
            );
          return { status: 201, body: await shown(made) };
        },
        false,
      ),
  );

  api.add(
    {
      method: "get",
      path: "/v1/accounts",
      tag: "accounts",
      summary: "List accounts, newest first",
      scope: "operator",
      query: listQuery,
      answers: {
        200: {
          description: "One page, with limits and what each has",
          schema: pageSchema(accountSchema),
        },
      },
    },
    async (call) => {
      const page = await accountStore.list(operatorOf(call.caller), call.query);
      return { status: 200, body: shownPage({ ...page, items: await Promise.all(page.items.map(shown)) }) };
    },
  );

  api.add(
    {
      method: "get",
      path: "/v1/account",
      tag: "accounts",
      summary: "Get the account of the key that asks",
      description: "For keys of the whole account; a key that is bound to a tenant is refused.",
      scope: "admin",
      answers: { 200: { description: "Its limits and what it has", schema: accountSchema } },
    },
    async (call) => {
      refuseBound(call.caller);
      return { status: 200, body: await shown(await accountStore.own(call.caller.scope)) };
    },
  );

  api.add(
    {
      method: "get",
      path: "/v1/accounts/{account_id}",
      tag: "accounts",
      summary: "Get an account",
      description: "One's own; the operator gets any.",
      scope: "admin",
      answers: { 200: { description: "Its limits and what it has", schema: accountSchema } },
    },
    async (call) => {
      refuseBound(call.caller);
      const id = call.param("account_id");
      const { operator, scope } = call.caller;
      if (id === scope.account) return { status: 200, body: await shown(await accountStore.own(scope)) };
      const found = operator === undefined ? undefined : await accountStore.find(operator, id);
      if (found === undefined) throw accountNotFound(id);
      return { status: 200, body: await shown(found) };
    },
  );

  api.add(
    {
      method: "patch",
      path: "/v1/accounts/{account_id}",
      tag: "accounts",
      summary: "Set limits of an account",
      description:
        "What is left out stays; null takes a limit away. They count from the next create on: what is there already is left alone.",
      scope: "operator",
      body: updateAccountSchema,
      answers: { 200: { description: "The account, changed", schema: accountSchema } },
    },
    async (call) => {
      const id = call.param("account_id");
      const { limits, tenant_limits: tenantLimits } = call.body;
      const changed = await accountStore.setLimits(operatorOf(call.caller), id, { limits, tenantLimits });
      if (changed === undefined) throw accountNotFound(id);
      return { status: 200, body: await shown(changed) };
    },
  );

  api.add(
    {
      method: "get",
      path: "/v1/tenants/{tenant}",
      tag: "accounts",
      summary: "Get what a tenant has, and may have",
      description: "Of the account of the key that asks. A tenant nobody has used yet has nothing.",
      scope: "sandbox:read",
      answers: { 200: { description: "Its limits and what it has", schema: tenantUsageSchema } },
    },
    async (call) => {
      const { scope } = call.caller;
      const tenant = tenantSchema.safeParse(call.param("tenant")).data;
      if (tenant === undefined || (scope.tenant !== null && tenant !== scope.tenant))
        throw new CodedError(
          "not_found",
          `there is no tenant ${call.param("tenant").slice(0, 128)} that this API key may see`,
        );
      const { tenantLimits } = await accountStore.own(scope);
      const usage = await accountStore.tenantUsage(scope, tenant, clock.now());
      return { status: 200, body: { tenant, limits: tenantLimits, usage } };
    },
  );
}

/** The one answer for an account that does not exist and for one the caller may not see. */
export function accountNotFound(id: string): CodedError {
  return new CodedError(
    "not_found",
    `there is no account ${id.slice(0, 128)} that this API key may see; its own is at GET /v1/account`,
  );
}

function refuseBound({ scope }: Caller): void {
  if (scope.tenant !== null)
    throw new CodedError(
      "permission_denied",
      `this API key is bound to tenant ${scope.tenant}, so it does not see the account; use a key of the whole account`,
    );
}
