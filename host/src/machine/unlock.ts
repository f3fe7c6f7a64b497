import { randomBytes } from "node:crypto";
import type { MachineEntry } from "../journal.ts";
import { RESOLV_CONF } from "../resolvers.ts";
import { type GuestIdentity, newHostKey } from "./guest-client.ts";
import type { MachineParts } from "./machine-parts.ts";
import type { Standing } from "./phase.ts";
import { withoutSecrets } from "./without-secrets.ts";

/** Processes of the user inside: a fork bomb ends here, far below what would hurt the agent. */
export const GUEST_PIDS_LIMIT = 1024;

/** How long from an init on the log is kept from telling its secrets, milliseconds: longer than any may take. */
const REDACTED_FOR_MS = 60_000;

/** What differs between the restores of one machine. */
type Incarnation = Pick<GuestIdentity, "machine_id" | "previous_host_key" | "generation" | "start">;

/**
 * Gives a freshly restored, locked machine its limits, egress and identity: after this the guest serves. Notes in the
 * entry where it stands and what it attested; commits nothing. An abort is not held up by a guest that hangs in init.
 *
 * @throws CodedError `guest_unavailable` when the guest does not attest; the machine must be cleared away then
 */
export async function unlock(
  entry: MachineEntry,
  machine: Standing,
  incarnation: Incarnation,
  parts: MachineParts,
  signal: AbortSignal,
): Promise<void> {
  const { handle } = machine;
  const { spec } = entry;
  Object.assign(entry, {
    slot: handle.place.slot,
    address: handle.place.address,
    pid: handle.process.pid,
    startTime: handle.process.startTime,
  });
  parts.driver.limit(handle, { cpu: spec.cpu, memoryMib: spec.memory_mb });
  await enforceNetwork(entry, handle.place.slot, parts);
  await introduce(entry, machine, incarnation, parts, signal);
}

/** Puts a fresh slot, which has plain internet, under the machine's network policy. */
export async function enforceNetwork(
  { spec }: MachineEntry,
  slot: number,
  { router }: Pick<MachineParts, "router">,
): Promise<void> {
  if (spec.network !== "internet") await router.setEgress(slot, spec.network);
}

/** Unlocks a machine that was only frozen: limits, egress, identity and generation are the ones it has. @throws as {@link unlock} */
export function unlockAgain(
  entry: MachineEntry,
  machine: Standing,
  parts: MachineParts,
  signal: AbortSignal,
): Promise<void> {
  const same = {
    generation: entry.generation,
    machine_id: entry.machineId,
    previous_host_key: entry.hostKey,
  };
  return introduce(entry, machine, same, parts, signal);
}

async function introduce(
  entry: MachineEntry,
  { guest }: Standing,
  incarnation: Incarnation,
  { clock, secretBox, secretValues }: MachineParts,
  signal: AbortSignal,
): Promise<void> {
  const { spec, settings } = entry;
  signal.throwIfAborted();
  signal.addEventListener("abort", () => guest.close(), { once: true });
  const hostKey = newHostKey();
  const secrets = secretBox.unseal(settings.secrets, spec.tenant);
  const values = Object.values(secrets);
  if (values.length > 0) clock.after(REDACTED_FOR_MS, secretValues.hold(values));
  const attestation = await guest.init(
    {
      ...incarnation,
      sandbox_id: entry.id,
      template: spec.template,
      hostname: entry.id,
      env: { ...settings.env, ...secrets },
      access_token: entry.accessToken,
      host_key: hostKey,
      entropy_base64: randomBytes(64).toString("base64"),
      resolv_conf: RESOLV_CONF,
      default_user: settings.user,
      default_workdir: settings.workdir,
      pids_limit: GUEST_PIDS_LIMIT,
      ...(entry.deadlineUnixMs === null ? {} : { deadline_unix_ms: entry.deadlineUnixMs }),
      tenant: spec.tenant,
    },
    withoutSecrets(values),
  );
  signal.throwIfAborted();
  Object.assign(entry, { attestation, hostKey, generation: incarnation.generation });
  entry.startedAt ??= clock.now();
}
