import { Command } from "commander";
import { CodedError } from "@torpor/protocol";
import { clientFor } from "../api/client.ts";
import { wireForm } from "../api/wire-form.ts";
import { type CliContext, invocationOf } from "../context.ts";
import { BuildProgressView } from "../output/build-progress.ts";
import { formatBytes, formatDuration } from "../output/quantities.ts";
import { renderTable } from "../output/table.ts";
import { Interruption } from "../terminal/interruption.ts";

/** `torpor template build|ls|rm`. */
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
      const invocation = invocationOf(context, command);
      const startedAt = performance.now();
      const progress = new BuildProgressView(context.stderr, invocation.errorStyle);
      using interruption = new Interruption();
      try {
        const built = await clientFor(invocation).templates.build(name, {
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
