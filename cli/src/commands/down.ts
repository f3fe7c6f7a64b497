import { existsSync } from "node:fs";
import type { Command } from "commander";
import { type CliContext, invocationOf } from "../context.ts";
import { instanceCommand } from "../instance/instance-command.ts";
import { requireRoot } from "./up.ts";

/** `torpor down`: ends the instance and, unless told otherwise, its sandboxes. */
export function registerDown(program: Command, context: CliContext): void {
  program
    .command("down")
    .summary("stop Torpor on this machine")
    .description(
      "Ends every sandbox, then the server and the host; persistent ones that sleep when idle are hibernated and come back with the " +
        "next 'up'. Leaves no process, mount or network behind. Idempotent. Needs root.",
    )
    .option("--keep-sandboxes", "leave the sandboxes running: the next 'up' takes them over (for upgrades)")
    .action(async (options: { keepSandboxes?: boolean }, command: Command) => {
      const invocation = invocationOf(context, command);
      requireRoot(invocation, options.keepSandboxes === true ? "down --keep-sandboxes" : "down");
      const { shutDown } = await import("../instance/shut-down.ts");
      const result = await shutDown({
        paths: invocation.paths,
        installation: context.installation,
        env: context.env,
        drain: options.keepSandboxes !== true,
        onNote: (message) => invocation.note(message),
      });
      invocation.answer(result, () =>
        [
          result.was_running ? "Torpor is stopped." : "Torpor was not running.",
          ...(existsSync(invocation.paths.undrained)
            ? [
                `Sandboxes that were left run on: '${instanceCommand(invocation.paths, "sudo torpor up --detach")}' takes them over, '${instanceCommand(invocation.paths, "sudo torpor down")}' ends them.`,
              ]
            : []),
        ].join("\n"),
      );
    });
}
