import { CodedError, type EndReason, type Machine } from "@torpor/protocol";
import type { HeldState } from "../held-state.ts";
import { endedError, toMachine } from "../machine-record.ts";
import { originOf } from "../origin.ts";
import type { Standing } from "../phase.ts";
import { unlock } from "../unlock.ts";

/** Makes the machine of a fresh journal entry. @throws CodedError when it cannot be made; nothing stays then */
export function create(held: HeldState): Promise<Machine> {
  const abort = new AbortController();
  const done = make(held, abort);
  held.phase = { name: "creating", abort, done };
  return done;
}

async function make(held: HeldState, abort: AbortController): Promise<Machine> {
  const { entry, parts } = held;
  const { clock, log, driver } = parts;
  const startedAt = clock.monotonic();
  let made: Standing | undefined;
  try {
    const { machine, identity } = await originOf(entry, parts, abort.signal);
    made = machine;
    await unlock(entry, machine, { ...identity, generation: entry.generation }, parts, abort.signal);
    held.settle(
      "running",
      { ...machine, oomKills: driver.stats(machine.handle).oomKills, lastOomAt: null },
      "started",
    );
    log.info({
      op: "machine.create",
      outcome: "created",
      sandboxId: entry.id,
      tenant: entry.spec.tenant,
      template: entry.spec.template,
      source: entry.source,
      slot: entry.slot,
      durationMs: held.elapsedMs(startedAt),
    });
    return held.show();
  } catch (error) {
    const { aborted } = abort.signal;
    const reason: EndReason = aborted ? (abort.signal.reason as EndReason) : "create_failed";
    await undo(held, made, reason, error instanceof Error ? error.message : String(error));
    const isCallers = aborted || (error instanceof CodedError && error.status < 500);
    log[isCallers ? "info" : "error"]({
      op: "machine.create",
      outcome: reason,
      sandboxId: entry.id,
      tenant: entry.spec.tenant,
      durationMs: held.elapsedMs(startedAt),
      err: error,
    });
    if (aborted) throw endedError(toMachine(entry));
    throw error;
  }
}

/** Takes down what a failed creation had made. When that fails too, the machine stays, `ending`, for the watch. */
async function undo(
  held: HeldState,
  made: Standing | undefined,
  reason: EndReason,
  message: string,
): Promise<void> {
  if (made !== undefined) {
    const { slot } = made.handle.place;
    made.guest.close();
    try {
      await held.parts.slots.clear(slot);
    } catch (error) {
      held.parts.log.error({
        op: "machine.create",
        outcome: "left",
        sandboxId: held.entry.id,
        slot,
        err: error,
      });
      Object.assign(held.entry, { state: "ending", reason, message });
      held.phase = { name: "unended", slot };
      held.parts.journal.note(held.entry);
      return;
    }
  }
  held.finish(reason, message);
}
