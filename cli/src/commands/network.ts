import { Command } from "commander";
import { clientFor } from "../api/client.ts";
import { wireForm } from "../api/wire-form.ts";
import { type CliContext, invocationOf } from "../context.ts";
import { UsageError } from "../failure.ts";
import { collectEntry, type CreateFlags, networkOf } from "./create.ts";

/** `torpor network`: what a sandbox may reach. */
export function registerNetwork(program: Command, context: CliContext): void {
  const network = program.command("network").summary("see and change what a sandbox may reach");
  network
    .command("show")
    .summary("print a sandbox's network policy")
    .argument("<id>", "id of the sandbox")
    .action(async (id: string, _flags: object, command: Command) => {
      const invocation = invocationOf(context, command);
      const { info } = await clientFor(invocation).sandboxes.get(id);
      invocation.answer({ network: info.network }, () => shown(info.network));
    });
  network
    .command("set")
    .summary("change a sandbox's network policy while it runs")
    .description(
      "Sets the whole policy anew; it is in force when this returns, and connections that it forbids are cut. Entries are addresses, CIDRs, domains (example.com) and all below one (*.example.com).",
    )
    .argument("<id>", "id of the sandbox")
    .argument("[policy]", "'internet' (default without --allow) or 'none'")
    .option("--allow <entry>", "reach this though all else is refused; may be repeated", collectEntry)
    .option("--deny <entry>", "do not reach this; may be repeated", collectEntry)
    .action(
      async (
        id: string,
        policy: string | undefined,
        flags: Pick<CreateFlags, "allow" | "deny">,
        command: Command,
      ) => {
        const invocation = invocationOf(context, command);
        const wanted = networkOf({ ...flags, ...(policy === undefined ? {} : { network: policy }) });
        if (wanted === undefined)
          throw new UsageError("say 'internet', 'none', --allow or --deny: what it may reach is set anew");
        const sandbox = await clientFor(invocation).sandboxes.get(id);
        const info = await sandbox.setNetwork(wanted);
        invocation.answer(wireForm(info), () => `${id} ${shown(info.network)}`);
      },
    );
}

function shown(network: string | { egress: string; allow: string[]; deny: string[] }): string {
  if (typeof network === "string") return network;
  const { egress, allow, deny } = network;
  const list = (word: string, entries: string[]): string =>
    entries.length === 0 ? "" : `; ${word} ${entries.join(", ")}`;
  return `${egress}${list("allow", allow)}${list("deny", deny)}`;
}
