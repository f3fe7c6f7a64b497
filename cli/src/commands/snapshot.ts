import { Command } from "commander";
import type { Snapshot } from "@torpor/sdk";
import { clientFor } from "../api/client.ts";
import { wireForm } from "../api/wire-form.ts";
import { type CliContext, invocationOf } from "../context.ts";
import { formatBytes } from "../output/quantities.ts";
import { renderTable } from "../output/table.ts";
import { parseDuration } from "../terminal/duration.ts";

/** `torpor snapshot create|ls|rm`. */
export function registerSnapshot(program: Command, context: CliContext): void {
  const snapshot = program
    .command("snapshot")
    .alias("snapshots")
    .summary("take, list and delete snapshots")
    .description(
      "Memory and files of a sandbox at one instant. Start from one with 'create --from-snapshot'.",
    );
  snapshot
    .command("create")
    .summary("take a snapshot")
    .description("Takes a snapshot of a sandbox, which goes on, and prints its id.")
    .argument("<id>", "id of the sandbox")
    .option("--name <name>", "a name for people")
    .option("--retention <time>", "deleted after this long, such as 30d (default: kept)", parseDuration)
    .action(async (id: string, flags: { name?: string; retention?: number }, command: Command) => {
      const invocation = invocationOf(context, command);
      const sandbox = await clientFor(invocation).sandboxes.get(id);
      const taken = await sandbox.snapshot({ name: flags.name, retentionSeconds: flags.retention });
      invocation.answer(wireForm(taken), () => taken.id);
    });
  snapshot
    .command("ls")
    .alias("list")
    .summary("list snapshots")
    .option("--sandbox <id>", "of this sandbox only")
    .option("--name <name>", "of this name only")
    .option("--tenant <tenant>", "of this tenant only")
    .action(async (flags: { sandbox?: string; name?: string; tenant?: string }, command: Command) => {
      const invocation = invocationOf(context, command);
      const { sandbox: sandboxId, name, tenant } = flags;
      const items = await clientFor(invocation)
        .snapshots.list({ sandboxId, name, tenant, pageSize: 200 })
        .toArray();
      invocation.answer(wireForm({ items }), () =>
        items.length === 0 ? "No snapshots." : renderSnapshots(items),
      );
    });
  snapshot
    .command("rm")
    .alias("delete")
    .summary("delete snapshots")
    .description("Deletes snapshots. Sandboxes made from them live on; one that is gone already is fine.")
    .argument("<ids...>", "ids of the snapshots (torpor snapshot ls)")
    .action(async (ids: string[], _flags: unknown, command: Command) => {
      const invocation = invocationOf(context, command);
      const { snapshots } = clientFor(invocation);
      const items: { id: string; deleted: boolean }[] = [];
      for (const id of new Set(ids)) items.push({ id, deleted: await snapshots.delete(id) });
      invocation.answer({ items }, () =>
        items.map(({ id, deleted }) => (deleted ? id : `${id} (was not there)`)).join("\n"),
      );
    });
}

function renderSnapshots(snapshots: readonly Snapshot[]): string {
  return renderTable(
    ["ID", "NAME", "SANDBOX", "TEMPLATE", "TENANT", "SIZE", "CREATED"],
    snapshots.map((one) => [
      one.id,
      one.name ?? "-",
      one.sandboxId,
      one.template,
      one.tenant,
      formatBytes(one.sizeBytes),
      one.createdAt.toISOString().slice(0, 16).replace("T", " "),
    ]),
  );
}
