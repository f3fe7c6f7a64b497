import { Command, InvalidArgumentError } from "commander";
import type { Account, AccountLimits } from "@torpor/sdk";
import { clientFor } from "../api/client.ts";
import { wireForm } from "../api/wire-form.ts";
import { type CliContext, invocationOf } from "../context.ts";
import { UsageError } from "../failure.ts";
import { renderTable } from "../output/table.ts";
import { parseNumber } from "./create.ts";

interface LimitFlags {
  maxLifetime?: number | "none";
}

/** `torpor account create|ls|show|set-limits`. */
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
      const made = await clientFor(invocation).accounts.create({ id, limits: limitsOf(flags) });
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
  addLimitOptions(account.command("set-limits"))
    .summary("change what an account may have")
    .description(
      "Changes the limits that are given and leaves the others; they count from the next create on.",
    )
    .argument("<id>", "the account")
    .action(async (id: string, flags: LimitFlags, command: Command) => {
      const invocation = invocationOf(context, command);
      const limits = limitsOf(flags);
      if (Object.keys(limits).length === 0)
        throw new UsageError("name at least one limit to set; --help lists them");
      const changed = await clientFor(invocation).accounts.setLimits(id, limits);
      invocation.answer(wireForm(changed), () => renderAccount(changed));
    });
}

function addLimitOptions(command: Command): Command {
  return command.option(
    "--max-lifetime <seconds>",
    "no sandbox lives for longer, whatever its clocks say; 'none' for no limit",
    parseLimit,
  );
}

function limitsOf(flags: LimitFlags): Partial<AccountLimits> {
  const { maxLifetime } = flags;
  return maxLifetime === undefined ? {} : { maxLifetimeSeconds: maxLifetime === "none" ? null : maxLifetime };
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
  return renderTable(
    ["", "NOW", "LIMIT"],
    [
      ["account", account.id, ""],
      ["sandboxes", String(account.usage.sandboxes), ""],
      ["  awake", String(account.usage.sandboxesAwake), ""],
      ["lifetime (s)", "", limit(account.limits.maxLifetimeSeconds)],
    ],
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
