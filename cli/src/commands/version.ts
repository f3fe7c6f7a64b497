import type { Command } from "commander";
import { type CliContext, invocationOf } from "../context.ts";

/** `torpor version`. */
export function registerVersion(program: Command, context: CliContext): void {
  program
    .command("version")
    .summary("show the version")
    .action((_options: unknown, command: Command) => {
      const { version } = context.installation;
      invocationOf(context, command).answer({ version, node: process.version }, () => `torpor ${version}`);
    });
}
