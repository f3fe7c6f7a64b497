import { Command } from "commander";
import type { EventType, NetworkPolicy, SandboxEvent } from "@torpor/sdk";
import { EVENT_TYPES } from "@torpor/protocol";
import { clientFor } from "../api/client.ts";
import { wireForm } from "../api/wire-form.ts";
import { type CliContext, invocationOf } from "../context.ts";
import { UsageError } from "../failure.ts";
import { networkWords } from "../output/network-words.ts";
import type { Style } from "../output/style.ts";
import { Interruption } from "../terminal/interruption.ts";
import { writeAll } from "../terminal/write-all.ts";

/** For the help of options that take them. */
export const EVENT_TYPE_NAMES = EVENT_TYPES.join(", ");

/** `torpor events`: what happens to sandboxes, as it happens. */
export function registerEvents(program: Command, context: CliContext): void {
  program
    .command("events")
    .summary("follow what happens to sandboxes")
    .description(
      "Of one sandbox: its life from its create, and on until its end. Without an id: of all, from now on. A connection that breaks is taken up where it broke. With --json one event a line.",
    )
    .argument("[id]", "id of a sandbox")
    .option("--after <place>", "begin with 'now', 'oldest' (7 days are kept), or after this event id")
    .option("--type <types>", `only these, separated by commas: ${EVENT_TYPE_NAMES}`)
    .option("--tenant <tenant>", "of this tenant only (without an id)")
    .option("--no-follow", "end after what is there")
    .action(
      async (
        id: string | undefined,
        flags: { after?: string; type?: string; tenant?: string; follow: boolean },
        command: Command,
      ) => {
        const invocation = invocationOf(context, command);
        const { after, tenant, follow } = flags;
        if (id !== undefined && tenant !== undefined)
          throw new UsageError("--tenant is for the events of all; a sandbox has one tenant: leave it out");
        using interruption = new Interruption();
        const options = { after, types: eventTypesOf(flags.type), follow, signal: interruption.signal };
        const client = clientFor(invocation);
        const stream =
          id === undefined
            ? client.events({ ...options, tenant })
            : (await client.sandboxes.get(id)).events(options);
        for await (const event of stream) {
          const line = invocation.json
            ? JSON.stringify({ ...(wireForm(event) as object), changes: event.changes })
            : readable(event, invocation.style);
          await writeAll(context.stdout, Buffer.from(`${line}\n`));
        }
      },
    );
}

/** Types of events separated by commas, with or without their `sandbox.`. @throws UsageError naming the one that is none */
export function eventTypesOf(text: string | undefined): EventType[] | undefined {
  return text?.split(",").map((word) => {
    const type = EVENT_TYPES.find((known) => known === word || known === `sandbox.${word}`);
    if (type === undefined) throw new UsageError(`--type knows ${EVENT_TYPES.join(", ")}; not '${word}'`);
    return type;
  });
}

function readable(event: SandboxEvent, style: Style): string {
  const { at, sandboxId, tenant, type, reason, changes, id } = event;
  const what = type.replace(/^sandbox\./, "").padEnd(12);
  const facts = [
    reason,
    ...(type === "sandbox.updated" || type === "sandbox.idle_awake" || type.startsWith("budget.")
      ? Object.entries(changes).map(([name, value]) => `${name}=${changeWords(name, value)}`)
      : []),
  ].filter((fact) => fact !== null);
  return `${style.dim(at.toISOString())} ${sandboxId ?? tenant ?? "account"} ${what} ${facts.join(" ")} ${style.dim(id)}`.trimEnd();
}

/** What a field was changed to, on one line. */
function changeWords(name: string, value: unknown): string {
  if (typeof value !== "object" || value === null) return String(value);
  return name === "network" ? `'${networkWords(value as NetworkPolicy)}'` : JSON.stringify(value);
}
