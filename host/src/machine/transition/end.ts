import { CodedError, type EndReason, type Machine } from "@torpor/protocol";
import { leftUntil } from "../boot-moment.ts";
import type { HeldState } from "../held-state.ts";
import { releaseIncarnation } from "../incarnations.ts";
import { toMachine } from "../machine-record.ts";
import type { Phase } from "../phase.ts";

/** Ends it and removes every trace of it. Legal in every phase: pre-empts what is under way, joins an ending. */
export async function end(held: HeldState, reason: EndReason, message: string | null): Promise<Machine> {
  while (held.phase.name === "creating" || held.phase.name === "moving" || held.phase.name === "failing") {
    if (held.phase.name !== "failing") held.phase.abort.abort(reason);
    await held.phase.done.catch(() => {});
    // A creation that was aborted has ended it; one that came through just before it saw the signal has not.
    if (held.entry.state === "ended") return toMachine(held.entry);
  }
  if (held.phase.name === "ending") return held.phase.done;
  // Of one that has failed, that is why it has ended: removing what was left of it does not change that.
  const { entry } = held;
  const done =
    held.phase.name === "failed"
      ? takeDown(held, entry.reason ?? reason, entry.message ?? message)
      : takeDown(held, reason, message);
  held.phase = { name: "ending", done };
  return done;
}

async function takeDown(held: HeldState, reason: EndReason, message: string | null): Promise<Machine> {
  const { slots, images, log, clock, journal } = held.parts;
  const { phase, entry } = held;
  const live = "live" in phase ? phase.live : undefined;
  const slot = live?.handle.place.slot ?? slotLeft(phase);
  const startedAt = clock.monotonic();
  const { deadlineMoment } = entry;
  const dueForMs =
    reason === "ttl_expired" && deadlineMoment != null
      ? Math.round(-leftUntil(deadlineMoment, clock))
      : undefined;
  let deadAfterMs: number | undefined;
  held.clocks.disarm();
  if (live !== undefined) held.meter(live);
  Object.assign(entry, { state: "ending", reason, message, lastActivityAt: held.activity.lastAt });
  journal.note(entry);
  live?.guest.close();
  try {
    // The moment it has ended is that of its last process, not of the last trace.
    if (slot !== null)
      await slots.clear(slot, () => {
        entry.endedAt ??= clock.now();
        deadAfterMs = held.elapsedMs(startedAt);
      });
    releaseIncarnation(entry, held.parts);
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
    dueForMs,
    deadAfterMs,
    durationMs: held.elapsedMs(startedAt),
  });
  return toMachine(entry);
}

function slotLeft(phase: Phase): number | null {
  if (phase.name === "hibernated") return phase.uncleared;
  return phase.name === "unended" || phase.name === "failed" ? phase.slot : null;
}

/** Ends what an earlier host process was making or ending: whatever is left of it goes. */
export function endLeftover(held: HeldState, reason: EndReason, message: string): void {
  held.phase = { name: "unended", slot: held.entry.slot };
  endInBackground(held, reason, message);
}

/** {@link end} for whom nobody waits. */
export function endInBackground(held: HeldState, reason: EndReason, message: string): void {
  end(held, reason, message).catch((error: unknown) => {
    held.parts.log.error(
      { op: "machine.end", sandboxId: held.entry.id, reason, err: error },
      "will be tried again by the watch",
    );
  });
}
