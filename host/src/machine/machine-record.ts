import { CodedError, type EndReason, type Machine } from "@torpor/protocol";
import type { MachineEntry } from "../journal.ts";

/** Why a machine that was not running when the host came back has ended. */
export function lostReason(entry: MachineEntry): [EndReason, string] {
  if (entry.state === "creating")
    return ["create_failed", "the host was restarted while it was being created"];
  if (entry.state === "ending")
    return [entry.reason ?? "user", entry.message ?? "its ending was finished after a restart of the host"];
  return ["runtime_crashed", "its runtime process had ended while the host was away"];
}

/** 410: work was asked of a machine that has ended. */
export function endedError(machine: Machine): CodedError {
  const why = machine.message === null ? "" : ` (${machine.message})`;
  return new CodedError(
    "sandbox_ended",
    `sandbox ${machine.id} has ended: ${machine.reason ?? "ending"}${why}`,
    { details: { reason: machine.reason } },
  );
}

/** Wire form of a journal entry. */
export function toMachine(entry: MachineEntry, lastOomAt: number | null = null): Machine {
  const iso = (unixMs: number | null): string | null =>
    unixMs === null ? null : new Date(unixMs).toISOString();
  return {
    id: entry.id,
    state: entry.state,
    generation: entry.spec.generation,
    template: entry.spec.template,
    template_hash: entry.templateHash,
    driver: entry.driver,
    tenant: entry.spec.tenant,
    cpu: entry.spec.cpu,
    memory_mb: entry.spec.memory_mb,
    disk_mb: entry.spec.disk_mb,
    network: entry.spec.network,
    created_at: new Date(entry.createdAt).toISOString(),
    started_at: iso(entry.startedAt),
    deadline_unix_ms: entry.deadlineUnixMs,
    ended_at: iso(entry.endedAt),
    reason: entry.reason,
    message: entry.message,
    attestation: entry.attestation,
    source: entry.source,
    last_oom_at: iso(lastOomAt),
  };
}
