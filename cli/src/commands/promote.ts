import { Command } from "commander";
import { clientFor } from "../api/client.ts";
import { wireForm } from "../api/wire-form.ts";
import { type CliContext, invocationOf } from "../context.ts";

/** `torpor promote`: from ephemeral to persistent, or back. */
export function registerPromote(program: Command, context: CliContext): void {
  program
    .command("promote")
    .summary("make a sandbox persistent, or ephemeral again")
    .description(
      "Gives a sandbox the clocks of the other shape: persistent, no TTL and asleep when idle; ephemeral, a TTL of 300 s from now. The reason is kept with the key that asked.",
    )
    .argument("<id>", "id of the sandbox")
    .requiredOption("--reason <text>", "why, for those who audit")
    .option("--tenant <tenant>", "refuse unless it belongs to this tenant")
    .option("--ephemeral", "back to ephemeral")
    .action(
      async (
        id: string,
        flags: { reason: string; tenant?: string; ephemeral?: boolean },
        command: Command,
      ) => {
        const invocation = invocationOf(context, command);
        const sandbox = await clientFor(invocation).sandboxes.get(id);
        const { reason, tenant, ephemeral = false } = flags;
        const info = await sandbox.promote({ persistent: !ephemeral, reason, tenant });
        invocation.answer(wireForm(info), () => `${id} ${ephemeral ? "ephemeral" : "persistent"}`);
      },
    );
}
