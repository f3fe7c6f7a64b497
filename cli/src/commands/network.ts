import { Command } from "commander";
import { clientFor } from "../api/client.ts";
import { wireForm } from "../api/wire-form.ts";
import { type CliContext, invocationOf } from "../context.ts";
import { UsageError } from "../failure.ts";
import { networkWords } from "../output/network-words.ts";
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
      invocation.answer({ network: info.network }, () => networkWords(info.network));
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
        invocation.answer(wireForm(info), () => `${id} ${networkWords(info.network)}`);
      },
    );
}
