import { Command } from "commander";
import { clientFor } from "../api/client.ts";
import { type CliContext, invocationOf } from "../context.ts";
import { EXIT, ExitWith, failureMessage, UsageError } from "../failure.ts";

interface Removal {
  id: string;
  destroyed: boolean;
  error?: string;
}

/** `torpor rm`: destroys sandboxes. */
export function registerRm(program: Command, context: CliContext): void {
  program
    .command("rm")
    .alias("destroy")
    .summary("destroy sandboxes")
    .description(
      "Destroys sandboxes and everything in them. One that has ended already is fine; an unknown id is an error.",
    )
    .argument("[ids...]", "ids of the sandboxes")
    .option("-a, --all", "every sandbox this key can see")
    .action(async (ids: string[], flags: { all?: boolean }, command: Command) => {
      const invocation = invocationOf(context, command);
      if ((flags.all === true) === ids.length > 0)
        throw new UsageError("name the sandboxes to destroy, or give --all (and not both)");
      const client = clientFor(invocation);
      const targets = [...ids];
      if (flags.all === true) {
        for await (const { id } of client.sandboxes.list({ pageSize: 200 })) targets.push(id);
      }
      const removals: Removal[] = [];
      const queue = [...new Set(targets)];
      const workers = Array.from({ length: Math.min(8, queue.length) }, async () => {
        for (let id = queue.shift(); id !== undefined; id = queue.shift())
          removals.push(await remove(client, id));
      });
      await Promise.all(workers);
      invocation.answer({ items: removals }, () =>
        removals
          .filter((removal) => removal.error === undefined)
          .map((removal) => (removal.destroyed ? removal.id : `${removal.id} (had ended already)`))
          .join("\n"),
      );
      const failures = removals.filter((removal) => removal.error !== undefined);
      for (const failure of failures)
        invocation.note(`${invocation.errorStyle.red("error:")} ${failure.error}`);
      if (failures.length > 0) throw new ExitWith(EXIT.failure);
    });
}

async function remove(client: ReturnType<typeof clientFor>, id: string): Promise<Removal> {
  try {
    return { id, destroyed: await (await client.sandboxes.get(id)).destroy() };
  } catch (error) {
    return { id, destroyed: false, error: failureMessage(error) };
  }
}
