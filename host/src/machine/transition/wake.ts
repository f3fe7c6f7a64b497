import { CodedError } from "@torpor/protocol";
import type { MachinePlace } from "../../driver/driver.ts";
import { checkMemory } from "../capacity.ts";
import type { HeldState } from "../held-state.ts";
import { bindIncarnation } from "../incarnations.ts";
import type { Restored } from "../sleep.ts";
import { enforceNetwork, unlock } from "../unlock.ts";
import { rest } from "./hibernate.ts";

/**
 * Wakes a sleeping machine: next generation, same id; a failure leaves it asleep.
 *
 * @param uncleared what an earlier incarnation left standing
 */
export function wake(held: HeldState, uncleared: number | null): Promise<void> {
  return held.move("running", undefined, (signal) => wakeUp(held, signal, uncleared));
}

async function wakeUp(held: HeldState, signal: AbortSignal, uncleared: number | null): Promise<void> {
  const { entry } = held;
  const { sleep, images, slots, clock, log, headroom } = held.parts;
  const { image } = entry;
  const startedAt = clock.monotonic();
  let slot = uncleared;
  let restored: Restored | undefined;
  let putTtlBack = (): void => {};
  try {
    if (slot !== null) await slots.clear(slot); // never two incarnations at once
    slot = null;
    checkMemory(headroom());
    const manifest = await images.find(image?.id ?? "");
    if (manifest === undefined)
      throw new CodedError("image_corrupt", `the image that sandbox ${entry.id} sleeps in is gone`);
    entry.state = "waking"; // committed with the place it gets
    const origin = { source: "image", from: manifest.id, generation: entry.generation + 1 } as const;
    const takePlace = async (place: MachinePlace): Promise<void> => {
      bindIncarnation(entry, place, origin, held.parts);
      await enforceNetwork(entry, place.slot, held.parts);
    };
    restored = manifest.memory
      ? await sleep.restore(manifest, signal, takePlace)
      : await sleep.boot(manifest, signal, takePlace);
    slot = restored.handle.place.slot;
    const incarnation = {
      generation: entry.generation + 1,
      machine_id: entry.machineId,
      previous_host_key: restored.previousHostKey,
      ...(manifest.memory || entry.settings.start === undefined ? {} : { start: entry.settings.start }),
    };
    putTtlBack = held.renewTtl();
    await unlock(entry, restored, incarnation, held.parts, signal);
    entry.image = null;
    held.activity.touch("wake");
    entry.tookMs = { ...entry.tookMs, wake: held.elapsedMs(startedAt) };
    const { handle, guest } = restored;
    held.settle("running", { handle, guest, oomKills: 0, lastOomAt: null }, "woken");
  } catch (error) {
    restored?.guest.close();
    entry.image = image;
    putTtlBack();
    await rest(held, slot);
    log.error({ op: "machine.wake", outcome: "failed", sandboxId: entry.id, err: error });
    throw error;
  }
  // Consumed: committed above, so a crash here leaves a file for the sweep, never a second waking.
  await images
    .remove(image?.id ?? "")
    .catch((error: unknown) => log.error({ op: "image.remove", image: image?.id, err: error }));
  log.info({
    op: "machine.wake",
    outcome: "woken",
    sandboxId: entry.id,
    tenant: entry.spec.tenant,
    generation: entry.generation,
    durationMs: held.elapsedMs(startedAt),
  });
}
