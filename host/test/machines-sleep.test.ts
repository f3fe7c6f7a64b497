import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { CodedError, newSnapshotId } from "@torpor/protocol";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { IMAGE_FILE, type DriverStep } from "./fakes/fake-driver.ts";
import type { InitBehaviour } from "./fakes/fake-guest.ts";
import { TEST_SPEC } from "./fakes/journal-entry.ts";
import { MachineBench, NOTHING } from "./fakes/machine-bench.ts";
import { until } from "./fakes/until.ts";

let bench: MachineBench;
beforeEach(async () => {
  bench = new MachineBench();
  await bench.open();
});
afterEach(() => bench.close());

function state(id = "one"): string | undefined {
  return bench.machines.get(id)?.state;
}

/** What the machine `one` remembers, wherever it stands. */
function memory(id = "one"): string {
  return bench.driver.machine(bench.machines.reach(id).handle.place.slot).memory;
}

async function create(memory = "", spec: Partial<typeof TEST_SPEC> = {}, id = "one"): Promise<void> {
  await bench.machines.create(id, { ...TEST_SPEC, ...spec });
  bench.driver.machine(bench.machines.reach(id).handle.place.slot).memory = memory;
}

describe("hibernate and wake", () => {
  test("leave nothing but an image in between, and bring the same machine back as the next generation", async () => {
    await create("treasure");
    const before = bench.machines.get("one");
    const asleep = await bench.machines.hibernate("one");
    expect(asleep).toMatchObject({
      id: "one",
      state: "hibernated",
      generation: 1,
      image: { size_bytes: expect.any(Number) as number },
    });
    expect(bench.inPlace.machines).toEqual([]); // no process once it is said to sleep
    expect(await bench.inPlaceOnceTidy()).toEqual(NOTHING);
    expect(bench.imagesInPlace).toHaveLength(1);
    expect(bench.journal.get("one")).toMatchObject({ state: "hibernated", slot: null, pid: null });
    expect(bench.machines.counts).toEqual({ running: 0, creating: 0, hibernated: 1 });

    const awake = await bench.machines.wake("one");
    expect(awake).toMatchObject({
      id: "one",
      state: "running",
      generation: 2,
      created_at: before?.created_at,
      started_at: before?.started_at,
      image: null,
      attestation: { complete: true, generation: 2 },
    });
    expect(memory()).toBe("treasure");
    expect(bench.imagesInPlace).toEqual([]);
    expect(bench.journal.get("one")).toMatchObject({ state: "running", generation: 2, image: null });
    expect(bench.events).toEqual(["started", "hibernated", "woken"]);
  });

  test("keep the machine id and the access token, and prove the earlier key to take a new one", async () => {
    await create();
    const slot = bench.machines.reach("one").handle.place.slot;
    const first = bench.driver.machine(slot).guest?.inits[0];
    await bench.machines.hibernate("one");
    await bench.machines.wake("one");
    const second = bench.driver.machine(bench.machines.reach("one").handle.place.slot).guest?.inits[0];
    expect(second).toMatchObject({
      generation: 2,
      machine_id: first?.["machine_id"],
      access_token: first?.["access_token"],
      previous_host_key: first?.["host_key"],
      hostname: "one",
    });
    expect(second?.["host_key"]).not.toBe(first?.["host_key"]);
    expect(second?.["entropy_base64"]).not.toBe(first?.["entropy_base64"]);
  });

  test("share one transition among all who ask, and are idempotent", async () => {
    await create();
    const slept = await Promise.all(Array.from({ length: 50 }, () => bench.machines.hibernate("one")));
    expect(new Set(slept.map((machine) => machine.state))).toEqual(new Set(["hibernated"]));
    await bench.machines.hibernate("one");
    await Promise.all(Array.from({ length: 50 }, () => bench.machines.awaken("one")));
    await bench.machines.wake("one");
    expect(bench.machines.get("one")).toMatchObject({ state: "running", generation: 2 });
    expect(bench.events).toEqual(["started", "hibernated", "woken"]);
  });

  test("asked for at once, again and again, never get stuck, and the last word holds", async () => {
    await create("kept");
    for (let round = 0; round < 8; round++) {
      const asked = Promise.allSettled(
        Array.from({ length: 6 }, (_, index) =>
          (index + round) % 2 === 0 ? bench.machines.hibernate("one") : bench.machines.wake("one"),
        ),
      );
      for (const outcome of await asked) expect(outcome.status).toBe("fulfilled");
      expect(["running", "hibernated"]).toContain(state());
    }
    await bench.machines.hibernate("one");
    expect(state()).toBe("hibernated");
    await bench.machines.wake("one");
    expect(memory()).toBe("kept");
  });

  test("wait for each other: a request that comes while it falls asleep wakes it", async () => {
    await create("kept");
    const release = bench.driver.hold("checkpoint");
    const sleep = bench.machines.hibernate("one");
    await until(() => state() === "hibernating");
    expect(() => bench.machines.reach("one")).toThrow(/is hibernating; wake or resume it first/);
    const request = bench.machines.awaken("one");
    release();
    await sleep;
    await request;
    expect([state(), memory()]).toEqual(["running", "kept"]);
  });

  test("are refused to a request when it may not wake the machine, and work when asked for", async () => {
    await create("", { auto_wake: false });
    await bench.machines.hibernate("one");
    await expect(bench.machines.awaken("one")).rejects.toMatchObject({
      code: "wrong_state",
      details: { state: "hibernated" },
    });
    expect(state()).toBe("hibernated");
    await bench.machines.wake("one");
    await bench.machines.awaken("one");
  });

  test("answer before the slot is tidied up; what cannot be is swept later, and nobody is given the slot till then", async () => {
    await create("kept");
    bench.driver.fail("kill");
    const release = bench.driver.hold("kill");
    await bench.machines.hibernate("one");
    expect(bench.inPlace).toMatchObject({ machines: [], directories: ["1"] });
    await bench.machines.wake("one");
    expect(bench.machines.reach("one").handle.place.slot).toBe(2);
    release();
    expect((await bench.inPlaceOnceTidy()).directories).toEqual(["1", "2"]);
    expect((await bench.slots.sweep()).swept).toEqual([1]);
    expect([memory(), bench.inPlace.directories]).toEqual(["kept", ["2"]]);
  });

  test("work on a paused machine", async () => {
    await create("kept");
    await bench.machines.pause("one");
    expect((await bench.machines.hibernate("one")).state).toBe("hibernated");
    await bench.machines.wake("one");
    expect(memory()).toBe("kept");
  });
});

describe("a hibernation that fails leaves the machine running, unlocked, in the same generation", () => {
  async function expectRunning(): Promise<void> {
    await expect(bench.machines.hibernate("one")).rejects.toThrow();
    await expectUnharmed();
  }

  async function expectUnharmed(): Promise<void> {
    expect(bench.machines.get("one")).toMatchObject({ state: "running", generation: 1, image: null });
    const { slot } = bench.machines.reach("one").handle.place;
    expect(bench.driver.machine(slot)).toMatchObject({ paused: false, guest: { locked: false } });
    expect(bench.imagesInPlace).toEqual([]);
    expect(memory()).toBe("kept");
    await bench.machines.hibernate("one");
    await bench.machines.wake("one");
    expect(memory()).toBe("kept");
  }

  beforeEach(() => create("kept"));

  test.each<DriverStep>(["checkpoint", "pause"])("when the driver fails to %s", async (step) => {
    bench.driver.fail(step);
    await expectRunning();
    expect(bench.events.slice(0, 1)).toEqual(["started"]);
  });

  test("when there is no room for the image: it is not even begun", async () => {
    bench.free.diskMb = 1023;
    await expect(bench.machines.hibernate("one")).rejects.toMatchObject({ code: "no_space" });
    expect(bench.driver.machine(1).guest?.freezes).toBe(0);
    bench.free.diskMb = 4096;
    await expectUnharmed();
  });

  test("when the journal cannot take the intent", async () => {
    bench.journal.full = true;
    await expect(bench.machines.hibernate("one")).rejects.toThrow("full");
    bench.journal.full = false;
    await expectUnharmed();
  });

  test("when the journal cannot take the result", async () => {
    const release = bench.driver.hold("checkpoint");
    const sleep = bench.machines.hibernate("one");
    await until(() => state() === "hibernating");
    bench.journal.full = true;
    release();
    await expect(sleep).rejects.toThrow("full");
    bench.journal.full = false;
    await expectUnharmed();
  });

  test("and everybody who joined is told", async () => {
    bench.driver.fail("checkpoint");
    const outcomes = await Promise.allSettled([1, 2, 3].map(() => bench.machines.hibernate("one")));
    expect(outcomes.map(({ status }) => status)).toEqual(["rejected", "rejected", "rejected"]);
    await expectUnharmed();
  });

  test("but fails one that cannot be unlocked again", async () => {
    bench.driver.fail("checkpoint");
    bench.driver.initBehaviour = "refuses";
    await expect(bench.machines.hibernate("one")).rejects.toThrow();
    await until(() => state() === "failed" && bench.inPlace.networks.length === 0);
    expect(bench.machines.get("one")?.reason).toBe("runtime_crashed");
    expect((await bench.machines.end("one", "user")).reason).toBe("runtime_crashed");
    expect(await bench.inPlaceOnceTidy()).toEqual(NOTHING);
  });
});

describe("a machine that cannot be written while a program inside makes a connection", () => {
  const connecting = new CodedError("guest_unavailable", "a program inside is connecting");
  beforeEach(() => create("treasure"));

  test("sleeps, its attempts refused from the second try on", async () => {
    bench.driver.fail("checkpoint", 3, connecting);
    await bench.machines.hibernate("one");
    expect(bench.router.refusals).toBe(3);
    await bench.machines.wake("one");
    expect(memory()).toBe("treasure");
  });

  test("runs on when the tries are used up, and is not refused anything for long", async () => {
    bench.driver.fail("checkpoint", 4, connecting);
    await expect(bench.machines.hibernate("one")).rejects.toThrow("is connecting");
    expect(state()).toBe("running");
    expect([bench.router.refusals, bench.imagesInPlace]).toEqual([3, []]);
    await bench.machines.hibernate("one");
    expect(bench.router.refusals).toBe(3);
  });
});

describe("a wake that fails leaves the machine asleep, with its image, and nothing else", () => {
  beforeEach(async () => {
    await create("kept");
    await bench.machines.hibernate("one");
  });

  async function expectAsleep(code?: string): Promise<void> {
    await expect(bench.machines.wake("one")).rejects.toMatchObject(code === undefined ? {} : { code });
    expect(bench.machines.get("one")).toMatchObject({ state: "hibernated", reason: null });
    expect(await bench.inPlaceOnceTidy()).toEqual(NOTHING);
    expect(bench.imagesInPlace).toHaveLength(1);
    expect(bench.journal.get("one")).toMatchObject({ state: "hibernated", slot: null });
  }

  async function expectWakes(): Promise<void> {
    await bench.machines.wake("one");
    expect(memory()).toBe("kept");
  }

  test.each<DriverStep>(["prepare", "restore", "limit"])("when the driver fails to %s", async (step) => {
    bench.driver.fail(step);
    await expectAsleep();
    await expectWakes();
  });

  test.each<InitBehaviour>([
    "attests another generation",
    "attests incompletely",
    "refuses",
    "answers nonsense",
  ])("when the guest %s", async (behaviour) => {
    bench.driver.initBehaviour = behaviour;
    await expectAsleep("guest_unavailable");
    bench.driver.initBehaviour = "attests";
    await expectWakes();
  });

  test("when the restored copy is not locked", async () => {
    bench.driver.restoresUnlocked = true;
    await expectAsleep();
    bench.driver.restoresUnlocked = false;
    await expectWakes();
  });

  test("at the very first step, for lack of memory: nobody hangs on it", async () => {
    bench.free.memoryMb = 10;
    await expectAsleep("capacity_exhausted");
    bench.free.memoryMb = 4096;
    await expectWakes();
  });

  test("when the journal cannot take it, at either end", async () => {
    bench.journal.full = true;
    await expect(bench.machines.wake("one")).rejects.toThrow("full");
    bench.journal.full = false;
    await expectAsleepUntouched();
    const release = bench.driver.hold("restore");
    const wake = bench.machines.wake("one");
    await until(() => state() === "waking");
    bench.journal.full = true;
    release();
    await expect(wake).rejects.toThrow("full");
    bench.journal.full = false;
    await expectAsleepUntouched();
    await expectWakes();
  });

  async function expectAsleepUntouched(): Promise<void> {
    expect(bench.machines.get("one")).toMatchObject({ state: "hibernated" });
    expect(await bench.inPlaceOnceTidy()).toEqual(NOTHING);
    expect(bench.imagesInPlace).toHaveLength(1);
  }

  test("when a byte of the image has flipped, and wakes once that is put right", async () => {
    const file = join(bench.images.dataDir(bench.imagesInPlace[0] ?? ""), IMAGE_FILE);
    const whole = readFileSync(file);
    const damaged = Buffer.from(whole);
    damaged[12] = (damaged[12] ?? 0) ^ 1;
    writeFileSync(file, damaged);
    await expectAsleep("image_corrupt");
    const restores = bench.driver.restored.length;
    const asked = await Promise.allSettled(Array.from({ length: 20 }, () => bench.machines.awaken("one")));
    expect(asked.map(({ status }) => status)).toEqual(Array.from({ length: 20 }, () => "rejected"));
    expect(bench.driver.restored.length - restores).toBeLessThanOrEqual(1);
    writeFileSync(file, whole);
    await expectWakes();
  });

  test("when a runtime of another build is asked to", async () => {
    Object.assign(bench.driver.info, { version: "newer" });
    await expect(bench.machines.wake("one")).rejects.toMatchObject({
      code: "image_incompatible",
      message: expect.stringContaining("made by gvisor fake") as string,
    });
    Object.assign(bench.driver.info, { version: "fake" });
    await expectWakes();
  });

  test("and what it left standing is cleared away by the watch; until then it does not wake", async () => {
    bench.driver.initBehaviour = "refuses";
    bench.driver.fail("kill", 2);
    bench.driver.fail("stop", 2);
    await expect(bench.machines.wake("one")).rejects.toThrow();
    expect(state()).toBe("hibernated");
    expect(bench.inPlace.machines).toHaveLength(1);
    bench.driver.initBehaviour = "attests";
    await expect(bench.machines.wake("one")).rejects.toThrow("fails to kill");
    bench.machines.watch();
    await until(() => bench.inPlace.machines.length === 0);
    await until(() => state() === "hibernated");
    await expectWakes();
  });
});

describe("destroying", () => {
  test("a sleeping machine removes its image", async () => {
    await create();
    await bench.machines.hibernate("one");
    expect(await bench.machines.end("one", "user")).toMatchObject({ state: "ended", reason: "user" });
    expect([await bench.inPlaceOnceTidy(), bench.imagesInPlace]).toEqual([NOTHING, []]);
    await expect(bench.machines.wake("one")).rejects.toMatchObject({ code: "sandbox_ended" });
  });

  test.each<[DriverStep, "hibernate" | "wake" | "pause"]>([
    ["checkpoint", "hibernate"],
    ["pause", "hibernate"],
    ["stop", "hibernate"],
    ["kill", "hibernate"],
    ["pause", "pause"],
    ["prepare", "wake"],
    ["restore", "wake"],
  ])("pre-empts, while the driver is about to %s, a %s under way", async (step, verb) => {
    await create();
    if (verb === "wake") await bench.machines.hibernate("one");
    const release = bench.driver.hold(step);
    const moving = bench.machines[verb]("one");
    moving.catch(() => {});
    await new Promise((resolve) => setTimeout(resolve, 30));
    const end = bench.machines.end("one", "user");
    release();
    expect(await end).toMatchObject({ state: "ended", reason: "user" });
    await moving.catch(() => {});
    expect([await bench.inPlaceOnceTidy(), bench.imagesInPlace]).toEqual([NOTHING, []]);
  });

  test("does not wait for a guest that hangs as it wakes", async () => {
    await create();
    await bench.machines.hibernate("one");
    bench.driver.initBehaviour = "hangs";
    const wake = bench.machines.wake("one");
    wake.catch(() => {});
    await until(() => [...bench.driver.machines.values()][0]?.guest?.inits.length === 1);
    const startedAt = performance.now();
    expect((await bench.machines.end("one", "user")).state).toBe("ended");
    expect(performance.now() - startedAt).toBeLessThan(3000);
    expect([await bench.inPlaceOnceTidy(), bench.imagesInPlace]).toEqual([NOTHING, []]);
  });
});

describe("pause and resume", () => {
  test("stop a machine and let it go on, idempotently", async () => {
    await create();
    for (let times = 0; times < 2; times++) expect((await bench.machines.pause("one")).state).toBe("paused");
    expect(bench.driver.machine(1).paused).toBe(true);
    expect(bench.journal.get("one")?.state).toBe("paused");
    for (let times = 0; times < 2; times++)
      expect((await bench.machines.resume("one")).state).toBe("running");
    expect(bench.driver.machine(1).paused).toBe(false);
    expect(bench.machines.get("one")?.generation).toBe(1);
    expect(bench.events).toEqual(["started", "paused", "resumed"]);
  });

  test("at once with everything else never get stuck", async () => {
    await create("kept");
    for (let round = 0; round < 5; round++) {
      const verbs = ["pause", "hibernate", "resume", "wake", "pause", "wake"] as const;
      await Promise.allSettled(verbs.map((verb) => bench.machines[verb]("one")));
      expect(["running", "paused", "hibernated"]).toContain(state());
    }
    await bench.machines.awaken("one");
    expect([memory(), bench.driver.machine(bench.machines.reach("one").handle.place.slot).paused]).toEqual([
      "kept",
      false,
    ]);
  });

  test("a pause that fails leaves it running", async () => {
    await create();
    bench.driver.fail("pause");
    await expect(bench.machines.pause("one")).rejects.toThrow();
    expect([state(), bench.driver.machine(1).paused]).toEqual(["running", false]);
    bench.journal.full = true;
    await expect(bench.machines.pause("one")).rejects.toThrow("full");
    bench.journal.full = false;
    expect([state(), bench.driver.machine(1).paused]).toEqual(["running", false]);
    bench.machines.reach("one");
  });

  test("a request resumes a paused machine, unless it may not", async () => {
    await create();
    await bench.machines.pause("one");
    await bench.machines.awaken("one");
    expect(state()).toBe("running");
    await bench.machines.pause("one");
    bench.machines.update("one", { auto_wake: false });
    await expect(bench.machines.awaken("one")).rejects.toMatchObject({ code: "wrong_state" });
  });

  test("cannot be asked of a sleeping machine", async () => {
    await create();
    await bench.machines.hibernate("one");
    for (const verb of ["pause", "resume"] as const)
      await expect(bench.machines[verb]("one")).rejects.toMatchObject({ code: "wrong_state" });
  });
});

describe("snapshots", () => {
  test("copy a machine that goes on, and make any number of others in its tenant", async () => {
    await create("shared", { env: { A: "1" } });
    const id = newSnapshotId();
    const snapshot = await bench.machines.snapshot("one", id, { name: "before the change" });
    expect(bench.expectedRestores).toEqual([]);
    expect(snapshot).toMatchObject({ id, name: "before the change", machine_id: "one", tenant: "acme" });
    expect(JSON.stringify(snapshot)).not.toContain("key");
    expect(bench.machines.get("one")).toMatchObject({ state: "running", generation: 1 });
    expect(bench.driver.machine(1)).toMatchObject({ paused: false, guest: { locked: false } });
    await bench.machines.end("one", "user");
    for (const copy of ["two", "three"]) {
      const { machine } = await bench.machines.create(copy, { ...TEST_SPEC, from_snapshot: id });
      expect(machine).toMatchObject({ id: copy, state: "running", generation: 1, source: "snapshot" });
      expect(memory(copy)).toBe("shared");
    }
    const ids = ["two", "three"].map(
      (copy) =>
        bench.driver.machine(bench.machines.reach(copy).handle.place.slot).guest?.inits[0]?.["machine_id"],
    );
    expect(new Set(ids).size).toBe(2);
    expect((await bench.machines.templatesInUse()).has("aa")).toBe(true);
    await bench.machines.removeSnapshot(id);
    await bench.machines.removeSnapshot(id);
    expect([await bench.machines.snapshots(), bench.imagesInPlace]).toEqual([[], []]);
    expect(memory("two")).toBe("shared");
  });

  test("of a fork make its children and are no snapshots of anybody's", async () => {
    await create("shared");
    const id = newSnapshotId();
    expect(await bench.machines.snapshot("one", id, { copies: 2 })).toMatchObject({ id, machine_id: "one" });
    expect(bench.machines.get("one")).toMatchObject({ state: "running", generation: 1 });
    expect(await bench.machines.snapshots()).toEqual([]);
    await bench.machines.create("two", { ...TEST_SPEC, from_snapshot: id });
    expect(memory("two")).toBe("shared");
    await expect(
      bench.machines.create("three", { ...TEST_SPEC, tenant: "other", from_snapshot: id }),
    ).rejects.toMatchObject({ code: "snapshot_not_found" });
    await bench.machines.removeSnapshot(id);
    expect(bench.imagesInPlace).toEqual([]);
    await bench.machines.snapshot("one", newSnapshotId(), { copies: 1 });
    await bench.machines.snapshot("one", newSnapshotId(), { copies: 20 });
    expect(bench.expectedRestores.map(([, , count]) => count)).toEqual([2, 1, 8]);
    await bench.restart();
    expect(bench.imagesInPlace).toEqual([]);
  });

  test("belong to their tenant: to another they are not there", async () => {
    await create("secret");
    const id = newSnapshotId();
    await bench.machines.snapshot("one", id);
    await expect(
      bench.machines.create("two", { ...TEST_SPEC, tenant: "other", from_snapshot: id }),
    ).rejects.toMatchObject({ code: "snapshot_not_found" });
    expect(bench.inPlace.machines).toEqual([1]);
  });

  test("of one id are written once, whoever asks and how often; another machine's is a conflict", async () => {
    await create("first");
    await create("second", {}, "two");
    const id = newSnapshotId();
    await Promise.all([1, 2, 3].map(() => bench.machines.snapshot("one", id)));
    expect(await bench.machines.snapshots()).toHaveLength(1);
    await expect(bench.machines.snapshot("two", id)).rejects.toMatchObject({ code: "conflict" });
    expect([state("one"), state("two")]).toEqual(["running", "running"]);
  });

  test("of several ids at once are all written", async () => {
    await create("kept");
    await Promise.all([1, 2, 3, 4].map(() => bench.machines.snapshot("one", newSnapshotId())));
    expect(await bench.machines.snapshots()).toHaveLength(4);
    expect(state()).toBe("running");
  });

  test("that fail leave the machine running and no image", async () => {
    await create("kept");
    bench.driver.fail("checkpoint");
    await expect(bench.machines.snapshot("one", newSnapshotId())).rejects.toThrow();
    expect([state(), memory(), bench.imagesInPlace]).toEqual(["running", "kept", []]);
    expect(bench.driver.machine(1)).toMatchObject({ paused: false, guest: { locked: false } });
  });

  test("of a sleeping machine wake it first", async () => {
    await create("kept");
    await bench.machines.hibernate("one");
    await bench.machines.snapshot("one", newSnapshotId());
    expect(bench.machines.get("one")).toMatchObject({ state: "running", generation: 2 });
  });

  test("are not what a sleeping machine wakes from: its own image is no snapshot", async () => {
    await create();
    await bench.machines.hibernate("one");
    const [image = ""] = bench.imagesInPlace;
    expect(await bench.machines.snapshots()).toEqual([]);
    await expect(bench.machines.findSnapshot(image)).rejects.toMatchObject({ code: "snapshot_not_found" });
    await bench.machines.removeSnapshot(image);
    await bench.machines.wake("one");
  });
});

describe("an instance that is taken down", () => {
  test("puts to sleep what only its owner may destroy, and ends the rest", async () => {
    await create("kept");
    await create("", { deadline_unix_ms: bench.clock.now() + 1000 }, "two");
    await create("", { on_idle: "destroy" }, "three");
    await bench.machines.endAll("shutdown");
    expect([state("one"), state("two"), state("three")]).toEqual(["hibernated", "ended", "ended"]);
    expect(await bench.inPlaceOnceTidy()).toEqual(NOTHING);
    await bench.restart();
    await bench.machines.wake("one");
    expect(memory()).toBe("kept");
  });
});
