import { Command } from "commander";
import type { SandboxStateInventory, StateKind } from "@torpor/sdk";
import { clientFor } from "../api/client.ts";
import { wireForm } from "../api/wire-form.ts";
import { type CliContext, invocationOf } from "../context.ts";
import { formatBytes } from "../output/quantities.ts";
import { renderTable } from "../output/table.ts";

/** `torpor state`: what a sandbox holds, and what would survive what. */
export function registerState(program: Command, context: CliContext): void {
  program
    .command("state")
    .summary("show what state a sandbox holds, and what would survive")
    .description(
      "Takes inventory by the six kinds of state, and says for each what survives a pause, a hibernation, a fork (in the copies) and the end.",
    )
    .argument("<id>", "id of the sandbox")
    .option("--wake", "wake it if it sleeps; only a running one can be asked")
    .action(async (id: string, flags: { wake?: boolean }, command: Command) => {
      const invocation = invocationOf(context, command);
      const sandbox = await clientFor(invocation).sandboxes.get(id);
      const state = await sandbox.state({ wake: flags.wake });
      invocation.answer(wireForm(state), () => renderState(state));
    });
}

function renderState(state: SandboxStateInventory): string {
  const { files, packages, caches, memory, connections, browser, forecast } = state;
  const held: [StateKind, string][] = [
    ["files", `${files.changedCount} changed, ${formatBytes(files.changedBytes)}`],
    ["packages", `${packages.pip.length} pip, ${packages.npm.length} npm, ${packages.apt.length} apt`],
    [
      "caches",
      `${caches.length}, ${formatBytes(caches.reduce((total, { sizeBytes }) => total + sizeBytes, 0))}`,
    ],
    [
      "memory",
      `${memory.processes.length} processes, ${formatBytes(memory.rssBytes)}, ${memory.kernels.length} kernels`,
    ],
    [
      "connections",
      `${connections.listening.length} listening, ${connections.loopback.length} loopback, ${connections.external.length} external`,
    ],
    ["browser", `${browser.profiles.length} profiles`],
  ];
  const rows = held.map(([kind, what]) => [
    kind,
    what,
    ...(["pause", "hibernate", "fork", "destroy"] as const).map((event) => forecast[event][kind].survives),
  ]);
  const table = renderTable(["KIND", "HELD", "PAUSE", "HIBERNATE", "FORK", "DESTROY"], rows);
  const { lost, reason } = forecast.hibernate.connections;
  return lost.length === 0 ? table : `${table}\n\nLost by a hibernation: ${lost.join(", ")}\n${reason}`;
}
