import { Command } from "commander";
import type { SandboxSample } from "@torpor/sdk";
import { clientFor } from "../api/client.ts";
import { wireForm } from "../api/wire-form.ts";
import { type CliContext, invocationOf } from "../context.ts";
import { formatBytes } from "../output/quantities.ts";
import { renderTable } from "../output/table.ts";
import { parseTime } from "../terminal/time.ts";

/** `torpor metrics`: what a sandbox uses over time. */
export function registerMetrics(program: Command, context: CliContext): void {
  program
    .command("metrics")
    .summary("show what a sandbox uses over time")
    .description(
      "A line every 5 s in which it ran, the last hour's at most, and one of now while it runs, oldest first. CPU: 100% is all it may have. Memory: without cached files, its runtime's own included. Wakes nothing; a restart of the host begins anew.",
    )
    .argument("<id>", "id of the sandbox")
    .option("--from <time>", "such as 2026-01-31T12:00:00Z; default: the oldest there is", parseTime)
    .option("--to <time>", "default: now", parseTime)
    .action(async (id: string, flags: { from?: Date; to?: Date }, command: Command) => {
      const invocation = invocationOf(context, command);
      const items = await (await clientFor(invocation).sandboxes.get(id)).metrics(flags);
      invocation.answer(wireForm({ items }), () => (items.length === 0 ? "No samples." : render(items)));
    });
}

function render(samples: readonly SandboxSample[]): string {
  return renderTable(
    ["AT", "CPU", "MEMORY", "CACHE", "DISK"],
    samples.map((sample) => [
      sample.at.toISOString(),
      `${sample.cpuUsedPercent.toFixed(1)}%`,
      formatBytes(sample.memoryUsedBytes),
      formatBytes(sample.memoryCacheBytes),
      formatBytes(sample.diskUsedBytes),
    ]),
  );
}
