import { Command } from "commander";
import { clientFor } from "../api/client.ts";
import { wireForm } from "../api/wire-form.ts";
import { type CliContext, invocationOf } from "../context.ts";
import { parseDuration } from "../terminal/duration.ts";

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

function parseTtl(text: string): number | "none" {
  return text === "none" ? text : parseDuration(text); // commander takes null for the absence of a value
}
