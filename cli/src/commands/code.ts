import { Command } from "commander";
import { clientFor } from "../api/client.ts";
import { wireForm } from "../api/wire-form.ts";
import { type CliContext, invocationOf } from "../context.ts";
import { EXIT, ExitWith } from "../failure.ts";
import { parseTimeLimit } from "../terminal/duration.ts";

/** `torpor code`: code in a notebook kernel, whose variables stay. */
export function registerCode(program: Command, context: CliContext): void {
  program
    .command("code")
    .summary("run code in a sandbox's notebook kernel")
    .description(
      "Runs code in a kernel of the sandbox; its variables stay for the next call, and over a hibernation. Prints its output and the value of its last expression.",
    )
    .argument("<id>", "id of the sandbox")
    .argument("<code>", "the code")
    .option("--language <name>", "default python")
    .option("--context <id>", "run in this kernel")
    .option("--timeout <time>", "interrupted after this long, such as 45 or 5m (default: 5m)", parseTimeLimit)
    .action(
      async (
        id: string,
        code: string,
        flags: { language?: string; context?: string; timeout?: number },
        command: Command,
      ) => {
        const invocation = invocationOf(context, command);
        const sandbox = await clientFor(invocation).sandboxes.get(id);
        const { language, timeout } = flags;
        const execution = await sandbox.runCode(code, {
          language,
          context: flags.context,
          timeoutSeconds: timeout,
        });
        invocation.answer(wireForm(execution), () =>
          `${execution.stdout}${execution.text ?? ""}`.replace(/\n$/, ""),
        );
        if (execution.stderr !== "") invocation.note(execution.stderr.trimEnd());
        if (execution.error === null) return;
        const { name, value, traceback } = execution.error;
        invocation.note(traceback === "" ? `${name}: ${value}` : traceback);
        throw new ExitWith(EXIT.failure);
      },
    );
}
