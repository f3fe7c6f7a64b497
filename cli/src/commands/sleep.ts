import { Command } from "commander";
import type { Sandbox, SandboxInfo } from "@torpor/sdk";
import { clientFor } from "../api/client.ts";
import { wireForm } from "../api/wire-form.ts";
import { type CliContext, invocationOf } from "../context.ts";
import { EXIT, ExitWith, failureMessage } from "../failure.ts";
import { formatBytes } from "../output/quantities.ts";

interface Move {
  name: "hibernate" | "wake" | "pause" | "resume";
  summary: string;
  description: string;
  /** `--no-x` and what it means. */
  option?: [string, string];
  act: (sandbox: Sandbox, flags: { memory?: boolean }) => Promise<SandboxInfo>;
}

const MOVES: readonly Move[] = [
  {
    name: "hibernate",
    summary: "put sandboxes to storage",
    description:
      "Writes memory, processes and files to storage; nothing stays in RAM. The next work wakes them where they were.",
    option: ["--no-memory", "their files alone: 'torpor wake' boots them from those, and no work does"],
    // Not said is not yes: what a sandbox was made with holds.
    act: (sandbox, { memory }) => sandbox.hibernate(memory === false ? { memory } : {}),
  },
  {
    name: "wake",
    summary: "wake hibernated sandboxes",
    description: "Brings them back where they were. Work asked of a sandbox does this by itself.",
    act: (sandbox) => sandbox.wake(),
  },
  {
    name: "pause",
    summary: "stop sandboxes in RAM",
    description: "At once: they use no CPU and keep their memory.",
    act: (sandbox) => sandbox.pause(),
  },
  {
    name: "resume",
    summary: "let paused sandboxes go on",
    description: "The other half of 'pause'.",
    act: (sandbox) => sandbox.resume(),
  },
];

/** `torpor hibernate|wake|pause|resume`: one after the other, so that a disk is not asked for everything at once. */
export function registerSleep(program: Command, context: CliContext): void {
  for (const { name, summary, description, option, act } of MOVES) {
    const verb = program.command(name);
    if (option !== undefined) verb.option(...option);
    verb
      .summary(summary)
      .description(description)
      .argument("<ids...>", "ids of the sandboxes")
      .action(async (ids: string[], flags: { memory?: boolean }, command: Command) => {
        const invocation = invocationOf(context, command);
        const { sandboxes } = clientFor(invocation);
        const done: SandboxInfo[] = [];
        const failures: string[] = [];
        for (const id of new Set(ids)) {
          try {
            done.push(await act(await sandboxes.get(id), flags));
          } catch (error) {
            failures.push(failureMessage(error));
          }
        }
        invocation.answer(wireForm({ items: done }), () => done.map(line).join("\n"));
        for (const failure of failures) invocation.note(`${invocation.errorStyle.red("error:")} ${failure}`);
        if (failures.length > 0) throw new ExitWith(EXIT.failure);
      });
  }
}

function line({ id, state, image }: SandboxInfo): string {
  if (image === null) return `${id} ${state}`;
  return `${id} ${state} (${formatBytes(image.sizeBytes)}${image.memory ? "" : ", files alone"})`;
}
