import { Command } from "commander";
import { clientFor } from "../api/client.ts";
import { type CliContext, invocationOf } from "../context.ts";
import { parseCopy } from "../copy/location.ts";
import { copyIn, copyOut } from "../copy/transfer.ts";
import { EXIT, ExitWith } from "../failure.ts";
import { Interruption } from "../terminal/interruption.ts";
import { writeAll } from "../terminal/write-all.ts";

/** `torpor cp`: files and directories, both ways. */
export function registerCp(program: Command, context: CliContext): void {
  program
    .command("cp")
    .summary("copy files between this machine and a sandbox")
    .description(
      "Copies a file or directory, as cp -r does. One of the two is in a sandbox: ID:/path or ID:~/path. '-' is standard input or output. " +
        "A directory written as DIR/. stands for its content.",
    )
    .argument("<source>", "what to copy")
    .argument("<destination>", "where to")
    .action(async (source: string, destination: string, _flags: unknown, command: Command) => {
      const invocation = invocationOf(context, command);
      const [from, to] = parseCopy(source, destination);
      using interruption = new Interruption();
      const { signal } = interruption;
      const client = clientFor(invocation);
      if (to.on === "sandbox") {
        const sandbox = await client.sandboxes.get(to.id, { signal });
        if (from.on === "pipe") {
          await sandbox.files.write(to.path, context.stdin as AsyncIterable<Uint8Array>, {
            signal,
            timeoutMs: 0,
          });
          return invocation.answer({ kind: "file", from: "-", to: to.path }, () => "");
        }
        if (from.on === "host") {
          const copied = await copyIn(sandbox, from.path, to.path, signal);
          return invocation.answer(copied, () => "");
        }
      }
      if (from.on !== "sandbox") throw new ExitWith(EXIT.usage);
      const sandbox = await client.sandboxes.get(from.id, { signal });
      if (to.on === "pipe") {
        for await (const chunk of await sandbox.files.readStream(from.path, { signal }))
          await writeAll(context.stdout, chunk);
        return;
      }
      if (to.on === "host") {
        const copied = await copyOut(sandbox, from.path, to.path, signal);
        invocation.answer(copied, () => "");
      }
    });
}
