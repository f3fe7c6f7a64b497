import { Command } from "commander";
import type { PreviewUrl } from "@torpor/sdk";
import { CodedError } from "@torpor/protocol";
import { clientFor } from "../api/client.ts";
import { wireForm } from "../api/wire-form.ts";
import { type CliContext, invocationOf } from "../context.ts";
import { renderTable } from "../output/table.ts";
import { parseDuration } from "../terminal/duration.ts";
import { parseNumber } from "./create.ts";

/** `torpor port url|ls|revoke`. */
export function registerPort(program: Command, context: CliContext): void {
  const port = program
    .command("port")
    .alias("ports")
    .summary("let visitors reach a port of a sandbox")
    .description("Makes, lists and revokes preview URLs. The program inside must listen on 0.0.0.0.");
  port
    .command("url")
    .summary("make a preview URL")
    .description(
      "Makes a URL that lets whoever has it reach that port, and prints it: the only time it is shown. It ends when it expires, is revoked, or the sandbox ends.",
    )
    .argument("<id>", "id of the sandbox")
    .argument("<port>", "port the program inside listens on", parseNumber)
    .option(
      "--expires-in <time>",
      "ends by itself after this long, such as 600 or 12h (default: 1h)",
      parseDuration,
    )
    .option("--auto-wake", "a visit wakes the sandbox when it sleeps")
    .action(
      async (
        id: string,
        number: number,
        flags: { expiresIn?: number; autoWake?: boolean },
        command: Command,
      ) => {
        const invocation = invocationOf(context, command);
        const sandbox = await clientFor(invocation).sandboxes.get(id);
        const made = await sandbox.previewUrl(number, {
          expiresInSeconds: flags.expiresIn,
          autoWake: flags.autoWake,
        });
        invocation.answer(wireForm(made), () => made.url);
        if (context.stderr.isTTY)
          invocation.note(invocation.errorStyle.dim(`id ${made.id}; until ${made.expiresAt.toISOString()}`));
      },
    );
  port
    .command("ls")
    .alias("list")
    .summary("list a sandbox's preview URLs")
    .argument("<id>", "id of the sandbox")
    .action(async (id: string, _flags: unknown, command: Command) => {
      const invocation = invocationOf(context, command);
      const items = await (await clientFor(invocation).sandboxes.get(id)).ports.list();
      invocation.answer(wireForm({ items }), () =>
        items.length === 0 ? "No preview URLs." : renderUrls(items),
      );
    });
  port
    .command("revoke")
    .alias("rm")
    .summary("end preview URLs at once")
    .argument("<id>", "id of the sandbox")
    .argument("<url-ids...>", "ids of the URLs (torpor port ls)")
    .action(async (id: string, urlIds: string[], _flags: unknown, command: Command) => {
      const invocation = invocationOf(context, command);
      const { ports } = await clientFor(invocation).sandboxes.get(id);
      for (const urlId of urlIds) {
        if (!(await ports.revoke(urlId)))
          throw new CodedError(
            "not_found",
            `sandbox ${id} has no preview URL ${urlId}: torpor port ls ${id} shows the ids`,
          );
      }
      invocation.answer({ items: urlIds.map((urlId) => ({ id: urlId, revoked: true })) }, () =>
        urlIds.join("\n"),
      );
    });
}

function renderUrls(urls: readonly PreviewUrl[]): string {
  const state = (url: PreviewUrl): string =>
    url.revokedAt !== null ? "revoked" : url.expiresAt.getTime() < Date.now() ? "expired" : "valid";
  return renderTable(
    ["ID", "PORT", "HOST", "WAKES", "STATE", "EXPIRES"],
    urls.map((url) => [
      url.id,
      String(url.port),
      url.host,
      url.autoWake ? "yes" : "no",
      state(url),
      url.expiresAt.toISOString().slice(0, 16).replace("T", " "),
    ]),
  );
}
