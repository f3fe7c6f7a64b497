import { rmSync, writeFileSync } from "node:fs";
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { newImageId } from "../src/machine/sleep.ts";
import { IMAGE_FILE } from "./fakes/fake-driver.ts";
import { FakeGuest } from "./fakes/fake-guest.ts";
import { fakeAddress } from "./fakes/fake-router.ts";
import { journalEntry, OWN_PROCESS as OWN, TEST_SPEC } from "./fakes/journal-entry.ts";
import { MachineBench, NOTHING } from "./fakes/machine-bench.ts";
import { until } from "./fakes/until.ts";

const SLOT = 9;
const STANDING = { slot: SLOT, address: fakeAddress(SLOT), ...OWN } as const;

let bench: MachineBench;
let guest: FakeGuest | undefined;
beforeEach(async () => {
  bench = new MachineBench();
  await bench.open();
});
afterEach(async () => {
  await guest?.close();
  guest = undefined;
  await bench.close();
});

/** An image of the machine `id` that remembers something, as a hibernation leaves it. */
async function image(
  id = "one",
  memory = "kept",
): Promise<{ id: string; sizeBytes: number; createdAt: number }> {
  const imageId = newImageId();
  const { size_bytes: sizeBytes } = await bench.images.commit(
    {
      id: imageId,
      kind: "hibernation",
      memory: true,
      machine_id: id,
      tenant: TEST_SPEC.tenant,
      generation: 1,
      template: TEST_SPEC.template,
      template_hash: "aa",
      driver: "gvisor",
      driver_version: "fake",
      acceleration: "systrap",
      cpu: 1,
      memory_mb: 512,
      disk_mb: 4096,
      network: "internet",
      host_key: "key",
      settings: { env: {}, user: "user", workdir: "/" },
      name: null,
    },
    async (dataDir) => {
      await mkdir(dataDir);
      await writeFile(join(dataDir, IMAGE_FILE), JSON.stringify({ memory }));
    },
  );
  return { id: imageId, sizeBytes, createdAt: bench.clock.now() };
}

function stateOfOne(): string | undefined {
  return bench.machines.get("one")?.state;
}

async function expectWakes(): Promise<void> {
  await bench.machines.wake("one");
  const { slot } = bench.machines.reach("one").handle.place;
  expect(bench.driver.machine(slot).memory).toBe("kept");
  expect(bench.machines.get("one")).toMatchObject({ state: "running", generation: 2 });
}

describe("a host that comes back to a machine that rested", () => {
  test.each(["hibernated", "waking"] as const)(
    "finds one that was %s asleep, and it wakes",
    async (state) => {
      bench.journal.put(
        journalEntry({
          id: "one",
          state,
          slot: null,
          pid: null,
          startTime: null,
          image: await image(),
          lastActivityAt: 5,
        }),
      );
      bench.router.slots.set(44, "internet"); // of the wake under way: nobody's now
      expect(await bench.restart()).toEqual({ adopted: 1, failed: 0, ended: 0, swept: [44] });
      await until(() => stateOfOne() === "hibernated");
      expect(bench.machines.get("one")).toMatchObject({
        last_activity_at: new Date(5).toISOString(),
      });
      expect(bench.events).toEqual([]);
      await expectWakes();
      expect(bench.imagesInPlace).toEqual([]);
    },
  );

  test("clears away what still stands of one whose sleep was committed", async () => {
    bench.router.slots.set(SLOT, "internet");
    bench.journal.put(journalEntry({ id: "one", state: "hibernated", ...STANDING, image: await image() }));
    await bench.restart();
    await until(() => bench.journal.get("one")?.slot === null);
    expect(await bench.inPlaceOnceTidy()).toEqual(NOTHING);
    expect(bench.journal.get("one")).toMatchObject({ state: "hibernated", slot: null, pid: null });
    await expectWakes();
  });

  test("does not touch the machine that stands now in the slot a sleeping one had", async () => {
    guest = await FakeGuest.listen(fakeAddress(SLOT), () => "attests", undefined, false);
    bench.router.slots.set(SLOT, "internet");
    const gone = { slot: SLOT, address: fakeAddress(SLOT), pid: 4_194_305, startTime: 1 };
    bench.journal.put(journalEntry({ id: "one", state: "hibernated", ...gone, image: await image() }));
    bench.journal.put(journalEntry({ id: "two", ...STANDING }));
    expect(await bench.restart()).toEqual({ adopted: 2, failed: 0, ended: 0, swept: [] });
    expect([bench.inPlace.networks, bench.driver.kills]).toEqual([[SLOT], 0]);
    expect(bench.machines.reach("two").handle.place.slot).toBe(SLOT);
    await expectWakes();
  });

  test.each([
    ["whose manifest cannot be read", (path: string) => writeFileSync(join(path, "manifest.json"), "{")],
    ["that is gone", (path: string) => rmSync(path, { recursive: true })],
  ])("keeps one asleep with an image %s, and says so when it is to wake", async (_what, damage) => {
    const { id, ...rest } = await image();
    damage(join(bench.directory, "images", id));
    bench.journal.put(
      journalEntry({
        id: "one",
        state: "hibernated",
        slot: null,
        pid: null,
        startTime: null,
        image: { id, ...rest },
      }),
    );
    expect(await bench.restart()).toMatchObject({ adopted: 1, ended: 0 });
    await expect(bench.machines.wake("one")).rejects.toMatchObject({ code: "image_corrupt" });
    expect(bench.machines.get("one")?.state).toBe("hibernated");
    expect((await bench.machines.end("one", "user")).state).toBe("ended");
  });

  test("removes images that nobody sleeps in, and keeps those of others", async () => {
    const kept = await image();
    await image("gone");
    bench.journal.put(
      journalEntry({ id: "one", state: "hibernated", slot: null, pid: null, startTime: null, image: kept }),
    );
    await bench.restart();
    expect(bench.imagesInPlace).toEqual([kept.id]);
  });
});

describe("a host that comes back to a machine on its way", () => {
  test.each(["hibernating", "snapshotting"] as const)(
    "lets one that was %s go on, unlocked in the same generation, and forgets the image that was not committed",
    async (state) => {
      guest = await FakeGuest.listen(fakeAddress(SLOT), () => "attests");
      bench.router.slots.set(SLOT, "internet");
      await image();
      bench.journal.put(journalEntry({ id: "one", state, ...STANDING, generation: 7 }));
      expect(await bench.restart()).toEqual({ adopted: 1, failed: 0, ended: 0, swept: [] });
      await until(() => stateOfOne() === "running");
      expect(bench.machines.get("one")).toMatchObject({ generation: 7, image: null });
      expect(guest).toMatchObject({ locked: false, inits: [{ generation: 7, previous_host_key: "key" }] });
      expect(bench.imagesInPlace).toEqual([]);
    },
  );

  test("finds one asleep whose image was written before its journal was, and whose process has died", async () => {
    bench.router.slots.set(SLOT, "internet");
    const { id } = await image();
    bench.journal.put(journalEntry({ id: "one", state: "hibernating", ...STANDING, pid: 4_194_305 }));
    expect(await bench.restart()).toMatchObject({ adopted: 1, failed: 0 });
    await until(() => stateOfOne() === "hibernated");
    expect([await bench.inPlaceOnceTidy(), bench.imagesInPlace]).toEqual([NOTHING, [id]]);
    await expectWakes();
  });

  test("finds one asleep whose image was written before its journal was, and whose guest is gone", async () => {
    guest = await FakeGuest.listen(fakeAddress(SLOT), () => "refuses");
    bench.router.slots.set(SLOT, "internet");
    await image();
    bench.journal.put(journalEntry({ id: "one", state: "hibernating", ...STANDING }));
    await bench.restart();
    await until(() => stateOfOne() === "hibernated");
    expect(await bench.inPlaceOnceTidy()).toEqual(NOTHING);
    await expectWakes();
  });

  test("fails one that was hibernating and whose process has died with the host", async () => {
    bench.journal.put(journalEntry({ id: "one", state: "hibernating", ...STANDING, pid: 4_194_305 }));
    expect(await bench.restart()).toMatchObject({ adopted: 0, failed: 1 });
    expect(bench.machines.get("one")).toMatchObject({ state: "failed", reason: "runtime_crashed" });
  });

  test("leaves one paused that was paused", async () => {
    guest = await FakeGuest.listen(fakeAddress(SLOT), () => "attests", undefined, false);
    bench.router.slots.set(SLOT, "internet");
    bench.journal.put(journalEntry({ id: "one", state: "paused", ...STANDING }));
    expect(await bench.restart()).toMatchObject({ adopted: 1, ended: 0 });
    expect(bench.machines.get("one")).toMatchObject({ state: "paused", generation: 1 });
    expect((await bench.machines.resume("one")).state).toBe("running");
    bench.machines.reach("one");
  });

  test("fails one that cannot be unlocked again", async () => {
    guest = await FakeGuest.listen(fakeAddress(SLOT), () => "refuses");
    bench.router.slots.set(SLOT, "internet");
    bench.journal.put(journalEntry({ id: "one", state: "hibernating", ...STANDING }));
    await bench.restart();
    await until(() => stateOfOne() === "failed" && bench.inPlace.networks.length === 0);
    expect(bench.machines.get("one")?.reason).toBe("agent_unresponsive");
  });
});
