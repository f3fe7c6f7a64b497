import { randomBytes } from "node:crypto";
import type { MachineEntry } from "../journal.ts";
import type { GuestIdentity } from "./guest-client.ts";
import type { MachineParts } from "./machine-parts.ts";
import type { Standing } from "./phase.ts";

/** Processes of the user inside: a fork bomb ends here, far below what would hurt the agent. */
export const GUEST_PIDS_LIMIT = 1024;

/** What differs between the restores of one machine. */
export type Incarnation = Pick<GuestIdentity, "machine_id" | "previous_host_key" | "generation">;

/**
 * Gives a locked machine its limits, egress and identity: after this the guest serves. Notes in the entry where it stands
 * and what it attested; commits nothing. An abort is not held up by a guest that hangs in init.
 *
 * @throws CodedError `guest_unavailable` when the guest does not attest; the machine must be cleared away then
 */
export async function unlock(
  entry: MachineEntry,
  { handle, guest }: Standing,
  incarnation: Incarnation,
  { driver, router, resolvConf, clock }: MachineParts,
  signal: AbortSignal,
): Promise<void> {
  const { spec, settings } = entry;
  signal.addEventListener("abort", () => guest.close(), { once: true });
  Object.assign(entry, {
    slot: handle.place.slot,
    address: handle.place.address,
    pid: handle.process.pid,
    startTime: handle.process.startTime,
  });
  driver.limit(handle, { cpu: spec.cpu, memoryMib: spec.memory_mb });
  if (spec.network === "none") await router.setEgress(handle.place.slot, "none");
  signal.throwIfAborted();
  const hostKey = randomBytes(24).toString("hex");
  entry.attestation = await guest.init({
    ...incarnation,
    sandbox_id: entry.id,
    template: spec.template,
    hostname: entry.id,
    env: settings.env,
    access_token: entry.accessToken,
    host_key: hostKey,
    entropy_base64: randomBytes(64).toString("base64"),
    resolv_conf: spec.network === "none" ? "" : resolvConf,
    default_user: settings.user,
    default_workdir: settings.workdir,
    pids_limit: GUEST_PIDS_LIMIT,
    ...(entry.deadlineUnixMs === null ? {} : { deadline_unix_ms: entry.deadlineUnixMs }),
    tenant: spec.tenant,
  });
  signal.throwIfAborted();
  Object.assign(entry, { hostKey, generation: incarnation.generation });
  entry.startedAt ??= clock.now();
}

/** The identity a machine has already, to unlock it again after a freeze. */
export function sameIncarnation(entry: MachineEntry): Incarnation {
  return {
    generation: entry.generation,
    machine_id: entry.machineId,
    previous_host_key: entry.hostKey,
  };
}
