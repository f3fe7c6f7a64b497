import { Command } from "commander";
import type { SandboxInfo } from "@torpor/sdk";
import { clientFor } from "../api/client.ts";
import { wireForm } from "../api/wire-form.ts";
import { type CliContext, invocationOf } from "../context.ts";
import { UsageError } from "../failure.ts";
import { formatDuration } from "../output/quantities.ts";
import type { Style } from "../output/style.ts";
import { renderTable } from "../output/table.ts";
import { collectPair } from "./create.ts";
import { SANDBOX_STATES, type SandboxState } from "@torpor/protocol";

/** `torpor ls`: the sandboxes that live, or all of the last 7 days. */
export function registerLs(program: Command, context: CliContext): void {
  program
    .command("ls")
    .alias("list")
    .summary("list sandboxes")
    .option("-a, --all", "those that have ended too (kept for 7 days)")
    .option("--state <state>", "in this state only")
    .option("-t, --template <name>", "of this template only")
    .option("--tenant <tenant>", "of this tenant only")
    .option("-m, --metadata <key=value>", "with this label; may be repeated", collectPair)
    .option("-q, --quiet", "print ids alone")
    .action(
      async (
        flags: {
          all?: boolean;
          state?: string;
          template?: string;
          tenant?: string;
          metadata?: Record<string, string>;
          quiet?: boolean;
        },
        command: Command,
      ) => {
        const invocation = invocationOf(context, command);
        const { template, tenant, metadata } = flags;
        const state = checkState(flags.state);
        const { sandboxes } = clientFor(invocation);
        const filter = { template, tenant, metadata, pageSize: 200 };
        const found: SandboxInfo[] = [];
        // Without a state the server lists what lives.
        for await (const { info } of sandboxes.list({ ...filter, state })) found.push(info);
        if (flags.all === true && state === undefined) {
          for await (const { info } of sandboxes.list({ ...filter, state: "destroyed" })) found.push(info);
        }
        invocation.answer(wireForm({ items: found }), () => {
          if (flags.quiet === true) return found.map((info) => info.id).join("\n");
          return found.length === 0 ? "No sandboxes." : renderSandboxes(found, invocation.style, Date.now());
        });
      },
    );
}

function checkState(state: string | undefined): SandboxState | undefined {
  if (state === undefined) return undefined;
  const known = SANDBOX_STATES.find((name) => name === state);
  if (known === undefined)
    throw new UsageError(`--state must be one of ${SANDBOX_STATES.join(", ")}; it is '${state}'`);
  return known;
}

/** The table of `ls`. */
function renderSandboxes(sandboxes: readonly SandboxInfo[], style: Style, now: number): string {
  const state = (info: SandboxInfo): string => {
    if (info.state === "running") return style.green(info.state);
    return info.reason === null ? style.yellow(info.state) : style.dim(`${info.state} (${info.reason})`);
  };
  const rows = sandboxes.map((info) => [
    info.id,
    info.name ?? "-",
    state(info),
    info.template,
    info.tenant,
    `${formatDuration(now - info.createdAt.getTime())} ago`,
    info.endedAt === null && info.expiresAt !== null
      ? `in ${formatDuration(info.expiresAt.getTime() - now)}`
      : "-",
  ]);
  return renderTable(["ID", "NAME", "STATE", "TEMPLATE", "TENANT", "CREATED", "EXPIRES"], rows);
}
