import { Command } from "commander";
import { clientFor } from "../api/client.ts";
import { wireForm } from "../api/wire-form.ts";
import { type CliContext, invocationOf } from "../context.ts";
import { addAutoOptions, addCreateOptions, type CreateFlags, createOptions } from "./create.ts";

/** `torpor session`: a tenant's sandbox by its own key, found or made. */
export function registerSession(program: Command, context: CliContext): void {
  addAutoOptions(addCreateOptions(program.command("session")))
    .summary("get a tenant's sandbox by a key of your own, or make it")
    .description(
      "Prints the id of the sandbox that this tenant has under this key, awake; makes it when there is none that lives. It is persistent unless --no-persistent says otherwise.",
    )
    .argument("<key>", "your own name for it, such as a chat's id")
    .option("--no-persistent", "make an ephemeral one")
    .action(async (key: string, flags: CreateFlags, command: Command) => {
      const invocation = invocationOf(context, command);
      const sandbox = await clientFor(invocation).sandboxes.session({ ...createOptions(flags), key });
      const ignored = [...(flags.env ? ["--env"] : []), ...(flags.secret ? ["--secret"] : [])];
      if (sandbox.isNew === false && ignored.length > 0) {
        invocation.note(
          `note: sandbox ${sandbox.id} was there already and keeps its own environment; ${ignored.join(" and ")} not applied`,
        );
      }
      invocation.answer(wireForm(sandbox.info), () => sandbox.id);
    });
}
