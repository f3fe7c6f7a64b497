import { resolve } from "node:path";
import { Command } from "commander";
import { CodedError } from "@torpor/protocol";
import { clientFor } from "../api/client.ts";
import { wireForm } from "../api/wire-form.ts";
import { type CliContext, invocationOf } from "../context.ts";
import { BuildProgressView } from "../output/build-progress.ts";
import { formatBytes, formatDuration } from "../output/quantities.ts";
import { renderTable } from "../output/table.ts";
import { Interruption } from "../terminal/interruption.ts";

/** `torpor template build|import|ls|rm`. */
export function registerTemplate(program: Command, context: CliContext): void {
  const template = program
    .command("template")
    .summary("build, list and remove templates")
    .description(
      "Manages templates: the root filesystems that sandboxes start from, each with its golden snapshot.",
    );
  template
    .command("build")
    .summary("build a template and its golden snapshot")
    .description(
      "Builds a template, or finds that nothing has changed since it was built. ^C stops the build and leaves nothing of it.",
    )
    .argument("<name>", "a folder of templates/, for example code-interpreter")
    .action(async (name: string, _flags: unknown, command: Command) => {
      await build(context, command, name, undefined);
    });
  template
    .command("import")
    .summary("make a template from a container image")
    .description(
      "Makes a template from a container image: a local one, or one at a registry that the host asks. Its environment, user and working directory become what commands start with; its entrypoint is not run. The same image again is there at once.",
    )
    .argument("<name>", "what the template is to be called")
    .argument(
      "<source>",
      "oci:DIR[:IMAGE], docker-archive:FILE[:IMAGE], oci-archive:FILE[:IMAGE], a path to one of these on the host's machine, or an image's name as in python:3.12",
    )
    .action(async (name: string, source: string, _flags: unknown, command: Command) => {
      const path = /^\.{1,2}(\/|$)/.test(source) ? resolve(source) : source;
      await build(context, command, name, path);
    });
  template
    .command("ls")
    .alias("list")
    .summary("list templates")
    .action(async (_flags: unknown, command: Command) => {
      const invocation = invocationOf(context, command);
      const templates = await clientFor(invocation).templates.list();
      invocation.answer(wireForm({ items: templates }), () =>
        templates.length === 0
          ? "No templates. Build one: torpor template build code-interpreter"
          : renderTable(
              ["NAME", "HASH", "SIZE", "GOLDEN", "BUILT", "DESCRIPTION"],
              templates.map((entry) => [
                entry.name,
                entry.hash.slice(0, 16),
                formatBytes(entry.sizeBytes),
                entry.golden.join(",") || "-",
                `${formatDuration(Date.now() - entry.builtAt.getTime())} ago`,
                entry.description,
              ]),
            ),
      );
    });
  template
    .command("rm")
    .summary("remove templates")
    .description("Removes templates from this machine. Sandboxes made from them live on.")
    .argument("<names...>", "names of the templates")
    .action(async (names: string[], _flags: unknown, command: Command) => {
      const invocation = invocationOf(context, command);
      const { templates } = clientFor(invocation);
      for (const name of names) {
        if (!(await templates.remove(name)))
          throw new CodedError(
            "template_not_found",
            `there is no template '${name}': torpor template ls shows them`,
          );
      }
      invocation.answer({ items: names.map((name) => ({ name, removed: true })) }, () => names.join("\n"));
    });
}

async function build(
  context: CliContext,
  command: Command,
  name: string,
  image: string | undefined,
): Promise<void> {
  const invocation = invocationOf(context, command);
  const startedAt = performance.now();
  const progress = new BuildProgressView(context.stderr, invocation.errorStyle);
  using interruption = new Interruption();
  try {
    const built = await clientFor(invocation).templates.build(name, {
      image,
      signal: interruption.signal,
      ...(invocation.json ? {} : { onProgress: (report) => progress.update(report) }),
    });
    progress.finish("done");
    invocation.answer(wireForm(built), () =>
      built.cached
        ? `${name} is up to date (${built.template.hash})`
        : `${name} built in ${formatDuration(performance.now() - startedAt)}: ${built.template.hash}, ${formatBytes(built.template.sizeBytes)}`,
    );
  } catch (error) {
    progress.finish("failed");
    throw error;
  }
}
