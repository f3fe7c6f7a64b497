import { CommandError } from "./errors.ts";
import { describeOutcome, type ExecResult } from "./exec-result.ts";

/** How much of the command and of its error output the message quotes. */
const QUOTED_COMMAND_CHARACTERS = 200;
const QUOTED_STDERR_LINES = 5;
const QUOTED_STDERR_CHARACTERS = 1000;

/** @throws CommandError unless the command exited with 0. */
export function checkCommand(cmd: string | readonly string[], result: ExecResult<string | Uint8Array>): void {
  if (result.outcome === "exited" && result.exitCode === 0) return;
  const command = typeof cmd === "string" ? cmd : cmd.join(" ");
  const quoted =
    command.length > QUOTED_COMMAND_CHARACTERS
      ? `${command.slice(0, QUOTED_COMMAND_CHARACTERS)}...`
      : command;
  const stderr = typeof result.stderr === "string" ? result.stderr : new TextDecoder().decode(result.stderr);
  const tail = stderr
    .trim()
    .split("\n")
    .slice(-QUOTED_STDERR_LINES)
    .join("\n")
    .slice(-QUOTED_STDERR_CHARACTERS);
  throw new CommandError(
    `\`${quoted}\` ${describeOutcome(result)}${tail === "" ? "" : `:\n${tail}`}`,
    result,
  );
}
