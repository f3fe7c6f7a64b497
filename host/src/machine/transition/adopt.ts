import type { EndReason } from "@torpor/protocol";
import type { MachineHandle } from "../../driver/driver.ts";
import { GuestClient } from "../guest-client.ts";
import type { HeldState } from "../held-state.ts";
import type { Live } from "../phase.ts";
import { unlockAgain } from "../unlock.ts";

/** A guest that stands answers at once; a hung one must not hold up the others. */
const ANSWER_TIMEOUT_MS = 5000;
/** One that an earlier host was photographing is stopped until the runtime has written its memory, large as it may be. */
const PHOTOGRAPHED_TIMEOUT_MS = 60_000;

/** Takes up a machine that an earlier host process left standing. @throws when its guest does not answer */
export async function adoptStanding(held: HeldState, handle: MachineHandle): Promise<void> {
  const { entry } = held;
  const { driver } = held.parts;
  const guest = new GuestClient(entry.address ?? "");
  const live: Live = { handle, guest, oomKills: driver.stats(handle).oomKills, lastOomAt: null };
  try {
    if (entry.state === "paused") {
      await driver.pause(handle); // it may have been let go on just before the commit of that
      held.settle("paused", live, "paused");
      return;
    }
    driver.resume(handle); // it may have been stopped between a checkpoint and its commit
    const photographed = entry.state === "hibernating" || entry.state === "snapshotting";
    const { locked } = await guest.waitUntilUp(photographed ? PHOTOGRAPHED_TIMEOUT_MS : ANSWER_TIMEOUT_MS);
    if (locked) await unlockAgain(entry, live, held.parts, new AbortController().signal);
    entry.image = null; // of a hibernation that did not come to its commit
    held.activity.touch("adoption by a restarted host");
    held.settle("running", live, "started");
  } catch (error) {
    guest.close();
    throw error;
  }
}

/** Gives up a machine of an earlier host process: what is left of it goes. */
export async function abandon(held: HeldState, reason: EndReason, message: string): Promise<void> {
  const { slots, images } = held.parts;
  held.clocks.disarm();
  if (held.entry.slot !== null) await slots.clear(held.entry.slot);
  if (held.entry.image !== null) await images.remove(held.entry.image.id);
  held.finish(reason, message);
}
