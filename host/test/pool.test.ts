import { Gate, silentLog } from "@torpor/base";
import fc from "fast-check";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { Pool, type PoolOptions, type PristineMachine } from "../src/machine/pool.ts";
import type { MachineHandle } from "../src/driver/driver.ts";
import { MachineBench, NOTHING } from "./fakes/machine-bench.ts";

const DISK_MIB = 4096;
const never = new AbortController().signal;

let bench: MachineBench;
let pools: Pool[];
let leased: PristineMachine[];
beforeEach(async () => {
  bench = new MachineBench();
  await bench.open();
  pools = [];
  leased = [];
});
afterEach(async () => {
  for (const { guest } of leased) guest.close();
  await Promise.all(pools.map((pool) => pool.stop()));
  await bench.close();
});

function open(options: Partial<PoolOptions> = {}): Pool {
  const pool = new Pool({
    template: {
      name: "base",
      golden: { imageDir: "", root: { imagePath: "" }, hostKey: "key of the template" },
    },
    driver: bench.driver,
    slots: bench.slots,
    clock: bench.clock,
    log: silentLog,
    readyTarget: 2,
    shellTarget: 1,
    shellDemandMs: 60_000,
    diskMib: DISK_MIB,
    limits: { cpu: 1, memoryMib: 512 },
    preparation: () => ({ machine_id: "prepared" }),
    restoreGate: new Gate(2),
    ...options,
  });
  pools.push(pool);
  pool.start();
  return pool;
}

/** Lets time pass in small steps, and the work it sets off be done, until the condition holds. */
async function until(condition: () => boolean, stepMs = 10): Promise<void> {
  const deadline = performance.now() + 5000;
  while (!condition()) {
    if (performance.now() > deadline) throw new Error(`waited too long for ${condition.toString()}`);
    bench.clock.advance(stepMs);
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
}

async function full(pool: Pool, members = 3): Promise<void> {
  await until(() => pool.members.length >= members);
}

async function acquire(pool: Pool, diskMib = DISK_MIB, signal = never): Promise<PristineMachine> {
  const machine = await pool.acquire(diskMib, signal);
  leased.push(machine);
  return machine;
}

const slotOf = ({ handle }: PristineMachine): number => handle.place.slot;

describe("a pool", () => {
  test("fills up with machines that are restored, prepared, locked and paused, and with empty processes", async () => {
    const pool = open();
    await full(pool);
    expect(pool.status).toEqual({ template: "base", ready: 2, target: 2, empty: 1, empty_target: 1 });
    const machines = [...bench.driver.machines.values()];
    const waiting = machines.filter(({ guest }) => guest !== undefined);
    expect(waiting.map(({ paused, guest }) => [paused, guest?.locked, guest?.preparations])).toEqual([
      [true, true, 1],
      [true, true, 1],
    ]);
    expect(machines.filter(({ guest }) => guest === undefined)).toHaveLength(1);
  });

  test("hands out a waiting machine awake, then the empty process with the image in it, then one made from nothing", async () => {
    const pool = open();
    await full(pool);
    const got = await Promise.all(Array.from({ length: 4 }, () => acquire(pool)));
    expect(got.map(({ source, machineId }) => [source, machineId !== undefined])).toEqual([
      ["pool", true],
      ["pool", true],
      ["shell", false],
      ["cold", false],
    ]);
    for (const machine of got)
      expect(bench.driver.machine(slotOf(machine))).toMatchObject({ paused: false, alive: true });
  });

  test("stops an empty process once its restore is started ahead, and lets it go on when it is taken", async () => {
    const pool = open();
    const empty = (): { paused: boolean; slot: number } | undefined => {
      const found = [...bench.driver.machines.values()].find(({ guest }) => guest === undefined);
      return found && { paused: found.paused, slot: found.handle.place.slot };
    };
    await full(pool);
    expect(empty()).toMatchObject({ paused: false });
    await until(() => empty()?.paused === true, 100);
    expect(pool.status.empty).toBe(1);
    const slot = empty()?.slot;
    const got = await Promise.all([acquire(pool), acquire(pool), acquire(pool)]);
    expect(got.map((machine) => [machine.source, slotOf(machine)])).toContainEqual(["shell", slot]);
    expect(bench.driver.machine(slot ?? 0)).toMatchObject({ paused: false, alive: true });
  });

  test("hands no empty process out while it is just being stopped", async () => {
    const pool = open({ readyTarget: 1 });
    await full(pool, 2);
    const release = bench.driver.hold("pause");
    bench.clock.advance(600);
    const got = await Promise.all([acquire(pool), acquire(pool)]);
    expect(got.map(({ source }) => source)).toEqual(["pool", "cold"]);
    expect(pool.status.empty).toBe(1);
    release();
    const stopped = (): boolean =>
      [...bench.driver.machines.values()].some(({ guest, paused }) => guest === undefined && paused);
    await until(stopped, 0);
    expect((await acquire(pool)).source).toBe("shell");
  });

  test("has another one in the place of an empty process that cannot be stopped", async () => {
    const pool = open({ readyTarget: 1 });
    await full(pool, 2);
    bench.driver.fail("pause");
    await until(() => bench.driver.kills === 1, 100);
    await full(pool, 2);
    expect(pool.status).toMatchObject({ ready: 1, empty: 1 });
  });

  test("starts empty processes at once for restores that are expected, and gives one out while it is started", async () => {
    const pool = open();
    await full(pool);
    await acquire(pool); // a refill would wait for a moment of quiet
    const restore = (): Promise<MachineHandle> => pool.restore(DISK_MIB, "", never, () => {});
    const release = bench.driver.hold("prepare");
    pool.expectRestores(4, DISK_MIB);
    await until(() => bench.router.slots.size === 4, 0); // one that is somebody's, one ready, one empty, one coming
    const both = Promise.all([restore(), restore()]);
    release();
    const slots = (await both).map(({ place }) => place.slot);
    expect(slots).toHaveLength(new Set(slots).size);
    expect(bench.router.slots.size).toBe(4);
    for (const slot of slots) await bench.slots.clear(slot);
    await until(() => pool.status.empty === 2, 100);
    expect(pool.status.empty_target).toBe(2);
  });

  test("makes a machine with another disk from nothing, and keeps what waits", async () => {
    const pool = open();
    await full(pool);
    expect((await acquire(pool, 100)).source).toBe("cold");
    expect(pool.status.ready).toBe(2);
  });

  test("is off when its target is nothing", async () => {
    const pool = open({ readyTarget: 0, shellTarget: 0 });
    expect((await acquire(pool)).source).toBe("cold");
    await until(() => true, 10_000);
    expect([pool.members, bench.driver.restored.length]).toEqual([[], 1]);
  });

  test("refills only when nobody has asked for a while: a create needs the CPU more", async () => {
    const pool = open();
    await full(pool);
    await acquire(pool);
    const restored = bench.driver.restored.length;
    bench.clock.advance(29);
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect(bench.driver.restored.length).toBe(restored);
    await full(pool);
    expect(bench.driver.restored.length).toBeGreaterThan(restored);
  });

  test("keeps as many as were asked for lately, and no more than its bound", async () => {
    const pool = open();
    for (let index = 0; index < 5; index++) await acquire(pool);
    expect(pool.status.target).toBe(5);
    await until(() => pool.status.ready >= 5, 1);
    bench.clock.advance(60_000);
    expect(pool.status.target).toBe(2);
    for (let index = 0; index < 30; index++) await acquire(pool);
    expect(pool.status.target).toBe(16);
  });

  test("passes over a machine that died while it waited, clears it away and replaces it", async () => {
    const pool = open();
    await full(pool);
    const [first] = pool.members;
    await bench.driver.crash(first?.place.slot ?? 0);
    const machine = await acquire(pool);
    expect(machine.source).toBe("pool");
    expect(slotOf(machine)).not.toBe(first?.place.slot);
    await until(() => !bench.driver.machines.has(first?.place.slot ?? 0));
    await full(pool);
    expect(pool.status.ready).toBe(2);
  });

  test("passes over one that dies in the very moment it is woken, and one that dies as it is put to sleep", async () => {
    const pool = open();
    await full(pool);
    bench.driver.fail("resume");
    const woken = await acquire(pool);
    expect(bench.driver.machine(slotOf(woken)).paused).toBe(false);
    bench.driver.fail("pause");
    await until(() => pool.status.ready === 2);
    for (const slot of bench.driver.machines.keys())
      expect(pool.members.some(({ place }) => place.slot === slot) || slot === slotOf(woken)).toBe(true);
  });

  test("resumes one ahead of a create that is expected, and lets it wait again when none comes", async () => {
    const pool = open();
    await full(pool);
    const paused = (): (boolean | undefined)[] =>
      [...bench.driver.machines.values()].filter(({ guest }) => guest !== undefined).map((one) => one.paused);
    pool.expect(DISK_MIB);
    expect(paused()).toEqual([false, true]);
    expect(bench.driver.machine(slotOf(await acquire(pool))).paused).toBe(false);
    await full(pool);
    expect(pool.status.ready).toBe(2);

    pool.expect(100); // of another size: none of these is meant
    expect(paused()).toEqual([false, true, true]); // that which was acquired, and both that wait
    for (let count = 0; count < 3; count++) pool.expect(DISK_MIB);
    expect(paused()).toEqual([false, false, false]);
    bench.clock.advance(2000);
    await until(() => pool.status.ready === 2);
    expect(paused()).toEqual([false, true, true]);
  });

  test("stops without a trace while one that was resumed for nothing is put back", async () => {
    const pool = open();
    await full(pool);
    pool.expect(DISK_MIB);
    const release = bench.driver.hold("pause");
    bench.clock.advance(2000);
    expect(pool.status.ready).toBe(1);
    const stopped = pool.stop();
    release();
    await stopped;
    expect(bench.inPlace).toEqual(NOTHING);
  });

  test("never hands out or keeps a machine that came up unlocked", async () => {
    bench.driver.restoresUnlocked = true;
    const pool = open();
    await expect(acquire(pool)).rejects.toThrow("not locked");
    bench.driver.restoresUnlocked = false;
    await full(pool);
    expect(
      [...bench.driver.machines.values()].every(({ guest }) => guest === undefined || guest.locked),
    ).toBe(true);
  });

  test("gives every machine an identity of its own, which no later one has, not even in the same slot", async () => {
    const pool = open({ readyTarget: 1, shellTarget: 1 });
    const ids = new Set<string>();
    for (let turn = 0; turn < 4; turn += 1) {
      await full(pool, 2);
      const { handle, guest } = await acquire(pool);
      expect(handle.place.incarnationId).toMatch(/^mch[a-z0-9]{25}$/);
      ids.add(handle.place.incarnationId);
      guest.close();
      await bench.slots.clear(handle.place.slot);
    }
    expect(ids.size).toBe(4);
  });

  test("refuses to hand out a machine again, should anything ever put one back", async () => {
    const pool = open({ readyTarget: 0, shellTarget: 0 });
    const first = await acquire(pool);
    const start = bench.driver.start.bind(bench.driver);
    bench.driver.start = () => Promise.resolve(first.handle); // a driver that gives out one that it gave before
    await expect(pool.acquire(DISK_MIB, never)).rejects.toThrow("a second time");
    bench.driver.start = start;
  });

  test("leaves nothing of a create whose restore fails, and the next one works", async () => {
    const pool = open({ readyTarget: 0, shellTarget: 0 });
    bench.driver.fail("restore");
    await expect(acquire(pool)).rejects.toThrow("fails to restore");
    expect(bench.inPlace).toEqual(NOTHING);
    await acquire(pool);
  });

  test("tries again after a refill that failed, later each time", async () => {
    bench.driver.fail("restore", 3);
    const pool = open();
    await until(() => bench.driver.kills === 1, 1);
    const attempts: number[] = [bench.clock.monotonic()];
    for (const kills of [2, 3]) {
      await until(() => bench.driver.kills === kills, 50);
      attempts.push(bench.clock.monotonic());
    }
    const pauses = attempts.slice(1).map((at, index) => at - (attempts[index] ?? 0));
    // 1 s, then 2 s; how late the test sees the first failure takes something off, on a busy machine.
    expect(pauses[0]).toBeGreaterThanOrEqual(500);
    expect(pauses[1]).toBeGreaterThanOrEqual(1500);
    await until(() => pool.status.ready === 2, 100);
  });

  test("forgets a create that is not wanted any more before its turn", async () => {
    const pool = open({ readyTarget: 0, shellTarget: 0, restoreGate: new Gate(1) });
    const release = bench.driver.hold("restore");
    const first = acquire(pool);
    const abort = new AbortController();
    const second = acquire(pool, DISK_MIB, abort.signal);
    abort.abort();
    release();
    await expect(second).rejects.toThrow();
    expect([...bench.driver.machines.keys()]).toEqual([slotOf(await first)]);
  });

  test("stops without a trace, also in the middle of a refill", async () => {
    for (const step of ["prepare", "restore", "pause"] as const) {
      const release = bench.driver.hold(step);
      const pool = open();
      await until(() => bench.router.slots.size > 0);
      const stopped = pool.stop();
      release();
      await stopped;
      expect(bench.inPlace).toEqual(NOTHING);
    }
    const filled = open();
    await full(filled);
    await filled.stop();
    expect(bench.inPlace).toEqual(NOTHING);
    await until(() => true, 100_000);
    expect(bench.inPlace).toEqual(NOTHING);
  });

  test("hands every machine out once, whatever dies and whoever asks meanwhile", async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(
          fc.oneof(
            { weight: 4, arbitrary: fc.constant("acquire" as const) },
            { weight: 1, arbitrary: fc.constant("crash" as const) },
            { weight: 2, arbitrary: fc.constant("wait" as const) },
            { weight: 2, arbitrary: fc.constant("expect" as const) },
          ),
          { minLength: 1, maxLength: 20 },
        ),
        async (steps) => {
          const pool = open();
          const asked: Promise<PristineMachine>[] = [];
          for (const step of steps) {
            if (step === "expect") pool.expect(DISK_MIB);
            if (step === "acquire") asked.push(pool.acquire(DISK_MIB, never));
            if (step === "crash") {
              const victim = pool.members[0];
              if (victim !== undefined) await bench.driver.crash(victim.place.slot);
            }
            if (step === "wait") await until(() => pool.status.ready > 0);
          }
          const got = await Promise.all(asked);
          expect(new Set(got.map(slotOf)).size).toBe(got.length);
          for (const machine of got) {
            expect(bench.driver.machine(slotOf(machine))).toMatchObject({
              alive: true,
              paused: false,
              guest: { locked: true },
            });
            expect(pool.members.map(({ place }) => place.slot)).not.toContain(slotOf(machine));
          }
          await pool.stop();
          expect(new Set(bench.inPlace.machines)).toEqual(new Set(got.map(slotOf)));
          for (const machine of got) {
            machine.guest.close();
            await bench.slots.clear(slotOf(machine));
          }
          expect(bench.inPlace).toEqual(NOTHING);
        },
      ),
      { numRuns: 15 },
    );
  });
});
