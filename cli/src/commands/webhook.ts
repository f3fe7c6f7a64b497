import { Command } from "commander";
import type { EventType, Webhook } from "@torpor/sdk";
import { CodedError } from "@torpor/protocol";
import { clientFor } from "../api/client.ts";
import { wireForm } from "../api/wire-form.ts";
import { type CliContext, invocationOf } from "../context.ts";
import { UsageError } from "../failure.ts";
import { renderTable } from "../output/table.ts";
import { EVENT_TYPE_NAMES, eventTypesOf } from "./events.ts";

/** `torpor webhook create|ls|show|update|rm`. */
export function registerWebhook(program: Command, context: CliContext): void {
  const webhook = program
    .command("webhook")
    .alias("webhooks")
    .summary("have events sent to a URL")
    .description(
      "Each event is POSTed as JSON, signed, at least once. Needs a key with the scope 'admin'; one of a tenant has that tenant's webhooks alone.",
    );
  webhook
    .command("create")
    .summary("make a webhook")
    .description(
      "Makes a webhook and prints the secret its requests are signed with: the only time it is shown.",
    )
    .argument("<url>", "public and https, unless the server allows others (TORPOR_WEBHOOK_ALLOW)")
    .option("--type <types>", `only these, separated by commas: ${EVENT_TYPE_NAMES}`)
    .option("--description <text>", "for people")
    .action(async (url: string, flags: { type?: string; description?: string }, command: Command) => {
      const invocation = invocationOf(context, command);
      const made = await clientFor(invocation).webhooks.create({
        url,
        types: eventTypesOf(flags.type),
        description: flags.description,
      });
      invocation.answer(wireForm(made), () => made.secret);
      invocation.note(
        invocation.errorStyle.dim(
          `id ${made.id}, tenant ${made.tenant ?? "all of the account"}, events ${sent(made.types)}; this is the only time the secret is shown`,
        ),
      );
    });
  webhook
    .command("ls")
    .alias("list")
    .summary("list webhooks")
    .action(async (_flags: unknown, command: Command) => {
      const invocation = invocationOf(context, command);
      const items = await clientFor(invocation).webhooks.list();
      invocation.answer(wireForm({ items }), () =>
        items.length === 0 ? "No webhooks." : renderWebhooks(items),
      );
    });
  webhook
    .command("show")
    .summary("show a webhook and how it fares")
    .argument("<id>", "the webhook (torpor webhook ls)")
    .action(async (id: string, _flags: unknown, command: Command) => {
      const invocation = invocationOf(context, command);
      const shown = await clientFor(invocation).webhooks.get(id);
      invocation.answer(wireForm(shown), () => renderWebhook(shown));
    });
  webhook
    .command("update")
    .summary("change a webhook")
    .description("Changes what is given. Enabled again, it gets what happens from then on.")
    .argument("<id>", "the webhook")
    .option("--to <url>", "another address")
    .option("--type <types>", `only these, separated by commas, or 'all': ${EVENT_TYPE_NAMES}`)
    .option("--description <text>", "for people")
    .option("--enable", "send to it again")
    .option("--disable", "send nothing to it; what happens meanwhile is missed")
    .action(async (id: string, flags: UpdateFlags, command: Command) => {
      const invocation = invocationOf(context, command);
      const { to: url, description } = flags;
      const types = flags.type === "all" ? [] : eventTypesOf(flags.type);
      const enabled = enabledOf(flags);
      if ([url, types, description, enabled].every((change) => change === undefined))
        throw new UsageError("name at least one thing to change; --help lists them");
      const changed = await clientFor(invocation).webhooks.update(id, {
        url,
        types,
        description,
        enabled,
      });
      invocation.answer(wireForm(changed), () => renderWebhook(changed));
    });
  webhook
    .command("rm")
    .alias("delete")
    .summary("delete webhooks")
    .description("Deletes webhooks, and drops what was still to be sent to them.")
    .argument("<ids...>", "ids of the webhooks (torpor webhook ls)")
    .action(async (ids: string[], _flags: unknown, command: Command) => {
      const invocation = invocationOf(context, command);
      const { webhooks } = clientFor(invocation);
      for (const id of new Set(ids)) {
        if (!(await webhooks.delete(id)))
          throw new CodedError("not_found", `there is no webhook ${id}: torpor webhook ls shows the ids`);
      }
      invocation.answer({ items: ids.map((id) => ({ id, deleted: true })) }, () => ids.join("\n"));
    });
}

interface UpdateFlags {
  to?: string;
  type?: string;
  description?: string;
  enable?: boolean;
  disable?: boolean;
}

function enabledOf({ enable, disable }: UpdateFlags): boolean | undefined {
  if (enable === true && disable === true) throw new UsageError("--enable and --disable are opposites");
  return enable === true ? true : disable === true ? false : undefined;
}

const minute = (date: Date | null): string =>
  date === null ? "-" : date.toISOString().slice(0, 16).replace("T", " ");
const sent = (types: readonly EventType[]): string =>
  types.length === 0 ? "all" : types.map((type) => type.slice("sandbox.".length)).join(",");

function renderWebhook(webhook: Webhook): string {
  return renderTable(
    ["ID", webhook.id],
    [
      ["url", webhook.url],
      ["events", sent(webhook.types)],
      ["tenant", webhook.tenant ?? "all of the account"],
      ["description", webhook.description === "" ? "-" : webhook.description],
      ["state", webhook.enabled ? "enabled" : `disabled: ${webhook.disabledBecause ?? "by its owner"}`],
      ["pending", String(webhook.pending)],
      ["given up", String(webhook.failed)],
      ["last delivered", minute(webhook.lastDeliveredAt)],
      ["last error", webhook.lastError ?? "-"],
      ["created", minute(webhook.createdAt)],
    ],
  );
}

function renderWebhooks(webhooks: readonly Webhook[]): string {
  return renderTable(
    ["ID", "URL", "EVENTS", "TENANT", "STATE", "PENDING", "GIVEN UP", "LAST DELIVERED"],
    webhooks.map((one) => [
      one.id,
      one.url,
      sent(one.types),
      one.tenant ?? "-",
      one.enabled ? "enabled" : "disabled",
      String(one.pending),
      String(one.failed),
      minute(one.lastDeliveredAt),
    ]),
  );
}
