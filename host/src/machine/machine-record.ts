import { CodedError, type Machine, NO_USE } from "@torpor/protocol";
import type { MachineEntry } from "../journal.ts";
import type { Activity } from "./activity.ts";

/** 410: work was asked of a machine that has ended. */
export function endedError(machine: Machine): CodedError {
  const why = machine.message === null ? "" : ` (${machine.message})`;
  return new CodedError(
    "sandbox_ended",
    `sandbox ${machine.id} has ended: ${machine.reason ?? "ending"}${why}`,
    { details: { reason: machine.reason } },
  );
}

/** What only a living machine knows of itself. */
export interface LivingFacts {
  activity: Activity;
  lastOomAt: number | null;
}

/** Whether it is put to sleep with its memory where nothing else is said; a journal of an earlier version says nothing. */
export function keepsMemory({ spec }: Pick<MachineEntry, "spec">): boolean {
  return (spec as { hibernate_memory?: boolean }).hibernate_memory ?? true;
}

/** Wire form of a journal entry. */
export function toMachine(entry: MachineEntry, living?: LivingFacts): Machine {
  const iso = (unixMs: number | null): string | null =>
    unixMs === null ? null : new Date(unixMs).toISOString();
  const { spec } = entry;
  const lastActivityAt = living?.activity.lastAt ?? entry.lastActivityAt;
  const holds = living?.activity.holds ?? [];
  const counts =
    entry.state === "running" &&
    spec.idle_timeout_seconds !== null &&
    spec.on_idle !== "none" &&
    holds.length === 0;
  return {
    id: entry.id,
    state: entry.state,
    generation: entry.generation,
    template: spec.template,
    template_hash: entry.templateHash,
    driver: entry.driver,
    tenant: spec.tenant,
    cpu: spec.cpu,
    memory_mb: spec.memory_mb,
    disk_mb: spec.disk_mb,
    network: spec.network,
    created_at: new Date(entry.createdAt).toISOString(),
    started_at: iso(entry.startedAt),
    deadline_unix_ms: entry.deadlineUnixMs,
    ended_at: iso(entry.endedAt),
    reason: entry.reason,
    message: entry.message,
    attestation: entry.attestation,
    source: entry.source,
    on_expire: spec.on_expire,
    idle_timeout_seconds: spec.idle_timeout_seconds,
    on_idle: spec.on_idle,
    hibernate_memory: keepsMemory(entry),
    retention_seconds: spec.retention_seconds,
    auto_wake: spec.auto_wake,
    last_activity_at: new Date(lastActivityAt).toISOString(),
    last_activity: living?.activity.last ?? null,
    idle_at: counts ? iso(lastActivityAt + (spec.idle_timeout_seconds ?? 0) * 1000) : null,
    holds: holds.map((hold) => ({ ...hold, since: new Date(hold.since).toISOString() })),
    image:
      entry.image === null || entry.state !== "hibernated"
        ? null
        : {
            id: entry.image.id,
            size_bytes: entry.image.sizeBytes,
            created_at: new Date(entry.image.createdAt).toISOString(),
            memory: entry.image.memory ?? true,
          },
    incarnations: entry.incarnations ?? [],
    took_ms: { hibernate: entry.tookMs?.hibernate ?? null, wake: entry.tookMs?.wake ?? null },
    moves: entry.meter?.moves ?? [],
    used: entry.meter?.used ?? NO_USE,
    last_oom_at: iso(living?.lastOomAt ?? null),
  };
}
