import { CodedError, type EndReason, type Machine } from "@torpor/protocol";
import type { HeldState } from "../held-state.ts";
import { toMachine } from "../machine-record.ts";

/** Ends it and removes every trace of it. Legal in every phase: pre-empts what is under way, joins an ending. */
export async function end(held: HeldState, reason: EndReason, message: string | null): Promise<Machine> {
  while (held.phase.name === "creating" || held.phase.name === "moving") {
    held.phase.abort.abort(reason);
    await held.phase.done.catch(() => {});
    // A creation that was aborted has ended it; one that came through just before it saw the signal has not.
    if (held.entry.state === "ended") return toMachine(held.entry);
  }
  if (held.phase.name === "ending") return held.phase.done;
  const done = takeDown(held, reason, message);
  held.phase = { name: "ending", done };
  return done;
}

async function takeDown(held: HeldState, reason: EndReason, message: string | null): Promise<Machine> {
  const { slots, images, log, clock, journal } = held.parts;
  const { phase, entry } = held;
  const live = "live" in phase ? phase.live : undefined;
  const left = phase.name === "hibernated" ? phase.uncleared : phase.name === "unended" ? phase.slot : null;
  const slot = live?.handle.place.slot ?? left;
  const startedAt = clock.monotonic();
  held.clocks.disarm();
  Object.assign(entry, { state: "ending", reason, message, lastActivityAt: held.activity.lastAt });
  journal.note(entry);
  live?.guest.close();
  try {
    if (slot !== null) await slots.clear(slot);
    if (entry.image !== null) await images.remove(entry.image.id);
  } catch (error) {
    // The journal says `ending`: the watch, or the next host, tries again. The machine stays visible, not half forgotten.
    log.error({ op: "machine.end", outcome: "failed", sandboxId: entry.id, reason, err: error });
    held.phase = { name: "unended", slot };
    throw new CodedError("internal", `machine ${entry.id} could not be ended: ${String(error)}`, {
      cause: error,
    });
  }
  held.finish(reason, message);
  log.info({
    op: "machine.end",
    outcome: reason,
    sandboxId: entry.id,
    tenant: entry.spec.tenant,
    durationMs: held.elapsedMs(startedAt),
  });
  return toMachine(entry);
}

/** The same for whom nobody waits. */
export function endInBackground(held: HeldState, reason: EndReason, message: string): void {
  end(held, reason, message).catch((error: unknown) => {
    held.parts.log.error(
      { op: "machine.end", sandboxId: held.entry.id, reason, err: error },
      "will be tried again by the watch",
    );
  });
}
