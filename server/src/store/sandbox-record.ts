import type { Selectable } from "kysely";
import {
  type Attestation,
  attestationSchema,
  CodedError,
  type NetworkPolicy,
  type OnExpire,
  type OnIdle,
  type Sandbox,
  type SandboxState,
} from "@torpor/protocol";
import { type E2bSettings, e2bSettingsSchema } from "../e2b/e2b-settings.ts";
import type { Holdings } from "../ledger/binding-changes.ts";
import type { Metered } from "../usage/metered.ts";
import { parseJsonColumn } from "./json-column.ts";
import { readNetworkColumn } from "./network-column.ts";
import { readMeterColumns } from "./usage-column.ts";
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
  readonly network: NetworkPolicy;
  readonly onExpire: OnExpire;
  readonly persistent: boolean;
  readonly idleTimeoutSeconds: number | null;
  readonly onIdle: OnIdle;
  readonly retentionSeconds: number | null;
  readonly autoWake: boolean;
  readonly hibernateMemory: boolean;
  /** What it wakes from; null unless it is hibernated. */
  readonly image: Sandbox["image"];
  readonly host: string;
  readonly attestation: Attestation | null;
  /** Times are Unix milliseconds. */
  readonly createdAt: number;
  readonly startedAt: number | null;
  readonly expiresAt: number | null;
  readonly lastActivityAt: number;
  readonly endedAt: number | null;
  /** The absolute end, whatever its clocks say; null for none. */
  readonly maxLifetimeAt: number | null;
  readonly holdings: Holdings;
  readonly metered: Metered;
  /** Who made it, and who asked for its end; null when that is not known. */
  readonly createdBy: string | null;
  readonly endedBy: string | null;
  /** Null of one that was not made through E2B's API. */
  readonly e2b: E2bSettings | null;
}

/**
 * Row to record.
 *
 * @throws CodedError internal naming the sandbox, when a column of its row does not hold what it should: that sandbox
 *   cannot be dealt with until a person has looked, and no other is the worse for it.
 */
export function toSandboxRecord(row: Selectable<SandboxTable>): SandboxRecord {
  try {
    return readSandboxRow(row);
  } catch (cause) {
    throw new CodedError(
      "internal",
      `the record of sandbox ${row.id} cannot be read (${cause instanceof Error ? cause.message : String(cause)}); restore the store from a backup, or mend the row`,
      { cause, details: { sandbox_id: row.id } },
    );
  }
}

function readSandboxRow(row: Selectable<SandboxTable>): SandboxRecord {
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
    network: readNetworkColumn(row.network),
    onExpire: row.on_expire,
    persistent: row.persistent !== 0,
    idleTimeoutSeconds: row.idle_timeout_seconds,
    onIdle: row.on_idle,
    retentionSeconds: row.retention_seconds,
    autoWake: row.auto_wake !== 0,
    hibernateMemory: row.hibernate_memory !== 0,
    // Earlier versions kept memory always, and did not say so.
    image: row.image === null ? null : { memory: true, ...(parseJsonColumn(row.image) as KeptImage) },
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
    maxLifetimeAt: row.max_lifetime_at,
    holdings: toHoldings(row),
    metered: readMeterColumns(row),
    createdBy: row.created_by,
    endedBy: row.ended_by,
    e2b: row.e2b === null ? null : e2bSettingsSchema.parse(parseJsonColumn(row.e2b)),
  };
  return record as SandboxRecord;
}

/** What its columns say that it holds. */
export function toHoldings(
  row: Pick<Selectable<SandboxTable>, "incarnation" | "machine_id" | "address" | "image_id">,
): Holdings {
  return {
    incarnation: row.incarnation,
    machineId: row.machine_id,
    address: row.address,
    imageId: row.image_id,
  };
}

const iso = (unixMs: number): string => new Date(unixMs).toISOString();
const isoOrNull = (unixMs: number | null): string | null => (unixMs === null ? null : iso(unixMs));

/** When it counts as idle unless something comes or holds it; null when nothing of it counts down. */
function idleAt({ state, onIdle, idleTimeoutSeconds }: SandboxRecord, lastActivityAt: number): number | null {
  if (state !== "running" || onIdle === "none" || idleTimeoutSeconds === null) return null;
  return lastActivityAt + idleTimeoutSeconds * 1_000;
}

/** Record to what the API shows. `lastActivityAt`: when more is known than is written. */
export function toSandbox(record: SandboxRecord, lastActivityAt: number = record.lastActivityAt): Sandbox {
  return {
    id: record.id,
    name: record.name,
    state: record.state,
    reason: record.reason,
    template: record.template,
    driver: record.driver ?? "gvisor",
    tenant: record.tenant,
    persistent: record.persistent,
    metadata: record.metadata,
    cpu: record.cpu,
    memory_mb: record.memoryMb,
    disk_mb: record.diskMb,
    network: record.network,
    on_expire: record.onExpire,
    idle_timeout_seconds: record.idleTimeoutSeconds,
    on_idle: record.onIdle,
    retention_seconds: record.retentionSeconds,
    auto_wake: record.autoWake,
    hibernate_memory: record.hibernateMemory,
    image: record.image,
    generation: record.generation,
    host: record.host,
    created_at: iso(record.createdAt),
    started_at: isoOrNull(record.startedAt),
    expires_at: isoOrNull(record.expiresAt),
    idle_at: isoOrNull(idleAt(record, lastActivityAt)),
    last_activity_at: iso(lastActivityAt),
    ended_at: isoOrNull(record.endedAt),
    attestation: record.attestation,
  };
}

type KeptImage = Omit<NonNullable<Sandbox["image"]>, "memory">;

/** Whether work asked of it wakes it: not one that has lost its processes, which whoever asks may not know. */
export function wakesForWork({ autoWake, image }: Pick<SandboxRecord, "autoWake" | "image">): boolean {
  return autoWake && image?.memory !== false;
}
