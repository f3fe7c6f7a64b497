import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import type { FakeGuest } from "./fakes/fake-guest.ts";
import { TEST_SPEC } from "./fakes/journal-entry.ts";
import { MachineBench, NOTHING } from "./fakes/machine-bench.ts";
import { until } from "./fakes/until.ts";

let bench: MachineBench;
beforeEach(async () => {
  bench = new MachineBench();
  await bench.open();
});
afterEach(() => bench.close());

/** The agent of the machine `one`, which is awake. */
function guest(): FakeGuest {
  const found = bench.driver.machine(bench.machines.reach("one").handle.place.slot).guest;
  if (found === undefined) throw new Error("machine one has no guest");
  return found;
}

async function create(files = "its files", spec: Partial<typeof TEST_SPEC> = {}): Promise<void> {
  await bench.machines.create("one", { ...TEST_SPEC, ...spec });
  bench.driver.machine(bench.machines.reach("one").handle.place.slot).memory = "its memory";
  guest().files = files;
}

describe("a hibernation without memory", () => {
  test("keeps the files alone, and the wake boots a machine with them: same id, next generation", async () => {
    await create();
    const first = guest().inits[0];
    const asleep = await bench.machines.hibernate("one", false);
    expect(asleep).toMatchObject({ state: "hibernated", image: { memory: false, size_bytes: 9 } });
    expect(bench.inPlace.machines).toEqual([]);
    const [image = ""] = bench.imagesInPlace;
    expect(readFileSync(join(bench.directory, "images", image, "data", "changes"), "utf8")).toBe("its files");
    const awake = await bench.machines.wake("one");
    expect(awake).toMatchObject({
      state: "running",
      generation: 2,
      image: null,
      attestation: { complete: true, generation: 2 },
    });
    expect(guest().files).toBe("its files");
    expect(bench.driver.machine(bench.machines.reach("one").handle.place.slot).memory).toBe("");
    const second = guest().inits[0];
    expect(second).toMatchObject({
      machine_id: first?.["machine_id"],
      access_token: first?.["access_token"],
    });
    // The one that its files came with, which the sandbox has never seen.
    expect(second?.["previous_host_key"]).toHaveLength(48);
    expect(second?.["previous_host_key"]).not.toBe(first?.["host_key"]);
    expect(bench.imagesInPlace).toEqual([]);
    expect(bench.events).toEqual(["started", "hibernated", "woken"]);
  });

  test("has what its template started in it started anew, which a wake with memory has not", async () => {
    const start = { command: "serve", user: "worker", workdir: "/app" };
    await bench.machines.create("two", TEST_SPEC);
    await bench.machines.snapshot("two", "snapshotofatemplate00", {
      defaults: { env: {}, user: "worker", workdir: "/app", start },
    });
    await create("its files", { from_snapshot: "snapshotofatemplate00" });
    expect(guest().inits.at(-1)).not.toHaveProperty("start");
    await bench.machines.hibernate("one", true);
    await bench.machines.wake("one");
    expect(guest().inits.at(-1)).not.toHaveProperty("start");
    await bench.machines.hibernate("one", false);
    await bench.machines.wake("one");
    expect(guest().inits.at(-1)).toMatchObject({ start });
  });

  test("is woken by no work, but by a wake", async () => {
    await create();
    await bench.machines.hibernate("one", false);
    await expect(bench.machines.awaken("one")).rejects.toMatchObject({ code: "wrong_state" });
    expect(await bench.machines.wake("one")).toMatchObject({ state: "running" });
  });

  test("is what its spec says where nothing else is said", async () => {
    await create("files", { hibernate_memory: false });
    expect((await bench.machines.hibernate("one")).image?.memory).toBe(false);
    await bench.machines.wake("one");
    expect((await bench.machines.hibernate("one", true)).image?.memory).toBe(true);
    await bench.machines.wake("one");
    bench.machines.update("one", { hibernate_memory: true });
    expect((await bench.machines.hibernate("one")).image?.memory).toBe(true);
  });

  test.each(["says that it failed", "breaks off"] as const)(
    "whose stream %s leaves it running, unlocked, and no image",
    async (streams) => {
      await create();
      guest().streams = streams;
      await expect(bench.machines.hibernate("one", false)).rejects.toMatchObject({
        code: "guest_unavailable",
      });
      expect(bench.machines.get("one")).toMatchObject({ state: "running", generation: 1 });
      expect([guest().locked, bench.imagesInPlace]).toEqual([false, []]);
      guest().streams = "whole";
      expect(await bench.machines.hibernate("one", false)).toMatchObject({ state: "hibernated" });
    },
  );

  test("is joined by whoever asks for the same or leaves it open, and refused to whoever wants memory kept", async () => {
    await create();
    const under = bench.machines.hibernate("one", false);
    const others = [true, false, undefined].map((memory) => bench.machines.hibernate("one", memory));
    const [first, ...joined] = await Promise.allSettled(others);
    expect(first).toMatchObject({ status: "rejected", reason: { code: "conflict" } });
    expect(joined.map(({ status }) => status)).toEqual(["fulfilled", "fulfilled"]);
    expect((await under).image?.memory).toBe(false);
    expect((await bench.machines.hibernate("one", true)).image?.memory).toBe(false);
  });

  test("is refused of one that sleeps with its memory, which sleeps on", async () => {
    await create();
    await bench.machines.hibernate("one");
    await expect(bench.machines.hibernate("one", false)).rejects.toMatchObject({
      code: "conflict",
      message: expect.stringContaining("wake it") as string,
    });
    expect((await bench.machines.hibernate("one")).image?.memory).toBe(true);
  });

  test("is refused when the host's disk is too full", async () => {
    await create();
    bench.free = { ...bench.free, diskUsedPercent: 95 };
    await expect(bench.machines.hibernate("one", false)).rejects.toMatchObject({ code: "no_space" });
    expect(bench.machines.get("one")).toMatchObject({ state: "running" });
  });

  test("whose image is damaged wakes nothing, and leaves nothing but the image", async () => {
    await create();
    await bench.machines.hibernate("one", false);
    const [image = ""] = bench.imagesInPlace;
    writeFileSync(join(bench.directory, "images", image, "data", "changes"), "its fil?s");
    await expect(bench.machines.wake("one")).rejects.toMatchObject({ code: "image_corrupt" });
    expect(bench.machines.get("one")).toMatchObject({ state: "hibernated", generation: 1 });
    expect(await bench.inPlaceOnceTidy()).toEqual(NOTHING);
    expect(bench.imagesInPlace).toEqual([image]);
  });

  test("outlives the host, and a host that died before it could note the image", async () => {
    await create();
    await bench.machines.hibernate("one", false);
    await bench.restart();
    expect(bench.machines.get("one")?.image).toMatchObject({ memory: false });
    const entry = bench.journal.get("one");
    if (entry === undefined) throw new Error("machine one is not in the journal");
    bench.journal.put({ ...entry, state: "hibernating", image: null });
    await bench.restart();
    await until(() => bench.machines.get("one")?.state === "hibernated");
    expect(bench.machines.get("one")?.image).toMatchObject({ memory: false });
    await bench.machines.wake("one");
    expect(guest().files).toBe("its files");
  });
});
