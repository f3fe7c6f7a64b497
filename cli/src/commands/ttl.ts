import { Command } from "commander";
import { clientFor } from "../api/client.ts";
import { wireForm } from "../api/wire-form.ts";
import { type CliContext, invocationOf } from "../context.ts";
import { UsageError } from "../failure.ts";
import { secondsOf } from "../terminal/duration.ts";

/** `torpor ttl`: a new deadline for a sandbox. */
export function registerTtl(program: Command, context: CliContext): void {
  program
    .command("ttl")
    .summary("set when a sandbox ends by itself")
    .description("Sets the deadline to so long from now, sooner or later than it was.")
    .argument("<id>", "id of the sandbox")
    .argument("<time>", "such as 600, 30m or 12h; 'none' for a persistent one that is to have none", parseTtl)
    .action(async (id: string, ttl: number | "none", _flags: unknown, command: Command) => {
      const invocation = invocationOf(context, command);
      const sandbox = await clientFor(invocation).sandboxes.get(id);
      const info = await sandbox.setLifecycle({ ttlSeconds: ttl === "none" ? null : ttl });
      const end = info.expiresAt === null ? "has no deadline" : `until ${info.expiresAt.toISOString()}`;
      invocation.answer(wireForm(info), () => `${id} ${end}`);
    });
}

/** @throws UsageError saying what is taken: the parser's own words name neither bounds nor 'none' */
function parseTtl(text: string): number | "none" {
  if (text === "none") return text; // commander takes null for the absence of a value
  const seconds = secondsOf(text);
  if (Number.isInteger(seconds) && seconds >= 1) return seconds;
  throw new UsageError(
    `the time must be at least 1 second, in whole seconds (600) or as 45s, 30m, 12h or 30d, or 'none'; it is '${text}'`,
  );
}
