import { Command } from "commander";
import { LIMITS } from "@torpor/protocol";
import { clientFor } from "../api/client.ts";
import { type CliContext, invocationOf } from "../context.ts";
import { ExitWith, UsageError } from "../failure.ts";
import { instanceCommand } from "../instance/instance-command.ts";
import { parseTimeLimit } from "../terminal/duration.ts";
import { Interruption } from "../terminal/interruption.ts";
import { shellLine } from "../terminal/shell-line.ts";
import { withShellHint } from "../terminal/start-hint.ts";
import { streamCommand } from "../terminal/stream-command.ts";
import { collectPair } from "./create.ts";

interface ExecFlags {
  interactive?: boolean;
  tty?: boolean;
  cwd?: string;
  user?: string;
  env?: Record<string, string>;
  timeout?: number;
  shell?: boolean;
}

/** `torpor exec`: a command in a sandbox that runs. */
export function registerExec(program: Command, context: CliContext): void {
  program
    .command("exec")
    .summary("run a command in a sandbox")
    .description(
      "Runs a command and passes its output on as it comes; ^C kills it. With -it it gets a terminal (default: a login shell). " +
        "Ends with the command's exit code.",
    )
    .argument("<id>", "id of the sandbox")
    .argument(
      "[command...]",
      "the command and its arguments, run as they are; with --shell one line for bash",
    )
    .option("-i, --interactive", "give it this standard input, as it comes and whatever its length")
    .option("-t, --tty", "give it a terminal")
    .option("-w, --cwd <dir>", "working directory")
    .option("-u, --user <name>", "run as this user (default 'user')")
    .option("-e, --env <NAME=value>", "environment variable; may be repeated", collectPair)
    .option(
      "--timeout <time>",
      "time limit, such as 45 or 5m (default a day; ^C ends it sooner)",
      parseTimeLimit,
    )
    .option("--shell", "run the words as one line of bash")
    .passThroughOptions()
    .action(async (id: string, given: string[], flags: ExecFlags, command: Command) => {
      const words = given[0] === "--" ? given.slice(1) : given; // passed through with the rest; it has done its work
      const invocation = invocationOf(context, command);
      const { cwd, user, env } = flags;
      const client = clientFor(invocation);
      if (flags.tty === true) {
        if (invocation.json) throw new UsageError("--json and a terminal (-t) exclude each other");
        const { runTerminal } = await import("../terminal/terminal-session.ts"); // its WebSocket client is rarely needed
        const sandbox = await client.sandboxes.get(id);
        const exitCode = await runTerminal(context, sandbox, {
          cmd: words.length === 0 ? undefined : flags.shell === true ? words.join(" ") : shellLine(words),
          cwd,
          user,
          env,
        });
        throw new ExitWith(exitCode);
      }
      if (given[0]?.startsWith("-") === true && given[0] !== "--")
        throw new UsageError(
          `options go before the id: torpor exec ${given[0]} ... ${id} -- COMMAND (for a command of that name: torpor exec ${id} -- ${given.join(" ")})`,
        );
      if (words.length === 0)
        throw new UsageError(
          `no command given: torpor exec ${id} -- ls -la, or torpor exec -it ${id} for a terminal`,
        );
      using interruption = new Interruption();
      const { signal } = interruption;
      const sandbox = await client.sandboxes.get(id, { signal });
      const exitCode = await streamCommand(invocation, sandbox, {
        cmd: flags.shell === true ? words.join(" ") : words,
        cwd,
        env,
        user,
        stdin: flags.interactive === true ? context.stdin : undefined,
        timeoutSeconds: flags.timeout ?? LIMITS.maxExecTimeoutSeconds,
        signal,
      }).catch((error: unknown) => {
        throw flags.shell === true
          ? error
          : withShellHint(
              error,
              words,
              `${instanceCommand(invocation.paths, "torpor")} exec --shell ${id} --`,
            );
      });
      throw new ExitWith(exitCode);
    });
}
