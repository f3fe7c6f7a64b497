import type { Machine, NetworkPolicy } from "@torpor/protocol";
import type { HeldState } from "../held-state.ts";

/**
 * Changes what a machine may reach. Written down first, so that a host that dies half-way enforces it when it is back; then
 * put in force, at once or as soon as the slot is known that it is on its way to.
 */
export async function setNetwork(held: HeldState, network: NetworkPolicy): Promise<Machine> {
  const { entry, parts } = held;
  const standing = ["running", "paused", "hibernated", "moving"].includes(held.phase.name);
  if (!standing) held.requireRunning();
  const before = entry.spec.network;
  entry.spec.network = network;
  try {
    parts.journal.commit(entry);
    await enforceNow(held, network);
  } catch (error) {
    // Unless another has changed it since.
    if (entry.spec.network === network) {
      entry.spec.network = before;
      parts.journal.note(entry);
    }
    throw error;
  }
  held.tell("network_changed");
  return held.show();
}

async function enforceNow(held: HeldState, network: NetworkPolicy): Promise<void> {
  while (held.phase.name === "moving" && held.phase.live === undefined) await held.phase.done.catch(() => {});
  const live = "live" in held.phase ? held.phase.live : undefined;
  // A later change than ours puts itself in force, and must not be undone.
  if (live !== undefined && held.entry.spec.network === network)
    await held.parts.router.setEgress(live.handle.place.slot, network);
}
