import { Command } from "commander";
import { clientFor } from "../api/client.ts";
import { type CliContext, invocationOf } from "../context.ts";
import { UsageError } from "../failure.ts";
import { instanceCommand } from "../instance/instance-command.ts";
import { logTail, readableLine } from "../instance/log-tail.ts";
import { join } from "node:path";
import { parseNumber } from "./create.ts";

const PROGRAMS = ["host", "server", "supervisor"] as const;

/** `torpor logs`: a sandbox's console, or the logs of the instance on this machine. */
export function registerLogs(program: Command, context: CliContext): void {
  program
    .command("logs")
    .summary("show a sandbox's console, or the instance's own logs")
    .description(
      "With an id: the last part of the sandbox's console (what its first process wrote). With host, server or supervisor: the end of that log on this machine.",
    )
    .argument("<id>", `id of a sandbox, or ${PROGRAMS.join(", ")}`)
    .option("-n, --lines <count>", "of the instance's logs: how many lines (default 50)", parseNumber)
    .action(async (id: string, flags: { lines?: number }, command: Command) => {
      const invocation = invocationOf(context, command);
      const program = PROGRAMS.find((name) => name === id);
      if (program === undefined) {
        const text = await (await clientFor(invocation).sandboxes.get(id)).logs();
        invocation.answer({ id, text }, () => text);
        if (text === "") invocation.note(`the console of ${id} is empty: its first process wrote nothing`);
        return;
      }
      const lines = flags.lines ?? 50;
      if (!Number.isInteger(lines) || lines < 1)
        throw new UsageError(`--lines must be a whole number from 1; it is ${lines}`);
      const path = join(invocation.paths.logsDir, `${program}.log`);
      const found = logTail(path, lines, 4 * 1024 * 1024);
      invocation.answer({ id, lines: found }, () => found.map((line) => readableLine(line)).join("\n"));
      if (found.length === 0)
        invocation.note(
          `nothing in ${path}: it is empty or not there, or may not be read; then: ${instanceCommand(invocation.paths, `sudo torpor logs ${program}`)}`,
        );
    });
}
