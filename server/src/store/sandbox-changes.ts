import type { Updateable } from "kysely";
import type { Attestation, NetworkPolicy, OnExpire, OnIdle, Sandbox } from "@torpor/protocol";
import type { ToldHoldings } from "../ledger/binding-changes.ts";
import type { ToldUse } from "../usage/metered.ts";
import { networkColumn } from "./network-column.ts";
import type { SandboxTable } from "./schema.ts";

/** What may change together with a state. */
export interface SandboxChanges {
  generation?: number;
  image?: Sandbox["image"];
  onExpire?: OnExpire;
  persistent?: boolean;
  idleTimeoutSeconds?: number | null;
  onIdle?: OnIdle;
  retentionSeconds?: number | null;
  autoWake?: boolean;
  hibernateMemory?: boolean;
  network?: NetworkPolicy;
  reason?: string;
  driver?: string;
  attestation?: Attestation | null;
  startedAt?: number;
  expiresAt?: number | null;
  endedAt?: number;
  /** What the host says that the sandbox holds: entries of the ledger where it differs from what is on record. */
  told?: ToldHoldings;
  /** What its host tells of what it held and used: intervals of its meter where that is more than is on record. */
  use?: ToldUse;
  /** Who asked for this: id of a key, or `system:` and what of ours. Default: the host. */
  actor?: string;
  /** Who asked for its end. */
  endedBy?: string;
  /** How long the move took on its host, for its event. */
  tookMs?: number;
}

/** What of the changes stands in columns of its own: all but what ledger, meter and event are told of. */
export function changedColumns(changes: SandboxChanges): Updateable<SandboxTable> {
  const set: Updateable<SandboxTable> = {};
  if (changes.reason !== undefined) set.reason = changes.reason;
  if (changes.driver !== undefined) set.driver = changes.driver;
  if (changes.attestation !== undefined)
    set.attestation = changes.attestation === null ? null : JSON.stringify(changes.attestation);
  if (changes.startedAt !== undefined) set.started_at = changes.startedAt;
  if (changes.expiresAt !== undefined) set.expires_at = changes.expiresAt;
  if (changes.endedAt !== undefined) set.ended_at = changes.endedAt;
  if (changes.endedBy !== undefined) set.ended_by = changes.endedBy;
  if (changes.generation !== undefined) set.generation = changes.generation;
  if (changes.image !== undefined) set.image = changes.image === null ? null : JSON.stringify(changes.image);
  if (changes.onExpire !== undefined) set.on_expire = changes.onExpire;
  if (changes.persistent !== undefined) set.persistent = changes.persistent ? 1 : 0;
  if (changes.idleTimeoutSeconds !== undefined) set.idle_timeout_seconds = changes.idleTimeoutSeconds;
  if (changes.onIdle !== undefined) set.on_idle = changes.onIdle;
  if (changes.retentionSeconds !== undefined) set.retention_seconds = changes.retentionSeconds;
  if (changes.autoWake !== undefined) set.auto_wake = changes.autoWake ? 1 : 0;
  if (changes.hibernateMemory !== undefined) set.hibernate_memory = changes.hibernateMemory ? 1 : 0;
  if (changes.network !== undefined) set.network = networkColumn(changes.network);
  return set;
}
