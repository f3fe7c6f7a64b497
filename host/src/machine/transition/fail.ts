import type { EndReason } from "@torpor/protocol";
import { momentOf } from "../boot-moment.ts";
import type { HeldState } from "../held-state.ts";
import { noteMove } from "../meter.ts";

/**
 * A machine's processes have ended by themselves, or must be: ends what still runs of it and takes its network away. Its
 * files stay until it is ended, by its owner or a clock. One that has come to rest in its image meanwhile sleeps on.
 */
async function fail(held: HeldState, reason: EndReason, message: string): Promise<void> {
  while (held.phase.name === "moving") {
    held.phase.abort.abort(reason);
    await held.phase.done.catch(() => {});
  }
  if (held.phase.name === "failing") return held.phase.done;
  if (held.phase.name !== "running" && held.phase.name !== "paused") return;
  const { live } = held.phase;
  live.guest.close();
  held.meter(live);
  await standDown(held, live.handle.place.slot, reason, message);
}

/** The same for one of an earlier host process: what its slot holds is all that is left of it. */
export function failLeftover(held: HeldState, reason: EndReason, message: string): Promise<void> {
  // It ended while no host looked: what it held is counted until a host last saw it.
  return standDown(held, held.entry.slot, reason, message, held.entry.meter?.at);
}

function standDown(
  held: HeldState,
  slot: number | null,
  reason: EndReason,
  message: string,
  seenAt?: number,
): Promise<void> {
  const { entry, parts } = held;
  const { clock, journal, log } = parts;
  const known = entry.state === "failed"; // before this host was started
  held.clocks.disarm();
  if (!known) {
    const failedAt = clock.now();
    Object.assign(entry, {
      state: "failed",
      reason,
      message,
      endedAt: failedAt,
      failedMoment: momentOf(failedAt, clock),
      lastActivityAt: held.activity.lastAt,
    });
    noteMove(entry, failedAt, seenAt);
    journal.note(entry);
    log.warn({
      op: "machine.fail",
      outcome: reason,
      sandboxId: entry.id,
      tenant: entry.spec.tenant,
      message,
    });
  }
  const done = stopProcesses(held, slot).then(() => {
    if (!known) held.tell("failed");
  });
  held.phase = { name: "failing", done };
  return done;
}

/** Tried again by the watch when it does not work. Never rejects. */
export async function stopProcesses(held: HeldState, slot: number | null): Promise<void> {
  const { entry, parts } = held;
  let standing = slot !== null;
  try {
    if (slot !== null) await parts.slots.stop(slot);
    Object.assign(entry, { pid: null, startTime: null, address: null });
    standing = false;
  } catch (error) {
    parts.log.error({ op: "machine.stop", outcome: "left", sandboxId: entry.id, slot, err: error });
  }
  parts.journal.note(entry);
  held.phase = { name: "failed", slot, standing };
  held.clocks.arm();
}

/** {@link fail} for whom nobody waits. */
export function failInBackground(held: HeldState, reason: EndReason, message: string): void {
  void fail(held, reason, message);
}
