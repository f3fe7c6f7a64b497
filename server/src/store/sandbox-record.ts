import type { Selectable } from "kysely";
import { type Attestation, attestationSchema, type Sandbox, type SandboxState } from "@torpor/protocol";
import type { SandboxTable } from "./schema.ts";

declare const fromStore: unique symbol;

/** One sandbox as the store gave it out: holding it is the right to act on it. Never made from a request. */
export interface SandboxRecord {
  readonly [fromStore]: true;
  readonly id: string;
  readonly account: string;
  readonly tenant: string;
  readonly name: string | null;
  readonly state: SandboxState;
  readonly generation: number;
  readonly reason: string | null;
  readonly template: string;
  readonly driver: string | null;
  readonly metadata: Record<string, string>;
  readonly cpu: number;
  readonly memoryMb: number;
  readonly diskMb: number;
  readonly network: "internet" | "none";
  readonly onExpire: "destroy";
  readonly host: string;
  readonly attestation: Attestation | null;
  /** Times are Unix milliseconds. */
  readonly createdAt: number;
  readonly startedAt: number | null;
  readonly expiresAt: number | null;
  readonly lastActivityAt: number;
  readonly endedAt: number | null;
}

/** JSON column to value: SQLite gives text, PostgreSQL the parsed value. */
export function parseJsonColumn(value: unknown): unknown {
  return typeof value === "string" ? JSON.parse(value) : value;
}

/** Row to record. */
export function toSandboxRecord(row: Selectable<SandboxTable>): SandboxRecord {
  const record: Omit<SandboxRecord, typeof fromStore> = {
    id: row.id,
    account: row.account,
    tenant: row.tenant,
    name: row.name,
    state: row.state,
    generation: row.generation,
    reason: row.reason,
    template: row.template,
    driver: row.driver,
    metadata: parseJsonColumn(row.metadata) as Record<string, string>,
    cpu: row.cpu,
    memoryMb: row.memory_mb,
    diskMb: row.disk_mb,
    network: row.network,
    onExpire: row.on_expire,
    host: row.host,
    attestation:
      row.attestation === null
        ? null
        : (attestationSchema.safeParse(parseJsonColumn(row.attestation)).data ?? null),
    createdAt: row.created_at,
    startedAt: row.started_at,
    expiresAt: row.expires_at,
    lastActivityAt: row.last_activity_at,
    endedAt: row.ended_at,
  };
  return record as SandboxRecord;
}

const iso = (unixMs: number): string => new Date(unixMs).toISOString();
const isoOrNull = (unixMs: number | null): string | null => (unixMs === null ? null : iso(unixMs));

/** Record to what the API shows. */
export function toSandbox(record: SandboxRecord): Sandbox {
  return {
    id: record.id,
    name: record.name,
    state: record.state,
    reason: record.reason,
    template: record.template,
    driver: record.driver ?? "gvisor",
    tenant: record.tenant,
    persistent: false,
    metadata: record.metadata,
    cpu: record.cpu,
    memory_mb: record.memoryMb,
    disk_mb: record.diskMb,
    network: record.network,
    on_expire: record.onExpire,
    generation: record.generation,
    host: record.host,
    created_at: iso(record.createdAt),
    started_at: isoOrNull(record.startedAt),
    expires_at: isoOrNull(record.expiresAt),
    idle_at: null,
    last_activity_at: iso(record.lastActivityAt),
    ended_at: isoOrNull(record.endedAt),
    attestation: record.attestation,
  };
}
