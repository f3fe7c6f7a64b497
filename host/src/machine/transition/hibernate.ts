import type { MachineSnapshot } from "@torpor/protocol";
import type { ImageManifest } from "../../image/image-store.ts";
import type { HeldState } from "../held-state.ts";
import { releaseIncarnation } from "../incarnations.ts";
import type { Live } from "../phase.ts";
import { momentOf } from "../boot-moment.ts";
import { newImageId } from "../sleep.ts";
import { type SnapshotOptions, toSnapshot } from "../snapshots.ts";
import { unlockAgain } from "../unlock.ts";
import { failInBackground } from "./fail.ts";

/** A guest that was frozen a moment ago answers at once. */
const ANSWER_TIMEOUT_MS = 5000;
/** What a freeze cuts off is broken for its caller, but for streams, which are gone on with: so much is waited for others. */
const FINISH_WITHIN_MS = 2000;

/** So many children of a fork are made beside each other. */
const COPIES_AT_ONCE = 8;

/**
 * Puts a running machine to storage; a failure leaves it running.
 *
 * @param memory false: its files alone; its processes end with it
 */
export function hibernate(held: HeldState, live: Live, memory: boolean, cause?: "ttl"): Promise<void> {
  return held.move("hibernated", live, (signal) => fallAsleep(held, live, memory, signal), { cause, memory });
}

async function fallAsleep(held: HeldState, live: Live, memory: boolean, signal: AbortSignal): Promise<void> {
  const { entry } = held;
  const { sleep, images, journal, clock, log } = held.parts;
  const startedAt = clock.monotonic();
  const id = newImageId();
  let putTtlBack = (): void => {};
  let image: ImageManifest;
  try {
    held.meter(live);
    entry.state = "hibernating";
    journal.commit(entry);
    await held.activity.untilBriefEnded(FINISH_WITHIN_MS, signal);
    image = await sleep.write(entry, live, { id, kind: "hibernation", name: null, memory }, signal);
    entry.state = "hibernated";
    const createdAt = clock.now();
    const createdMoment = momentOf(createdAt, clock);
    entry.image = { id, sizeBytes: image.size_bytes, createdAt, createdMoment, memory };
    putTtlBack = held.takeOffDoneTtl();
    entry.lastActivityAt = held.activity.lastAt;
    entry.tookMs = { ...entry.tookMs, hibernate: held.elapsedMs(startedAt) };
    journal.commit(entry);
  } catch (error) {
    entry.image = null;
    putTtlBack();
    await backToRunning(held, live, signal);
    await images
      .remove(id)
      .catch((cause: unknown) => log.error({ op: "image.remove", image: id, err: cause }));
    throw error;
  }
  live.guest.close();
  await rest(held, live.handle.place.slot);
  held.tell("hibernated");
  log.info({
    op: "machine.hibernate",
    outcome: "hibernated",
    sandboxId: entry.id,
    tenant: entry.spec.tenant,
    bytes: image.size_bytes,
    memory,
    durationMs: held.elapsedMs(startedAt),
  });
}

/**
 * It sleeps in its image; what runs of it in `slot` ends, now or by the watch, and the rest of the slot goes by itself. The
 * journal must not name the slot any more: it will be another's.
 */
export async function rest(held: HeldState, slot: number | null): Promise<void> {
  const { slots, journal, log } = held.parts;
  let uncleared = slot;
  try {
    if (slot !== null) await slots.release(slot);
    uncleared = null;
    releaseIncarnation(held.entry, held.parts);
  } catch (error) {
    log.error(
      { op: "machine.clear", outcome: "left", sandboxId: held.entry.id, slot, err: error },
      "will be tried again by the watch",
    );
  }
  Object.assign(held.entry, { state: "hibernated", slot: null, pid: null, startTime: null, address: null });
  journal.note(held.entry);
  held.phase = { name: "hibernated", uncleared };
  held.clocks.arm();
}

/** Writes a snapshot of a running machine, which then goes on. The same snapshot id again answers the one that exists. */
export async function snapshot(
  held: HeldState,
  live: Live,
  snapshotId: string,
  { name = null, copies = 0, defaults }: SnapshotOptions,
): Promise<MachineSnapshot> {
  const { sleep, journal, images } = held.parts;
  let writing: Promise<ImageManifest> | undefined;
  await held.move("snapshot", live, async (signal) => {
    try {
      const known = images.committing(snapshotId) ?? (await images.find(snapshotId));
      if (known !== undefined) {
        writing = Promise.resolve(known);
        return;
      }
      held.entry.state = "snapshotting";
      journal.commit(held.entry);
      if (copies > 0) sleep.expectCopies(held.entry, Math.min(copies, COPIES_AT_ONCE));
      await held.activity.untilBriefEnded(FINISH_WITHIN_MS, signal);
      const kind = copies > 0 ? "fork" : "snapshot";
      const image = { id: snapshotId, kind, name, defaults, memory: true } as const;
      // It goes on as soon as its memory is copied; whether the copy is whole and durable is waited for below.
      await new Promise<void>((resolve, reject) => {
        writing = sleep.write(held.entry, live, image, signal, resolve);
        writing.catch(reject);
      });
    } finally {
      held.activity.touch("snapshot");
      await backToRunning(held, live, signal);
    }
  });
  if (writing === undefined) throw new Error(`nothing writes snapshot ${snapshotId}`);
  return toSnapshot(await writing);
}

/** After a freeze that led to nothing, or a snapshot: the same machine, the same generation, unlocked again. */
async function backToRunning(held: HeldState, live: Live, signal: AbortSignal): Promise<void> {
  const { entry } = held;
  const { driver, log, journal } = held.parts;
  let failure: string | undefined;
  try {
    driver.resume(live.handle);
    if (!signal.aborted) {
      const { locked } = await live.guest.waitUntilUp(ANSWER_TIMEOUT_MS, signal);
      if (locked) await unlockAgain(entry, live, held.parts, signal);
    }
  } catch (error) {
    failure = `it could not be unlocked after a snapshot: ${String(error)}`;
    log.error({ op: "machine.unlock", outcome: "failed", sandboxId: entry.id, err: error });
  }
  entry.state = "running";
  held.phase = { name: "running", live };
  journal.note(entry);
  if (failure !== undefined && !signal.aborted) failInBackground(held, "runtime_crashed", failure);
  else held.clocks.arm();
}
