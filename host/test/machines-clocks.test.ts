import { newSnapshotId } from "@torpor/protocol";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { TEST_SPEC } from "./fakes/journal-entry.ts";
import { MachineBench, NOTHING } from "./fakes/machine-bench.ts";
import { until } from "./fakes/until.ts";

let bench: MachineBench;
beforeEach(async () => {
  bench = new MachineBench();
  await bench.open();
});
afterEach(() => bench.close());

async function create(spec: Partial<typeof TEST_SPEC>): Promise<void> {
  await bench.machines.create("one", { ...TEST_SPEC, ...spec });
}

function state(): string | undefined {
  return bench.machines.get("one")?.state;
}

/** Lets what the clock has set off be done: it asks the guest, and writes files. */
async function settle(): Promise<void> {
  await new Promise((resolve) => setTimeout(resolve, 25));
}

async function advance(ms: number): Promise<void> {
  bench.clock.advance(ms);
  await settle();
}

describe("a machine nobody uses", () => {
  test("is put to sleep when its idle time is over, not a moment before", async () => {
    await create({ idle_timeout_seconds: 60 });
    expect(bench.machines.get("one")?.idle_at).toBe(new Date(bench.clock.now() + 60_000).toISOString());
    await advance(59_999);
    expect(state()).toBe("running");
    await advance(1);
    await until(() => state() === "hibernated");
    expect(bench.imagesInPlace).toHaveLength(1);
    expect(bench.machines.get("one")).toMatchObject({ idle_at: null, reason: null });
  });

  test("sleeps as well as one that was told to: it wakes, and falls asleep again", async () => {
    await create({ idle_timeout_seconds: 60 });
    for (let round = 1; round <= 3; round++) {
      await advance(60_000);
      await until(() => state() === "hibernated");
      await bench.machines.wake("one");
      expect(bench.machines.get("one")).toMatchObject({ state: "running", generation: round + 1 });
    }
  });

  test.each([
    ["pause", "paused", null],
    ["destroy", "ended", "idle"],
  ] as const)("comes to what on_idle: %s says", async (onIdle, end, reason) => {
    await create({ idle_timeout_seconds: 60, on_idle: onIdle });
    await advance(60_000);
    await until(() => state() === end);
    expect(bench.machines.get("one")?.reason).toBe(reason);
  });

  test("is tried again later and later when its sleep fails, since each try holds up what runs in it", async () => {
    await create({ idle_timeout_seconds: 60, hibernate_memory: false });
    const { guest } = bench.driver.machine(bench.machines.reach("one").handle.place.slot);
    if (guest === undefined) throw new Error("machine one has no guest");
    guest.streams = "breaks off";
    await advance(60_000);
    await until(() => guest.freezes === 1 && state() === "running");
    await settle();
    for (const [n, pauseMs] of [30_000, 60_000, 120_000, 240_000, 480_000, 900_000, 900_000].entries()) {
      await advance(pauseMs - 1);
      expect([guest.freezes, state()]).toEqual([n + 1, "running"]);
      await advance(1);
      await until(() => guest.freezes === n + 2 && state() === "running");
      await settle();
    }
    guest.streams = "whole";
    await advance(900_000);
    await until(() => state() === "hibernated");
  });

  test("stays awake when it has no timeout, or on_idle says none", async () => {
    await create({ idle_timeout_seconds: null });
    await bench.machines.create("two", { ...TEST_SPEC, idle_timeout_seconds: 1, on_idle: "none" });
    await advance(1_000_000_000);
    expect([state(), bench.machines.get("two")?.state]).toEqual(["running", "running"]);
    expect(bench.machines.get("two")?.idle_at).toBeNull();
  });

  test("is looked at, listed and shown for nothing: that is no use of it", async () => {
    await create({ idle_timeout_seconds: 60 });
    const before = bench.machines.get("one")?.last_activity_at;
    await advance(30_000);
    bench.machines.get("one");
    bench.machines.list();
    expect(bench.machines.get("one")?.last_activity_at).toBe(before);
    await advance(30_000);
    await until(() => state() === "hibernated");
    const image = bench.imagesInPlace;
    bench.machines.list();
    await advance(1_000_000);
    expect([state(), bench.imagesInPlace]).toEqual(["hibernated", image]);
    expect(bench.machines.get("one")?.last_activity_at).toBe(before);
  });

  test("is not found idle because the wall clock jumps", async () => {
    await create({ idle_timeout_seconds: 60 });
    bench.clock.jump(86_400_000);
    await advance(59_999);
    expect(state()).toBe("running");
  });
});

describe("what holds a machine awake", () => {
  test("is a request while it is answered, and for the idle time after it", async () => {
    await create({ idle_timeout_seconds: 60 });
    const release = bench.machines.reach("one").activity.begin("request", "POST /x");
    await advance(600_000);
    expect(bench.machines.get("one")).toMatchObject({
      state: "running",
      idle_at: null,
      holds: [{ kind: "request", what: "POST /x" }],
    });
    release();
    release();
    await advance(59_999);
    expect(state()).toBe("running");
    await advance(1);
    await until(() => state() === "hibernated");
  });

  test("is a command that runs with nobody attached, and for the idle time after its end", async () => {
    await create({ idle_timeout_seconds: 60 });
    bench.driver.runningExecs = ["exec-1"];
    await advance(60_000);
    for (let times = 0; times < 20; times++) await advance(5000);
    expect(state()).toBe("running");
    const lastSeen = Date.parse(bench.machines.get("one")?.last_activity_at ?? "");
    expect(bench.clock.now() - lastSeen).toBeLessThanOrEqual(5000);
    bench.driver.runningExecs = [];
    await advance(5000);
    await advance(49_999);
    expect(state()).toBe("running");
    await advance(5001);
    await until(() => state() === "hibernated");
  });

  test("is a guest that does not say what runs: it is never taken for idle", async () => {
    await create({ idle_timeout_seconds: 60 });
    await bench.driver.machine(1).guest?.close();
    await advance(60_000);
    await advance(60_000);
    expect(state()).toBe("running");
  });

  test("is what came while the guest was asked", async () => {
    await create({ idle_timeout_seconds: 60 });
    bench.clock.advance(60_000);
    bench.machines.reach("one").activity.touch("request", "at the last moment");
    await settle();
    expect(state()).toBe("running");
    await advance(60_000);
    await until(() => state() === "hibernated");
  });
});

describe("changing the clocks", () => {
  test("of idleness counts at once, also while the guest is being asked", async () => {
    await create({ idle_timeout_seconds: 60 });
    await advance(30_000);
    bench.machines.update("one", { idle_timeout_seconds: 600 });
    await advance(569_999);
    expect(state()).toBe("running");
    bench.clock.advance(1);
    bench.machines.update("one", { idle_timeout_seconds: 3600 });
    await settle();
    expect(state()).toBe("running");
    bench.machines.update("one", { idle_timeout_seconds: 1 });
    await advance(10);
    await until(() => state() === "hibernated");
  });

  test("to none lets the machine run on", async () => {
    await create({ idle_timeout_seconds: 60 });
    bench.machines.update("one", { idle_timeout_seconds: null });
    await advance(1_000_000);
    expect(state()).toBe("running");
    expect(bench.journal.get("one")?.spec.idle_timeout_seconds).toBeNull();
  });

  test("is undone when the journal cannot take it", async () => {
    await create({ idle_timeout_seconds: 60, deadline_unix_ms: bench.clock.now() + 1_000_000 });
    const before = bench.machines.get("one");
    bench.journal.full = true;
    expect(() =>
      bench.machines.update("one", { idle_timeout_seconds: 1, deadline_unix_ms: null, auto_wake: false }),
    ).toThrow("full");
    bench.journal.full = false;
    expect(bench.machines.get("one")).toEqual(before);
  });

  test("works on a machine that is paused, asleep, or falling asleep", async () => {
    await create({});
    await bench.machines.pause("one");
    bench.machines.update("one", { auto_wake: false });
    const release = bench.driver.hold("checkpoint");
    const sleep = bench.machines.hibernate("one");
    await until(() => state() === "hibernating");
    bench.machines.update("one", { retention_seconds: 10 });
    release();
    await sleep;
    bench.machines.update("one", { on_idle: "none" });
    expect(bench.machines.get("one")).toMatchObject({
      state: "hibernated",
      auto_wake: false,
      retention_seconds: 10,
      on_idle: "none",
    });
    await advance(10_000);
    await until(() => state() === "ended");
  });
});

describe("a deadline with on_expire: hibernate", () => {
  test("puts the machine to sleep, has then done its work, and does not send it to sleep again as it wakes", async () => {
    await create({ on_expire: "hibernate", deadline_unix_ms: bench.clock.now() + 1000 });
    await advance(1000);
    await until(() => state() === "hibernated");
    expect(bench.machines.get("one")?.deadline_unix_ms).toBeNull();
    await advance(1_000_000);
    await bench.machines.wake("one");
    await advance(1_000_000);
    expect(state()).toBe("running");
  });

  test("still counts after a sleep that was over before it", async () => {
    const deadline = bench.clock.now() + 1000;
    await create({ on_expire: "hibernate", deadline_unix_ms: deadline });
    await bench.machines.hibernate("one");
    await bench.machines.wake("one");
    expect(bench.machines.get("one")?.deadline_unix_ms).toBe(deadline);
    await advance(1000);
    await until(() => state() === "hibernated");
  });

  test("that passes during a sleep wakes nobody, ends nothing, and is over", async () => {
    await create({ on_expire: "hibernate", deadline_unix_ms: bench.clock.now() + 1000 });
    await bench.machines.hibernate("one");
    await advance(2000);
    expect(state()).toBe("hibernated");
    await bench.machines.wake("one");
    await advance(1000);
    expect(bench.machines.get("one")).toMatchObject({ state: "running", deadline_unix_ms: null });
  });
});

describe("a deadline with on_expire: destroy", () => {
  test("ends a machine that sleeps, and its image with it", async () => {
    await create({ deadline_unix_ms: bench.clock.now() + 1000 });
    await bench.machines.hibernate("one");
    await advance(1000);
    await until(() => state() === "ended");
    expect(bench.machines.get("one")?.reason).toBe("ttl_expired");
    expect(bench.imagesInPlace).toEqual([]);
  });

  test("ends a machine that is paused", async () => {
    await create({ deadline_unix_ms: bench.clock.now() + 1000 });
    await bench.machines.pause("one");
    await advance(1000);
    await until(() => state() === "ended");
    expect(await bench.inPlaceOnceTidy()).toEqual(NOTHING);
  });

  test("is not put off by a sleep that fails", async () => {
    bench.free.diskMb = 1500;
    await create({ idle_timeout_seconds: 60, deadline_unix_ms: bench.clock.now() + 61_000 });
    bench.driver.fail("checkpoint", 1000);
    await advance(60_000);
    await until(() => bench.driver.machine(1).guest?.freezes === 1 && state() === "running");
    await advance(1000);
    await until(() => state() === "ended");
    expect(bench.machines.get("one")?.reason).toBe("ttl_expired");
  });
});

describe("a sleep by the clock that fails", () => {
  test("is tried again after half a minute, and works then", async () => {
    await create({ idle_timeout_seconds: 60 });
    bench.driver.fail("checkpoint", 1);
    await advance(60_000);
    await until(() => bench.driver.machine(1).guest?.freezes === 1 && state() === "running");
    await settle();
    await advance(29_000);
    expect(bench.driver.machine(1).guest?.freezes).toBe(1);
    await advance(1000);
    await until(() => state() === "hibernated");
  });
});

describe("the retention of an image", () => {
  test("ends a machine that has slept for longer, and starts anew with each sleep", async () => {
    await create({ retention_seconds: 100 });
    await bench.machines.hibernate("one");
    await advance(99_999);
    await bench.machines.wake("one");
    await advance(1_000_000);
    expect(state()).toBe("running");
    await bench.machines.hibernate("one");
    await advance(99_999);
    expect(state()).toBe("hibernated");
    await advance(1);
    await until(() => state() === "ended");
    expect(bench.machines.get("one")?.reason).toBe("retention");
    expect(bench.imagesInPlace).toEqual([]);
  });

  test("goes on over a restart of the host", async () => {
    await create({ retention_seconds: 100 });
    await bench.machines.hibernate("one");
    await advance(60_000);
    await bench.restart();
    await advance(39_999);
    expect(state()).toBe("hibernated");
    await advance(1);
    await until(() => state() === "ended");
  });

  test("is nothing to a snapshot", async () => {
    await create({ retention_seconds: 1 });
    await bench.machines.snapshot("one", newSnapshotId());
    await advance(1_000_000);
    expect([state(), (await bench.machines.snapshots()).length]).toEqual(["running", 1]);
  });
});
