import { Command } from "commander";
import type { Attestation, SandboxInfo } from "@torpor/sdk";
import { clientFor } from "../api/client.ts";
import { wireForm } from "../api/wire-form.ts";
import { type CliContext, invocationOf } from "../context.ts";
import { oneLine } from "../output/display-width.ts";
import { networkWords } from "../output/network-words.ts";
import { formatBytes, formatDuration } from "../output/quantities.ts";

/** `torpor show`: all that is known of one sandbox. */
export function registerShow(program: Command, context: CliContext): void {
  program
    .command("show")
    .summary("show one sandbox")
    .description("Its state, size, clocks and policies. Wakes nothing; of one that has ended, for 7 days.")
    .argument("<id>", "id of the sandbox")
    .option("--attestation", "also what made this copy unique, step by step")
    .action(async (id: string, flags: { attestation?: boolean }, command: Command) => {
      const invocation = invocationOf(context, command);
      const { info } = await clientFor(invocation).sandboxes.get(id);
      const { attestation, ...rest } = info;
      invocation.answer(wireForm(flags.attestation === true ? info : rest), () => {
        const steps = flags.attestation === true ? attestationLines(attestation) : [];
        return [...facts(info, Date.now()), ...steps]
          .map(([name, value]) => `${name.padEnd(12)} ${oneLine(value)}`)
          .join("\n");
      });
    });
}

type Fact = [name: string, value: string];

function facts(info: SandboxInfo, now: number): Fact[] {
  const ago = (at: Date): string => `${at.toISOString()}, ${formatDuration(now - at.getTime())} ago`;
  const ahead = (at: Date): string => `${at.toISOString()}, in ${formatDuration(at.getTime() - now)}`;
  const found: Fact[] = [
    ["id", info.id],
    ["name", info.name ?? "-"],
    ["state", info.reason === null ? info.state : `${info.state} (${info.reason})`],
    ["template", info.template],
    ["tenant", info.tenant],
    ["kind", info.persistent ? "persistent" : "ephemeral"],
    ["size", `${info.cpu} CPU, ${info.memoryMb} MiB memory, ${info.diskMb} MiB disk`],
    ["network", networkWords(info.network)],
    ["created", ago(info.createdAt)],
    ["last used", ago(info.lastActivityAt)],
  ];
  if (info.endedAt !== null) return [...found, ["ended", ago(info.endedAt)], ...labels(info)];
  const idle = info.idleTimeoutSeconds;
  found.push(
    ["expires", info.expiresAt === null ? "never" : `${ahead(info.expiresAt)}; then: ${info.onExpire}`],
    ["when idle", idle === null ? "nothing" : `${info.onIdle} after ${formatDuration(idle * 1000)}`],
  );
  if (info.idleAt !== null) found.push(["idle", ahead(info.idleAt)]);
  if (info.image !== null) {
    const kept = info.image.memory ? "with memory" : "files alone";
    found.push(["image", `${formatBytes(info.image.sizeBytes)}, ${kept}, of ${ago(info.image.createdAt)}`]);
  }
  if (info.retentionSeconds !== null)
    found.push(["kept asleep", `for ${formatDuration(info.retentionSeconds * 1000)}`]);
  found.push(["auto wake", info.autoWake ? "yes" : "no"], ["restores", String(info.generation)]);
  if (info.host !== null) found.push(["host", info.host]);
  return [...found, ...labels(info)];
}

function labels({ metadata }: SandboxInfo): Fact[] {
  return Object.entries(metadata).map(([name, value]) => ["label", `${name}=${value}`]);
}

function attestationLines(attestation: Attestation | null): Fact[] {
  if (attestation === null) return [["attestation", "none"]];
  const { generation, complete, steps } = attestation;
  return [
    ["attestation", `of restore ${generation}, ${complete ? "complete" : "not complete"}`],
    ...steps.map(({ name, outcome, detail }): Fact => {
      return ["step", `${name}: ${outcome}${detail === null || detail === "" ? "" : ` (${detail})`}`];
    }),
  ];
}
