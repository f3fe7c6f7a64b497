import { CodedError } from "@torpor/protocol";
import type { MachinePlace } from "../driver/driver.ts";
import type { MachineEntry } from "../journal.ts";
import type { GuestIdentity } from "./guest-client.ts";
import { bindIncarnation } from "./incarnations.ts";
import type { MachineParts } from "./machine-parts.ts";
import type { Live } from "./phase.ts";
import { requireSnapshot, snapshotNotFound } from "./snapshots.ts";
import { enforceNetwork } from "./unlock.ts";

/** A machine that is to become one of the host's, still locked, and what its init must be told. */
export interface Origin {
  machine: Pick<Live, "handle" | "guest">;
  identity: Pick<GuestIdentity, "machine_id" | "previous_host_key">;
}

/** Gets the machine of a fresh entry: from its template's pool, or from a snapshot. Notes in the entry what it came from. */
export function originOf(entry: MachineEntry, parts: MachineParts, signal: AbortSignal): Promise<Origin> {
  const { from_snapshot: snapshotId } = entry.spec;
  return snapshotId === null
    ? fromTemplate(entry, parts, signal)
    : fromSnapshot(entry, snapshotId, parts, signal);
}

async function fromTemplate(entry: MachineEntry, parts: MachineParts, signal: AbortSignal): Promise<Origin> {
  const { source, slots } = parts;
  const acquired = await source.acquire(entry.spec.template, entry.spec.disk_mb, signal);
  const { env, user, workdir } = acquired.template.manifest;
  Object.assign(entry, {
    templateHash: acquired.template.hash,
    source: acquired.source,
    settings: { ...entry.settings, env: { ...env, ...entry.spec.env }, user, workdir },
  });
  const pristine = { source: acquired.source, from: null, generation: entry.generation };
  try {
    bindIncarnation(entry, acquired.handle.place, pristine, parts);
  } catch (error) {
    acquired.guest.close();
    await slots.clear(acquired.handle.place.slot);
    throw error;
  }
  const key = { previous_host_key: acquired.hostKey };
  if (acquired.machineId === undefined)
    return { machine: acquired, identity: { ...key, machine_id: entry.machineId } };
  entry.machineId = acquired.machineId; // given while it waited
  return { machine: acquired, identity: key };
}

async function fromSnapshot(
  entry: MachineEntry,
  snapshotId: string,
  parts: MachineParts,
  signal: AbortSignal,
): Promise<Origin> {
  const { images, sleep, secretBox } = parts;
  const manifest = await requireSnapshot(images, snapshotId);
  // A snapshot restores only into its own tenant; another's is as good as none.
  if (manifest.tenant !== entry.spec.tenant) throw snapshotNotFound(snapshotId);
  if (entry.spec.disk_mb !== manifest.disk_mb) {
    throw new CodedError(
      "invalid_request",
      `disk_mb is ${entry.spec.disk_mb}, but snapshot ${snapshotId} has a disk of ${manifest.disk_mb}; leave it out`,
      { details: { field: "disk_mb" } },
    );
  }
  const { tenant, env } = entry.spec;
  const secrets = {
    ...secretBox.unseal(manifest.settings.secrets, tenant),
    ...secretBox.unseal(entry.settings.secrets, tenant),
  };
  const settings = {
    ...manifest.settings,
    env: { ...manifest.settings.env, ...env },
    secrets: secretBox.seal(secrets, tenant),
  };
  Object.assign(entry, { templateHash: manifest.template_hash, source: "snapshot", settings });
  const origin = { source: "snapshot", from: snapshotId, generation: entry.generation } as const;
  const takePlace = (place: MachinePlace): Promise<void> => {
    bindIncarnation(entry, place, origin, parts);
    return enforceNetwork(entry, place.slot, parts);
  };
  return {
    machine: await sleep.restore(manifest, signal, takePlace),
    identity: { machine_id: entry.machineId, previous_host_key: manifest.host_key },
  };
}
