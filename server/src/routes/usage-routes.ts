import {
  type Budget,
  budgetSchema,
  CodedError,
  pricesSchema,
  setBudgetSchema,
  tenantSchema,
  USAGE_GROUPS,
  type UsageGroup,
  usageIntervalSchema,
  type UsageItem,
  usageSchema,
} from "@torpor/protocol";
import { z } from "zod";
import type { Caller } from "../auth/authenticator.ts";
import { operatorOf } from "../auth/operator-of.ts";
import { SENT } from "../http/api.ts";
import { sendText } from "../http/answer.ts";
import type { BudgetRecord } from "../store/budget-store.ts";
import { budgetState, periodAt } from "../usage/budget-period.ts";
import { accountNotFound } from "./account-routes.ts";
import type { RouteDeps } from "./route-deps.ts";

/** Longest time that is added up day by day. */
const MAX_DAYS = 366;
const DAY_MS = 86_400_000;
const MAX_INTERVALS = 1_000;

const timeSchema = z
  .string()
  .refine(
    (text) => !Number.isNaN(Date.parse(text)),
    "must be a time, such as 2026-01-31 or 2026-01-31T12:00:00Z",
  )
  .transform((text) => Date.parse(text));

const isGroup = (text: string): text is UsageGroup => USAGE_GROUPS.some((group) => group === text);

const groupBySchema = z
  .string()
  .transform((text) => text.split(",").filter((part) => part !== ""))
  .refine((parts) => parts.every(isGroup), `must be some of ${USAGE_GROUPS.join(", ")}, with commas between`)
  .transform((parts) => [...new Set(parts.filter(isGroup))])
  .default(["tenant"])
  .describe(
    "What to add up by, e.g. `tenant,day`. Default `tenant`. With `account` the operator gets all accounts.",
  );

const usageQuery = z.strictObject({
  from: timeSchema.optional().describe("Default: the first of this month, 00:00 UTC."),
  to: timeSchema.optional().describe("Default: now."),
  group_by: groupBySchema,
  tenant: tenantSchema.optional(),
  template: z.string().max(128).optional(),
  sandbox_id: z.string().max(128).optional(),
  format: z.enum(["json", "csv"]).default("json"),
});

/** What was used and what it costs, prices, and budgets. */
export function addUsageRoutes(deps: RouteDeps): void {
  const { api, usageStore, priceStore, budgetStore, accountStore, budgetWatch, clock } = deps;

  api.add(
    {
      method: "get",
      path: "/v1/usage",
      tag: "usage",
      summary: "What was used, and what it costs",
      description:
        "Sums of the meter's intervals from `from` to `to`; what lies partly within counts in part, what goes on counts until now. `format=csv` gives the items alone, one a line.",
      scope: "sandbox:read",
      query: usageQuery,
      answers: { 200: { description: "Items by `group_by`, and the total", schema: usageSchema } },
    },
    async (call) => {
      const { scope, operator } = call.caller;
      const { group_by: groupBy, format, sandbox_id: sandboxId, tenant, template } = call.query;
      const now = clock.now();
      const from = call.query.from ?? periodAt("month", now).from;
      const to = call.query.to ?? now;
      if (to < from) throw refusedTime("to", "is before `from`");
      if (groupBy.includes("day") && to - from > MAX_DAYS * DAY_MS)
        throw refusedTime(
          "from",
          `is more than ${MAX_DAYS} days before \`to\`, too long to be added up by day`,
        );
      const pricesOf = await priceStore.all(scope);
      const whose = operator !== undefined && groupBy.includes("account") ? operator : scope;
      const filter = { from, to, now, tenant, template, sandboxId };
      const { items, total } = await usageStore.sums(whose, filter, groupBy, pricesOf);
      if (format === "csv") {
        sendText(call.incoming, call.outgoing, 200, usageCsv(items, groupBy), {
          "content-type": "text/csv; charset=utf-8",
          "content-disposition": 'attachment; filename="usage.csv"',
        });
        return SENT;
      }
      const [isoFrom, isoTo] = [new Date(from).toISOString(), new Date(to).toISOString()];
      return {
        status: 200,
        body: { from: isoFrom, to: isoTo, prices: pricesOf(scope.account), items, total },
      };
    },
  );

  api.add(
    {
      method: "get",
      path: "/v1/sandboxes/{id}/usage",
      tag: "usage",
      summary: "The meter's intervals of one sandbox",
      description:
        "Oldest first: each begins where the one before ends, and the last has no end while the sandbox lives. Also of sandboxes that are no longer kept, and of snapshots that were deleted.",
      scope: "sandbox:read",
      query: z.strictObject({
        after: z.coerce.number().int().min(0).default(0).describe("Intervals after this number. Default 0."),
        limit: z.coerce
          .number()
          .int()
          .min(1)
          .max(MAX_INTERVALS)
          .default(MAX_INTERVALS)
          .describe(`At most so many. Default ${MAX_INTERVALS}.`),
      }),
      answers: {
        200: {
          description: "Its intervals, and where to go on; null at the end",
          schema: z.object({
            items: z.array(usageIntervalSchema),
            next_after: z.number().int().nullable(),
          }),
        },
      },
    },
    async (call) => {
      const id = call.param("id");
      const { items, nextAfter } = await usageStore.intervals(call.caller.scope, id, call.query);
      if (items.length === 0 && call.query.after === 0) await deps.sandboxes.require(call.caller.scope, id);
      return { status: 200, body: { items, next_after: nextAfter } };
    },
  );

  api.add(
    {
      method: "get",
      path: "/v1/prices",
      tag: "usage",
      summary: "What the account of the key pays",
      scope: "sandbox:read",
      answers: { 200: { description: "The prices", schema: pricesSchema } },
    },
    async (call) => ({ status: 200, body: await priceStore.own(call.caller.scope) }),
  );

  api.add(
    {
      method: "get",
      path: "/v1/accounts/{account_id}/prices",
      tag: "usage",
      summary: "What an account pays",
      description: "For whoever sets prices. An account that nobody has made pays what all others pay.",
      scope: "operator",
      answers: { 200: { description: "The prices", schema: pricesSchema } },
    },
    async (call) => ({
      status: 200,
      body: (await priceStore.all(operatorOf(call.caller)))(call.param("account_id")),
    }),
  );

  for (const [path, of] of [
    ["/v1/prices", "all accounts without prices of their own"],
    ["/v1/accounts/{account_id}/prices", "one account"],
  ] as const) {
    const accountOf = async (caller: Caller, param: (name: string) => string): Promise<string | null> => {
      if (path === "/v1/prices") return null;
      const id = param("account_id");
      if ((await accountStore.find(operatorOf(caller), id)) === undefined) throw accountNotFound(id);
      return id;
    };
    api.add(
      {
        method: "put",
        path,
        tag: "usage",
        summary: `Set the prices of ${of}`,
        description:
          "They apply to all that is not yet billed elsewhere: sums are always made with the prices of now.",
        scope: "operator",
        body: pricesSchema,
        answers: { 200: { description: "The prices", schema: pricesSchema } },
      },
      async (call) => {
        const account = await accountOf(call.caller, (name) => call.param(name));
        await priceStore.set(operatorOf(call.caller), account, call.body);
        return { status: 200, body: call.body };
      },
    );
    api.add(
      {
        method: "delete",
        path,
        tag: "usage",
        summary: `Take off the prices of ${of}`,
        description: "What is more general holds again.",
        scope: "operator",
        answers: { 204: { description: "Taken off" } },
      },
      async (call) => {
        const account = await accountOf(call.caller, (name) => call.param(name));
        await priceStore.remove(operatorOf(call.caller), account);
        call.outgoing.writeHead(204).end();
        return SENT;
      },
    );
  }

  const shown = async (caller: Caller, records: readonly BudgetRecord[]): Promise<Budget[]> => {
    const prices = await priceStore.own(caller.scope);
    const now = clock.now();
    return await Promise.all(
      records.map(async (record) => {
        const { tenant, amount, period } = record;
        const { from, to } = periodAt(period, now);
        const filter = { from, to, now, ...(tenant === null ? {} : { tenant }) };
        const { cost: spent } = (await usageStore.sums(caller.scope, filter, [], () => prices)).total;
        const state = budgetState(spent, amount);
        return { tenant, amount, period, spent, state, renews_at: new Date(to).toISOString() };
      }),
    );
  };

  api.add(
    {
      method: "get",
      path: "/v1/budgets",
      tag: "usage",
      summary: "List budgets, with what is spent",
      description:
        "The account's own and those of its tenants; for a key that is bound to a tenant, that one's.",
      scope: "sandbox:read",
      answers: {
        200: { description: "Budgets", schema: z.object({ items: z.array(budgetSchema) }) },
      },
    },
    async (call) => ({
      status: 200,
      body: { items: await shown(call.caller, await budgetStore.list(call.caller.scope)) },
    }),
  );

  for (const [path, of] of [
    ["/v1/account/budget", "the account of the key"],
    ["/v1/tenants/{tenant}/budget", "a tenant"],
  ] as const) {
    const tenantOf = ({ scope }: Caller, param: (name: string) => string): string | null => {
      if (scope.tenant !== null)
        throw new CodedError(
          "permission_denied",
          `this API key is bound to tenant ${scope.tenant}, so it sets no budgets; use a key of the whole account`,
        );
      if (path === "/v1/account/budget") return null;
      const tenant = tenantSchema.safeParse(param("tenant"));
      if (tenant.success) return tenant.data;
      throw new CodedError(
        "invalid_request",
        `tenant ${tenant.error.issues[0]?.message ?? "is no tenant name"}`,
      );
    };
    api.add(
      {
        method: "put",
        path,
        tag: "usage",
        summary: `Set the budget of ${of}`,
        description:
          "At 80% of it an event `budget.warning` is written, at 100% `budget.exhausted`: from then on nothing is made or woken, and what is awake is hibernated, never destroyed for it, until the period is over or the budget raised. A sandbox's own clocks run on: one that is kept asleep for less than that ends by its retention.",
        scope: "admin",
        body: setBudgetSchema,
        answers: { 200: { description: "The budget", schema: budgetSchema } },
      },
      async (call) => {
        const tenant = tenantOf(call.caller, (name) => call.param(name));
        const record = await budgetStore.set(call.caller.scope, tenant, call.body);
        await budgetWatch.look();
        const [body] = await shown(call.caller, [record]);
        return { status: 200, body };
      },
    );
    api.add(
      {
        method: "delete",
        path,
        tag: "usage",
        summary: `Take off the budget of ${of}`,
        scope: "admin",
        answers: { 204: { description: "There is none any more" } },
      },
      async (call) => {
        await budgetStore.remove(
          call.caller.scope,
          tenantOf(call.caller, (name) => call.param(name)),
        );
        call.outgoing.writeHead(204).end();
        return SENT;
      },
    );
  }
}

function refusedTime(path: string, message: string): CodedError {
  return new CodedError("invalid_request", `${path} ${message}`, {
    details: { issues: [{ path, message }] },
  });
}

const GROUP_COLUMNS: Record<UsageGroup, keyof UsageItem> = {
  account: "account",
  tenant: "tenant",
  template: "template",
  sandbox: "sandbox_id",
  day: "day",
  state: "state",
};

/** A line of names, then one a group (RFC 4180). Names of tenants and templates hold nothing that needs quotes. */
function usageCsv(items: readonly UsageItem[], groupBy: readonly UsageGroup[]): string {
  const names = groupBy.map((group) => GROUP_COLUMNS[group]);
  const flat = items.map(({ seconds, ...item }) => ({
    ...item,
    running_seconds: seconds.running,
    paused_seconds: seconds.paused,
    hibernated_seconds: seconds.hibernated,
  }));
  const columns = [...names, ...SUM_COLUMNS];
  const lines = flat.map((item) =>
    columns.map((name) => String((item as Record<string, unknown>)[name])).join(","),
  );
  return [columns.join(","), ...lines].map((line) => `${line}\r\n`).join("");
}

const SUM_COLUMNS = [
  "running_seconds",
  "paused_seconds",
  "hibernated_seconds",
  "vcpu_seconds",
  "memory_gib_seconds",
  "disk_gib_seconds",
  "image_gib_seconds",
  "cpu_seconds",
  "memory_peak_bytes",
  "network_in_bytes",
  "network_out_bytes",
  "idle_seconds",
  "currency",
  "cost",
  "saved_by_sleeping",
  "wasted_by_idling",
  "uncertain_seconds",
] as const;
