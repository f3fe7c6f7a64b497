import { Command } from "commander";
import { clientFor } from "../api/client.ts";
import { wireForm } from "../api/wire-form.ts";
import { type CliContext, invocationOf } from "../context.ts";
import { EXIT, ExitWith } from "../failure.ts";
import { parseDuration } from "../terminal/duration.ts";
import { collectPair, parseNumber } from "./create.ts";
import { addSecretOption } from "./secret-option.ts";

/** `torpor fork`: copies of a sandbox, which goes on. */
export function registerFork(program: Command, context: CliContext): void {
  addSecretOption(program.command("fork"))
    .summary("copy a sandbox, memory and all")
    .description("Makes copies with the memory and files of a sandbox, which goes on, and prints their ids.")
    .argument("<id>", "id of the sandbox")
    .option("-n, --count <count>", "how many, 1 to 100 (default 1)", parseNumber)
    .option(
      "--ttl <time>",
      "TTL of the copies, such as 600 or 30m (default: the original's deadline)",
      parseDuration,
    )
    .option("-m, --metadata <key=value>", "label of the copies; may be repeated", collectPair)
    .action(
      async (
        id: string,
        flags: {
          count?: number;
          ttl?: number;
          metadata?: Record<string, string>;
          secret?: Record<string, string>;
        },
        command: Command,
      ) => {
        const invocation = invocationOf(context, command);
        const sandbox = await clientFor(invocation).sandboxes.get(id);
        const { count, ttl, metadata, secret: secrets } = flags;
        const { children, failures } = await sandbox.fork({ count, ttlSeconds: ttl, metadata, secrets });
        const items = children.map(({ info }) => info);
        const errors = failures.map(({ code, message }) => ({ code, message }));
        invocation.answer(wireForm({ items, errors }), () => items.map((info) => info.id).join("\n"));
        for (const { message } of failures)
          invocation.note(`${invocation.errorStyle.red("error:")} ${message}`);
        if (failures.length > 0) throw new ExitWith(EXIT.failure);
      },
    );
}
