import { Command, InvalidArgumentError } from "commander";
import type { Account, AccountLimits, QuotaLimits, TenantUsage } from "@torpor/sdk";
import { clientFor } from "../api/client.ts";
import { wireForm } from "../api/wire-form.ts";
import { type CliContext, invocationOf } from "../context.ts";
import { UsageError } from "../failure.ts";
import { renderTable } from "../output/table.ts";
import { parseDuration } from "../terminal/duration.ts";
import { parseNumber } from "./create.ts";

type LimitFlags = Record<string, number | "none">;

/** Limits by the names of the command line's options, without their dashes. */
const QUOTAS: readonly [option: string, of: keyof QuotaLimits, what: string][] = [
  ["max-sandboxes", "sandboxes", "sandboxes, awake or asleep"],
  ["max-awake", "sandboxesAwake", "sandboxes awake"],
  ["max-cpu", "cpu", "cores of sandboxes awake, together"],
  ["max-memory", "memoryMb", "memory of sandboxes awake, together, MB"],
  ["max-disk", "diskMb", "disk of all sandboxes, together, MB"],
  ["max-images", "imageBytes", "snapshots and hibernation images, bytes"],
  ["max-creates", "createsPerMinute", "sandboxes made in a minute"],
];

/** `torpor account create|ls|show|tenant|set-limits`. */
export function registerAccount(program: Command, context: CliContext): void {
  const account = program
    .command("account")
    .alias("accounts")
    .summary("make, list and limit accounts")
    .description(
      "Accounts hold API keys and sandboxes. Managing them needs a key with the scope 'operator', as the server's first key is; an account's own admin may look at it.",
    );
  addLimitOptions(account.command("create"))
    .summary("make an account")
    .description(
      "Makes an account, which has no keys yet: 'torpor key create NAME --account ID --scope admin' makes its first.",
    )
    .argument("<id>", "its name: letters, digits and . _ : @ -")
    .action(async (id: string, flags: LimitFlags, command: Command) => {
      const invocation = invocationOf(context, command);
      const made = await clientFor(invocation).accounts.create({
        id,
        limits: limitsOf(flags),
        tenantLimits: quotasOf(flags, "tenant-"),
      });
      invocation.answer(wireForm(made), () => made.id);
    });
  account
    .command("ls")
    .alias("list")
    .summary("list accounts")
    .action(async (_flags: unknown, command: Command) => {
      const invocation = invocationOf(context, command);
      const items = await clientFor(invocation).accounts.list({ pageSize: 200 }).toArray();
      invocation.answer(wireForm({ items }), () => renderAccounts(items));
    });
  account
    .command("show")
    .summary("show an account, its limits and what it has")
    .argument("[id]", "default: your own")
    .action(async (id: string | undefined, _flags: unknown, command: Command) => {
      const invocation = invocationOf(context, command);
      const { accounts } = clientFor(invocation);
      const shown = id === undefined ? await accounts.own() : await accounts.get(id);
      invocation.answer(wireForm(shown), () => renderAccount(shown));
    });
  account
    .command("tenant")
    .summary("show what a tenant of your account has, and may have")
    .argument("<tenant>", "the tenant")
    .action(async (tenant: string, _flags: unknown, command: Command) => {
      const invocation = invocationOf(context, command);
      const shown = await clientFor(invocation).accounts.tenant(tenant);
      invocation.answer(wireForm(shown), () => renderTenant(shown));
    });
  addLimitOptions(account.command("set-limits"))
    .summary("change what an account may have")
    .description(
      "Changes the limits that are given and leaves the others; they count from the next create on.",
    )
    .argument("<id>", "the account")
    .action(async (id: string, flags: LimitFlags, command: Command) => {
      const invocation = invocationOf(context, command);
      const limits = limitsOf(flags);
      const tenantLimits = quotasOf(flags, "tenant-");
      if (Object.keys({ ...limits, ...tenantLimits }).length === 0)
        throw new UsageError("name at least one limit to set; --help lists them");
      const changed = await clientFor(invocation).accounts.setLimits(id, limits, { tenantLimits });
      invocation.answer(wireForm(changed), () => renderAccount(changed));
    });
}

function addLimitOptions(command: Command): Command {
  command.option(
    "--max-lifetime <time>",
    "no sandbox lives for longer, such as 24h or 86400, whatever its clocks say; 'none' for no limit, as for all of these",
    parseLifetime,
  );
  for (const [option, , what] of QUOTAS)
    command.option(`--${option} <n>`, `at most so many: ${what}`, parseLimit);
  for (const [option, , what] of QUOTAS)
    command.option(`--tenant-${option} <n>`, `the same for each tenant: ${what}`, parseLimit);
  return command;
}

/** `max-awake` as commander names it. */
const flagName = (option: string): string =>
  option.replace(/-([a-z])/g, (_dashed, letter: string) => letter.toUpperCase());
const valueOf = (given: number | "none"): number | null => (given === "none" ? null : given);

function limitsOf(flags: LimitFlags): Partial<AccountLimits> {
  const lifetime = flags["maxLifetime"];
  return {
    ...quotasOf(flags, ""),
    ...(lifetime === undefined ? {} : { maxLifetimeSeconds: valueOf(lifetime) }),
  };
}

function quotasOf(flags: LimitFlags, prefix: "" | "tenant-"): Partial<QuotaLimits> {
  const limits: Partial<QuotaLimits> = {};
  for (const [option, of] of QUOTAS) {
    const given = flags[flagName(prefix + option)];
    if (given !== undefined) limits[of] = valueOf(given);
  }
  return limits;
}

function parseLifetime(text: string): number | "none" {
  return text === "none" ? "none" : parseDuration(text);
}

function parseLimit(text: string): number | "none" {
  if (text === "none") return "none"; // commander takes null for the absence of a value
  try {
    return parseNumber(text);
  } catch {
    throw new InvalidArgumentError("It must be a number, or 'none'.");
  }
}

const limit = (value: number | null): string => (value === null ? "none" : String(value));

function renderAccount(account: Account): string {
  const { usage, limits, tenantLimits } = account;
  return renderTable(
    [`ACCOUNT ${account.id}`, "NOW", "LIMIT", "PER TENANT"],
    [
      ...QUOTAS.map(([, of, what]) => [what, String(usage[of]), limit(limits[of]), limit(tenantLimits[of])]),
      ["seconds a sandbox may live", "", limit(limits.maxLifetimeSeconds), ""],
    ],
  );
}

function renderTenant({ tenant, usage, limits }: TenantUsage): string {
  return renderTable(
    [`TENANT ${tenant}`, "NOW", "LIMIT"],
    QUOTAS.map(([, of, what]) => [what, String(usage[of]), limit(limits[of])]),
  );
}

function renderAccounts(accounts: readonly Account[]): string {
  return renderTable(
    ["ID", "SANDBOXES", "AWAKE", "MAX LIFETIME", "CREATED"],
    accounts.map((account) => [
      account.id,
      String(account.usage.sandboxes),
      String(account.usage.sandboxesAwake),
      limit(account.limits.maxLifetimeSeconds),
      account.createdAt.toISOString().slice(0, 16).replace("T", " "),
    ]),
  );
}
