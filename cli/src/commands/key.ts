import { Command } from "commander";
import type { ApiKey } from "@torpor/sdk";
import { CodedError, SCOPES, type Scope } from "@torpor/protocol";
import { clientFor } from "../api/client.ts";
import { wireForm } from "../api/wire-form.ts";
import { type CliContext, type Invocation, invocationOf } from "../context.ts";
import { UsageError } from "../failure.ts";
import { renderTable } from "../output/table.ts";
import { parseDuration } from "../terminal/duration.ts";

/** `torpor key create|ls|show|revoke`. */
export function registerKey(program: Command, context: CliContext): void {
  const key = program
    .command("key")
    .summary("make, list, show and revoke API keys")
    .description("Manages API keys. Needs a key with the scope 'admin'.");
  key
    .command("create")
    .summary("make a key")
    .description("Makes a key and prints it: the only time it is shown. It can do no more than yours.")
    .argument("[name]", "a name for people, such as who or what uses it (default: the tenant's)")
    .option("--account <account>", "make it in this account (operator only; default: your own)")
    .option("--tenant <tenant>", "bind the key to one tenant")
    .option(
      "--scope <scope>",
      `what it may do: ${SCOPES.join(", ")}; may be repeated (default: the sandbox scopes)`,
      collectScope,
    )
    .option(
      "--expires <time>",
      "ends by itself after this long, such as 30d, 12h or 600 (default: never)",
      parseDuration,
    )
    .action(
      async (
        name: string | undefined,
        flags: { account?: string; tenant?: string; scope?: Scope[]; expires?: number },
        command: Command,
      ) => {
        const invocation = invocationOf(context, command);
        if (flags.tenant !== undefined && flags.account === undefined)
          await warnOfAccount(invocation, flags.tenant);
        const made = await clientFor(invocation).keys.create({
          name: name ?? flags.tenant ?? "unnamed",
          account: flags.account,
          tenant: flags.tenant,
          scopes: flags.scope,
          expiresInSeconds: flags.expires,
        });
        invocation.answer(wireForm(made), () => made.key);
        invocation.note(
          invocation.errorStyle.dim(
            `id ${made.id}, account ${made.account}, tenant ${made.tenant ?? "any of it"}, scopes ${made.scopes.join(" ")}, ${made.expiresAt === null ? "does not expire" : `expires ${made.expiresAt.toISOString()}`}; this is the only time the key is shown`,
          ),
        );
      },
    );
  key
    .command("ls")
    .alias("list")
    .summary("list keys")
    .option("--account <account>", "those of this account (operator only; default: your own)")
    .action(async (flags: { account?: string }, command: Command) => {
      const invocation = invocationOf(context, command);
      const keys = await clientFor(invocation).keys.list({ account: flags.account });
      invocation.answer(wireForm({ items: keys }), () => renderKeys(keys, flags.account !== undefined));
    });
  key
    .command("show")
    .alias("get")
    .summary("show what is known of a key")
    .argument("<id>", "id of the key (torpor key ls)")
    .action(async (id: string, _flags: unknown, command: Command) => {
      const invocation = invocationOf(context, command);
      const shown = await clientFor(invocation).keys.get(id);
      invocation.answer(wireForm(shown), () => renderKeys([shown], true));
    });
  key
    .command("revoke")
    .alias("rm")
    .summary("end keys at once (the operator: any account's)")
    .argument("<ids...>", "ids of the keys (torpor key ls)")
    .action(async (ids: string[], _flags: unknown, command: Command) => {
      const invocation = invocationOf(context, command);
      const { keys } = clientFor(invocation);
      for (const id of ids) {
        if (!(await keys.revoke(id)))
          throw new CodedError("not_found", `there is no key ${id}: torpor key ls shows the ids`);
      }
      invocation.answer({ items: ids.map((id) => ({ id, revoked: true })) }, () => ids.join("\n"));
    });
}

/** Whoever means the account of that name gets a key of their own account instead, and of its limits. */
async function warnOfAccount(invocation: Invocation, tenant: string): Promise<void> {
  const { accounts } = clientFor(invocation);
  const bounds = { timeoutMs: 5_000 };
  // Whoever may not see another account cannot have meant one; what else is wrong, making the key will say.
  const named = await accounts.get(tenant, bounds).catch(() => undefined);
  if (named === undefined) return;
  const own = await accounts.own(bounds).catch(() => undefined);
  if (own === undefined || own.id === named.id) return;
  invocation.note(
    invocation.errorStyle.yellow(
      `warning: ${tenant} is an account, and this makes a key of account ${own.id} for a tenant of that name, under the limits of ${own.id}; for a key of that account say --account ${tenant}`,
    ),
  );
}

function collectScope(text: string, gathered: Scope[] = []): Scope[] {
  const scope = SCOPES.find((name) => name === text);
  if (scope === undefined)
    throw new UsageError(`--scope must be one of ${SCOPES.join(", ")}; it is '${text}'`);
  return [...gathered, scope];
}

function renderKeys(keys: readonly ApiKey[], withAccount: boolean): string {
  const day = (date: Date | null): string => date?.toISOString().slice(0, 16).replace("T", " ") ?? "-";
  const state = (key: ApiKey): string =>
    key.revokedAt !== null
      ? "revoked"
      : key.expiresAt !== null && key.expiresAt.getTime() < Date.now()
        ? "expired"
        : "valid";
  return renderTable(
    [
      "ID",
      "NAME",
      "KEY",
      ...(withAccount ? ["ACCOUNT"] : []),
      "TENANT",
      "SCOPES",
      "STATE",
      "CREATED",
      "EXPIRES",
      "LAST USED",
    ],
    keys.map((key) => [
      key.id,
      key.name,
      `${key.prefix}...`,
      ...(withAccount ? [key.account] : []),
      key.tenant ?? "-",
      key.scopes.join(","),
      state(key),
      day(key.createdAt),
      day(key.expiresAt),
      day(key.lastUsedAt),
    ]),
  );
}
