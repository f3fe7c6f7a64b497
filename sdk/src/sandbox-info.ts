import type { NetworkPolicy } from "./network-policy.ts";
import type { AttestationWire, SandboxStateWire, SandboxWire } from "./wire.ts";

/** States of a sandbox; those that end in `-ing` are transitions under way. */
export type SandboxState = SandboxStateWire;

/** What the guest did after it was restored from the golden snapshot, so that no two clones are alike. */
export interface Attestation {
  generation: number;
  steps: {
    name: string;
    outcome: "done" | "not_needed" | "failed";
    detail: string | null;
    /** Microseconds. */
    durationUs: number | null;
  }[];
  clockOffsetMs: number | null;
  complete: boolean;
}

/** What the end of the TTL does. */
export type OnExpire = SandboxWire["on_expire"];
/** What the end of the idle timeout does. */
export type OnIdle = SandboxWire["on_idle"];

/** What the server knows of a sandbox. */
export interface SandboxInfo {
  id: string;
  name: string | null;
  state: SandboxState;
  /** Why it ended (`user`, `ttl_expired`, `oom`, `runtime_crashed`, ...); null while it lives. */
  reason: string | null;
  template: string;
  driver: string;
  tenant: string;
  persistent: boolean;
  metadata: Record<string, string>;
  /** Limit, cores. */
  cpu: number;
  memoryMb: number;
  diskMb: number;
  /** What it may reach. */
  network: NetworkPolicy;
  onExpire: OnExpire;
  /** Seconds without owner activity until `onIdle`; null for none. */
  idleTimeoutSeconds: number | null;
  onIdle: OnIdle;
  /** How long it is kept once hibernated; null for ever. */
  retentionSeconds: number | null;
  /** Whether work asked of it wakes it. */
  autoWake: boolean;
  /** Whether a hibernation keeps memory and processes where nothing else is said. */
  hibernateMemory: boolean;
  /** What it wakes from; null unless it is hibernated. Without `memory` it boots from its files. */
  image: { sizeBytes: number; createdAt: Date; memory: boolean } | null;
  /** Counts its restores. */
  generation: number;
  host: string | null;
  createdAt: Date;
  startedAt: Date | null;
  /** When its TTL ends it; null without a TTL. */
  expiresAt: Date | null;
  /** When it counts as idle unless something comes; null without an idle timeout and while it sleeps. */
  idleAt: Date | null;
  lastActivityAt: Date;
  endedAt: Date | null;
  attestation: Attestation | null;
}

export function sandboxInfoFromWire(wire: SandboxWire): SandboxInfo {
  return {
    id: wire.id,
    name: wire.name,
    state: wire.state,
    reason: wire.reason,
    template: wire.template,
    driver: wire.driver,
    tenant: wire.tenant,
    persistent: wire.persistent,
    metadata: wire.metadata,
    cpu: wire.cpu,
    memoryMb: wire.memory_mb,
    diskMb: wire.disk_mb,
    network: wire.network,
    onExpire: wire.on_expire,
    idleTimeoutSeconds: wire.idle_timeout_seconds,
    onIdle: wire.on_idle,
    retentionSeconds: wire.retention_seconds,
    autoWake: wire.auto_wake,
    hibernateMemory: wire.hibernate_memory,
    image: wire.image && {
      sizeBytes: wire.image.size_bytes,
      createdAt: new Date(wire.image.created_at),
      memory: wire.image.memory,
    },
    generation: wire.generation,
    host: wire.host,
    createdAt: new Date(wire.created_at),
    startedAt: dateOrNull(wire.started_at),
    expiresAt: dateOrNull(wire.expires_at),
    idleAt: dateOrNull(wire.idle_at),
    lastActivityAt: new Date(wire.last_activity_at),
    endedAt: dateOrNull(wire.ended_at),
    attestation: wire.attestation && attestationFromWire(wire.attestation),
  };
}

function attestationFromWire(wire: AttestationWire): Attestation {
  return {
    generation: wire.generation,
    steps: wire.steps.map(({ name, outcome, detail, duration_us: durationUs }) => ({
      name,
      outcome,
      detail: detail ?? null,
      durationUs: durationUs ?? null,
    })),
    clockOffsetMs: wire.clock_offset_ms ?? null,
    complete: wire.complete,
  };
}

/** A time of the wire (RFC 3339). */
export function dateOrNull(time: string | null | undefined): Date | null {
  return time === null || time === undefined ? null : new Date(time);
}
