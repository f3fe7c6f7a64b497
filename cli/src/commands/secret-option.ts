import { readFileSync } from "node:fs";
import type { Command } from "commander";
import { UsageError } from "../failure.ts";

/** Adds `--secret` to a command. */
export function addSecretOption(command: Command): Command {
  return command.option(
    "--secret <NAME[=@file]>",
    "secret environment variable: this shell's NAME, or a file's content; may be repeated",
    collectSecret,
  );
}

/**
 * Gathers secrets: a bare name takes its value from this process's environment, `NAME=@file` from a file, whose one last
 * line break is not part of it. A value on the command line would stand in the process list and the shell's history.
 */
function collectSecret(text: string, gathered: Record<string, string> = {}): Record<string, string> {
  const at = text.indexOf("=");
  const name = at === -1 ? text : text.slice(0, at);
  if (name === "") throw new UsageError("--secret must be NAME or NAME=@file");
  return { ...gathered, [name]: at === -1 ? ofEnvironment(name) : ofFile(name, text.slice(at + 1)) };
}

function ofEnvironment(name: string): string {
  const value = process.env[name];
  if (value === undefined)
    throw new UsageError(
      `--secret ${name}: ${name} is not set here; export it first, or name a file with ${name}=@file`,
    );
  return value;
}

function ofFile(name: string, source: string): string {
  if (!source.startsWith("@"))
    throw new UsageError(
      `--secret ${name}: a value on the command line would stand in the process list and the shell's history; export ${name} and give --secret ${name}, or name a file with ${name}=@file`,
    );
  try {
    return readFileSync(source.slice(1), "utf8").replace(/\r?\n$/, "");
  } catch (error) {
    throw new UsageError(`--secret ${name}: its file cannot be read: ${(error as Error).message}`);
  }
}
