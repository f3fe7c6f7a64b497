import { type Command, InvalidArgumentError, Option } from "commander";
import type { Budget, Prices, UsageGroup, UsageItem, UsageReport, UsageSums } from "@torpor/sdk";
import { USAGE_GROUPS } from "@torpor/protocol";
import { clientFor } from "../api/client.ts";
import { wireForm } from "../api/wire-form.ts";
import { type CliContext, invocationOf } from "../context.ts";
import { UsageError } from "../failure.ts";
import { renderTable } from "../output/table.ts";
import { parseTime } from "../terminal/time.ts";

interface UsageFlags {
  from?: Date;
  to?: Date;
  by: UsageGroup[];
  tenant?: string;
  template?: string;
  sandbox?: string;
}

/** `torpor usage`, `torpor budget ls|set|rm` and `torpor price show|set`. */
export function registerUsage(program: Command, context: CliContext): void {
  program
    .command("usage")
    .summary("what was used, and what it costs")
    .description(
      "Adds up what sandboxes held and used, with what that costs, what sleeping has saved and what idling awake has wasted. Default: this month, by tenant.",
    )
    .option(
      "--from <time>",
      "such as 2026-01-31 or 2026-01-31T12:00:00Z; default: the first of this month, UTC",
      parseTime,
    )
    .option("--to <time>", "default: now", parseTime)
    .addOption(
      new Option("--by <groups>", `what to add up by, with commas between: ${USAGE_GROUPS.join(", ")}`)
        .argParser(parseGroups)
        .default(["tenant"], "tenant"),
    )
    .option("--tenant <tenant>", "of this tenant alone")
    .option("--template <name>", "of sandboxes of this template alone")
    .option("--sandbox <id>", "of this sandbox alone")
    .action(async (flags: UsageFlags, command: Command) => {
      const invocation = invocationOf(context, command);
      const { from, to, by: groupBy, tenant, template, sandbox: sandboxId } = flags;
      const report = await clientFor(invocation).usage.get({
        from,
        to,
        groupBy,
        tenant,
        template,
        sandboxId,
      });
      invocation.answer(wireForm(report), () => renderUsage(report, groupBy));
    });
  const budget = program
    .command("budget")
    .alias("budgets")
    .summary("what tenants and the account may spend")
    .description(
      "At 80% of a budget an event tells so; at 100% nothing is made or woken any more, and what is awake is hibernated, never destroyed, until the period is over or the budget raised.",
    );
  budget
    .command("ls")
    .alias("list")
    .summary("list budgets, with what is spent")
    .action(async (_flags: unknown, command: Command) => {
      const invocation = invocationOf(context, command);
      const items = await clientFor(invocation).usage.budgets();
      invocation.answer(wireForm({ items }), () =>
        items.length === 0 ? "No budgets." : renderBudgets(items),
      );
    });
  budget
    .command("set")
    .summary("set a budget")
    .argument("<amount>", "in the currency of the prices", parseAmount)
    .option("--tenant <tenant>", "of this tenant; default: of the whole account")
    .addOption(
      new Option("--period <period>", "begins anew at 00:00 UTC").choices(["day", "month"]).default("month"),
    )
    .action(async (amount: number, flags: { tenant?: string; period: "day" | "month" }, command: Command) => {
      const invocation = invocationOf(context, command);
      const set = await clientFor(invocation).usage.setBudget(amount, flags);
      invocation.answer(wireForm(set), () => renderBudgets([set]));
    });
  budget
    .command("rm")
    .alias("remove")
    .summary("take a budget off")
    .option("--tenant <tenant>", "of this tenant; default: of the whole account")
    .action(async ({ tenant }: { tenant?: string }, command: Command) => {
      const invocation = invocationOf(context, command);
      await clientFor(invocation).usage.removeBudget({ tenant });
      invocation.answer({ removed: true }, () => "Taken off.");
    });
  registerPrice(program, context);
}

/** Prices by the options of the command line, without their dashes. */
const PRICES: readonly [option: string, of: Exclude<keyof Prices, "currency">, what: string][] = [
  ["vcpu-hour", "vcpuHour", "a core held for an hour"],
  ["memory-gib-hour", "memoryGibHour", "a GiB of memory held for an hour"],
  ["disk-gib-month", "diskGibMonth", "a GiB of disk of an awake sandbox for 30 days"],
  ["image-gib-month", "imageGibMonth", "a GiB of a sleeping sandbox or a snapshot for 30 days"],
];

function registerPrice(program: Command, context: CliContext): void {
  const price = program
    .command("price")
    .alias("prices")
    .summary("what is paid for what is held")
    .description(
      "Prices are the operator's to set, for all accounts or for one; all sums follow them at once.",
    );
  price
    .command("show")
    .summary("show what your account pays")
    .option("--account <id>", "what this account pays, for the operator")
    .action(async ({ account }: { account?: string }, command: Command) => {
      const invocation = invocationOf(context, command);
      const prices = await clientFor(invocation).usage.prices({ account });
      invocation.answer(wireForm(prices), () => renderPrices(prices));
    });
  price
    .command("rm")
    .alias("remove")
    .summary("take prices off: what is more general holds again")
    .option("--account <id>", "of this account; default: of all that have none of their own")
    .action(async ({ account }: { account?: string }, command: Command) => {
      const invocation = invocationOf(context, command);
      await clientFor(invocation).usage.removePrices({ account });
      invocation.answer({ removed: true }, () => "Taken off.");
    });
  const set = price
    .command("set")
    .summary("change prices")
    .description(
      "Changes the prices that are given and leaves the others as that account has them; without --account as your own has them.",
    )
    .option("--account <id>", "of this account alone")
    .option("--currency <code>", "three letters, such as EUR");
  for (const [option, , what] of PRICES) set.option(`--${option} <amount>`, what, parseAmount);
  set.action(async (flags: Record<string, string | number | undefined>, command: Command) => {
    const invocation = invocationOf(context, command);
    const { usage } = clientFor(invocation);
    const given = PRICES.flatMap(([, of]) => (flags[of] === undefined ? [] : [[of, flags[of]] as const]));
    const { account, currency } = flags as { account?: string; currency?: string };
    if (given.length === 0 && currency === undefined)
      throw new UsageError("name at least one price to set; --help lists them");
    const before = await usage.prices({ account });
    const changed = {
      ...before,
      ...Object.fromEntries(given),
      ...(currency === undefined ? {} : { currency }),
    };
    const prices = await usage.setPrices(changed, { account });
    invocation.answer(wireForm(prices), () => renderPrices(prices));
  });
}

function parseGroups(text: string): UsageGroup[] {
  return text.split(",").map((word) => {
    const group = USAGE_GROUPS.find((known) => known === word);
    if (group === undefined)
      throw new InvalidArgumentError(`knows ${USAGE_GROUPS.join(", ")}; not '${word}'`);
    return group;
  });
}

function parseAmount(text: string): number {
  const amount = Number(text);
  if (text.trim() === "" || !Number.isFinite(amount) || amount < 0)
    throw new InvalidArgumentError("must be a number of at least 0, such as 12.50");
  return amount;
}

const HEADS: Record<UsageGroup, [heading: string, of: Exclude<keyof UsageItem, keyof UsageSums>]> = {
  account: ["ACCOUNT", "account"],
  tenant: ["TENANT", "tenant"],
  template: ["TEMPLATE", "template"],
  sandbox: ["SANDBOX", "sandboxId"],
  day: ["DAY", "day"],
  state: ["STATE", "state"],
};

function renderUsage({ from, to, items, total }: UsageReport, groupBy: readonly UsageGroup[]): string {
  const heads = groupBy.map((group) => HEADS[group]);
  const sums = (item: UsageReport["total"]): string[] => [
    hours(item.seconds.running),
    hours(item.seconds.hibernated),
    hours(item.vcpuSeconds),
    hours(item.memoryGibSeconds),
    hours(item.cpuSeconds),
    money(item.cost),
    item.currency ?? "",
    money(item.savedBySleeping),
    money(item.wastedByIdling),
  ];
  const headings = [
    ...heads.map(([heading]) => heading),
    "AWAKE h",
    "ASLEEP h",
    "vCPU h",
    "GiB h",
    "CPU USED h",
    "COST",
    "",
    "SAVED",
    "WASTED",
  ];
  const rows = items.map((item) => [...heads.map(([, of]) => item[of] ?? ""), ...sums(item)]);
  const last = ["total", ...heads.slice(1).map(() => ""), ...sums(total)];
  const table = renderTable(headings, heads.length === 0 ? [sums(total)] : [...rows, last]);
  const missing =
    total.uncertainSeconds > 0
      ? `\n${Math.round(total.uncertainSeconds)} s are not in here: the end of some sandboxes was noticed late.`
      : "";
  return `${from.toISOString()} to ${to.toISOString()}\n${table}${missing}`;
}

const hours = (seconds: number): string => (seconds / 3_600).toFixed(4);
const money = (amount: number): string => amount.toFixed(4);

function renderBudgets(budgets: readonly Budget[]): string {
  return renderTable(
    ["OF", "AMOUNT", "PERIOD", "SPENT", "STATE", "RENEWS"],
    budgets.map(({ tenant, amount, period, spent, state, renewsAt }) => [
      tenant ?? "(account)",
      String(amount),
      period,
      money(spent),
      state,
      renewsAt.toISOString(),
    ]),
  );
}

function renderPrices(prices: Prices): string {
  return renderTable(
    [prices.currency, "FOR"],
    PRICES.map(([, of, what]) => [String(prices[of]), what]),
  );
}
