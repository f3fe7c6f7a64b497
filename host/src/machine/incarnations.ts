import type { Clock, Log } from "@torpor/base";
import type { Incarnation } from "@torpor/protocol";
import type { MachinePlace } from "../driver/driver.ts";
import type { MachineEntry } from "../journal.ts";
import type { MachineJournal } from "./machine-journal.ts";

/** The server reads them at every move, so it is never this far behind. */
const KEPT = 32;

interface Parts {
  journal: Pick<MachineJournal, "commit" | "nextTurn">;
  clock: Clock;
  log: Log;
}

/**
 * Commits that a machine is given a physical one, before anything of the tenant's goes into that: after a crash the journal
 * knows of every one that may have held a tenant's memory.
 *
 * @throws when it cannot be written
 */
export function bindIncarnation(
  entry: MachineEntry,
  place: Pick<MachinePlace, "incarnationId" | "address">,
  origin: Pick<Incarnation, "source" | "from" | "generation">,
  parts: Parts,
): void {
  releaseIncarnation(entry, parts); // there is one at a time: the one before is gone
  const earlier = entry.incarnations ?? [];
  const bound: Incarnation = {
    number: (earlier.at(-1)?.number ?? 0) + 1,
    id: place.incarnationId,
    address: place.address,
    ...origin,
    bound_at: new Date(parts.clock.now()).toISOString(),
    bound_turn: parts.journal.nextTurn(),
    released_at: null,
    released_turn: null,
  };
  entry.incarnations = [...earlier, bound].slice(-KEPT);
  parts.journal.commit(entry);
}

/**
 * Notes in a machine's entry that nothing is left of the physical one it had: no process, no network, no file. To be
 * called as soon as that is so, since its slot may be given away from then on.
 */
export function releaseIncarnation(
  entry: MachineEntry,
  { journal, clock, log }: Pick<Parts, "clock" | "log"> & { journal: Pick<MachineJournal, "nextTurn"> },
): void {
  const newest = entry.incarnations?.at(-1);
  if (newest === undefined || newest.released_at !== null) return;
  let turn: number | null = null;
  try {
    turn = journal.nextTurn();
  } catch (error) {
    // An end is not put off because the journal cannot be written.
    log.error({ op: "machine.release", outcome: "not counted", sandboxId: entry.id, err: error });
  }
  const released = { ...newest, released_at: new Date(clock.now()).toISOString(), released_turn: turn };
  entry.incarnations = [...(entry.incarnations ?? []).slice(0, -1), released];
}
