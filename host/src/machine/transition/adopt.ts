import type { MachineHandle } from "../../driver/driver.ts";
import type { ImageManifest } from "../../image/image-store.ts";
import { momentOf } from "../boot-moment.ts";
import { GuestClient } from "../guest-client.ts";
import type { HeldState } from "../held-state.ts";
import type { Live } from "../phase.ts";
import { unlockAgain } from "../unlock.ts";
import { failInBackground } from "./fail.ts";
import { rest } from "./hibernate.ts";

/** A guest that was photographed when its host died is stopped until its memory is written, large as it may be. */
const PHOTOGRAPHED_TIMEOUT_MS = 60_000;
/** One that runs answers at once. One that does not is the business of the watch on agents, and holds nobody up here. */
const ANSWER_TIMEOUT_MS = 5000;

/** Takes up a machine that an earlier host process left standing, as its journal says it was. Waits for no guest. */
export async function adoptStanding(held: HeldState, handle: MachineHandle): Promise<void> {
  const { entry } = held;
  const { driver } = held.parts;
  const live: Live = {
    handle,
    guest: new GuestClient(entry.address ?? ""),
    oomKills: driver.stats(handle).oomKills,
    lastOomAt: null,
  };
  if (entry.state === "paused") {
    await driver.pause(handle); // it may have been let go on just before the commit of that
    held.settle("paused", live, "paused");
    return;
  }
  driver.resume(handle); // it may have been stopped between a checkpoint and its commit
  driver.limit(handle, { cpu: entry.spec.cpu, memoryMib: entry.spec.memory_mb }); // it may not be limited yet after one
  held.activity.touch("adopt", "adoption by a restarted host");
  if (entry.state === "running") {
    held.settle("running", live, "started");
    void unlockIfLocked(held, live);
    return;
  }
  held
    .move("running", live, (signal) => cutShort(held, live, signal))
    .catch((error: unknown) =>
      held.parts.log.error({ op: "machine.adopt", outcome: "failed", sandboxId: entry.id, err: error }),
    );
}

/** A snapshot or a sleep was under way, and is given up: the machine goes on, or else sleeps in the image that had come to be. */
async function cutShort(held: HeldState, live: Live, signal: AbortSignal): Promise<void> {
  const { entry } = held;
  try {
    const { locked } = await live.guest.waitUntilUp(PHOTOGRAPHED_TIMEOUT_MS, signal);
    if (locked) await unlockAgain(entry, live, held.parts, signal);
    await removeImages(held);
    entry.image = null;
    held.settle("running", live, "started");
  } catch (error) {
    const image = entry.state === "hibernating" && !signal.aborted ? await findImage(held) : undefined;
    if (image !== undefined) {
      live.guest.close();
      await adoptAsleep(held, image);
      return;
    }
    held.phase = { name: "running", live };
    const message = `its agent did not answer after a restart of the host: ${String(error)}`;
    if (!signal.aborted) failInBackground(held, "agent_unresponsive", message);
    throw error;
  }
}

/** The host may have died between a freeze that led to nothing and the end of it. */
async function unlockIfLocked(held: HeldState, live: Live): Promise<void> {
  try {
    const { locked } = await live.guest.waitUntilUp(ANSWER_TIMEOUT_MS);
    if (locked && held.phase.name === "running" && held.phase.live === live) await unlockInPlace(held, live);
  } catch (error) {
    held.parts.log.warn({ op: "machine.adopt", outcome: "no answer", sandboxId: held.entry.id, err: error });
  }
}

function unlockInPlace(held: HeldState, live: Live): Promise<void> {
  return held.move("running", live, async (signal) => {
    try {
      await unlockAgain(held.entry, live, held.parts, signal);
    } finally {
      held.phase = { name: "running", live };
      held.parts.journal.note(held.entry);
      held.clocks.arm();
    }
  });
}

/** The image of a sleep whose host died between the image's commit and the journal's. */
export async function findImage(held: HeldState): Promise<ImageManifest | undefined> {
  const { id, generation } = held.entry;
  const found = await held.parts.images.list(() => {});
  return found.find(
    (image) => image.kind === "hibernation" && image.machine_id === id && image.generation === generation,
  );
}

/** It goes on from where the image is: left there, it would be found in the place of the next one. */
async function removeImages({ entry, parts: { images, log } }: HeldState): Promise<void> {
  try {
    for (const { kind, id, machine_id: machineId } of await images.list(() => {}))
      if (kind === "hibernation" && machineId === entry.id) await images.remove(id);
  } catch (error) {
    log.error({ op: "image.remove", outcome: "left to the sweep", sandboxId: entry.id, err: error });
  }
}

/** It sleeps in an image that its journal does not know of yet. */
export function adoptAsleep(held: HeldState, image: ImageManifest): Promise<void> {
  const createdAt = Date.parse(image.created_at);
  const createdMoment = momentOf(createdAt, held.parts.clock);
  const { id, size_bytes: sizeBytes, memory } = image;
  held.entry.image = { id, sizeBytes, createdAt, createdMoment, memory };
  held.takeOffDoneTtl();
  return rest(held, held.entry.slot);
}
