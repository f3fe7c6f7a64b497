import type { NetworkPolicy } from "@torpor/protocol";
import type { BrokenEntry, MachineEntry } from "../journal.ts";
import { isAlive } from "../process-identity.ts";

/**
 * What the slots of machines that an earlier host process left may reach, as its journal says. An entry whose process is gone
 * says nothing of its slot: another may have it, when a full disk kept the one that left it from being written.
 *
 * @param lives whether the process of an entry is still there
 */
export function egressLeft(
  { entries, broken }: { entries: readonly MachineEntry[]; broken: readonly BrokenEntry[] },
  lives: (entry: MachineEntry) => boolean = hasProcess,
): Map<number, NetworkPolicy> {
  const egress = new Map<number, NetworkPolicy>();
  for (const entry of entries)
    if (entry.slot !== null && lives(entry)) egress.set(entry.slot, entry.spec.network);
  // What it may reach is not known: nothing, then.
  for (const { slot } of broken) if (typeof slot === "number") egress.set(slot, "none");
  return egress;
}

function hasProcess({ pid, startTime }: MachineEntry): boolean {
  return pid !== null && startTime !== null && isAlive({ pid, startTime });
}
