import { FakeClock } from "@torpor/base";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import type { MachineHandle } from "../src/driver/driver.ts";
import { Shells } from "../src/machine/shells.ts";

const never = new AbortController().signal;

let clock: FakeClock;
let started: number;
let ended: number[];
let discarded: number[];
let paused: Set<number>;
let dead: Set<number>;
let hold: Promise<void> | undefined;
let failure: Error | undefined;
let work: Promise<void>[];
let shells: Shells;

const slotOf = ({ place }: MachineHandle): number => place.slot;

function open(least = 1): Shells {
  return new Shells({
    driver: {
      adopt: (handle) => !dead.has(slotOf(handle)),
      pause: async (handle) => {
        await hold;
        if (failure !== undefined) throw failure;
        paused.add(slotOf(handle));
      },
      resume: (handle) => void paused.delete(slotOf(handle)),
    },
    clock,
    least,
    demandMs: 60_000,
    start: async () => {
      const slot = (started += 1);
      await hold;
      if (failure !== undefined) throw failure;
      return { place: { slot }, process: {} } as unknown as MachineHandle;
    },
    discard: (shell) => void discarded.push(slotOf(shell)),
    end: (shell) => void ended.push(slotOf(shell)),
    track: (promise) => void work.push(promise),
  });
}

async function fill(): Promise<void> {
  while (shells.waiting.length < shells.target) await shells.add(never);
}

async function taken(): Promise<number | undefined> {
  const shell = await shells.take();
  return shell && slotOf(shell);
}

beforeEach(() => {
  clock = new FakeClock();
  [started, ended, discarded, paused, dead, work] = [0, [], [], new Set(), new Set(), []];
  [hold, failure] = [undefined, undefined];
  shells = open();
});
afterEach(async () => {
  shells.close();
  await Promise.all(work);
});

describe("empty processes", () => {
  test("wait as many as were asked for within a minute, within bounds, and are ended when they are needed no more", async () => {
    await fill();
    expect(shells.target).toBe(1);
    for (let index = 0; index < 5; index++) await taken();
    expect(shells.target).toBe(5);
    await fill();
    for (let index = 0; index < 20; index++) await taken();
    expect(shells.target).toBe(8);
    await fill();
    clock.advance(30_000);
    await Promise.all(work);
    expect(await taken()).toBeDefined();
    await fill();
    clock.advance(30_002);
    expect([shells.target, shells.waiting.length, ended.length]).toEqual([1, 1, 7]);
    clock.advance(600_000);
    expect([shells.waiting.length, ended.length]).toEqual([1, 7]);
  });

  test("are stopped half a second after their start, and go on when they are taken", async () => {
    await fill();
    clock.advance(600);
    await Promise.all(work);
    expect([...paused]).toEqual([1]);
    expect(await taken()).toBe(1);
    expect([...paused]).toEqual([]);
  });

  test("are started at once when more are expected than wait, but not for ever", async () => {
    await fill();
    expect(shells.areShort).toBe(false);
    shells.expect(3);
    expect([shells.areShort, shells.target]).toEqual([true, 3]);
    await fill();
    expect(shells.areShort).toBe(false);
    shells.expect(100);
    expect([shells.areShort, shells.target]).toEqual([true, 8]);
    await fill();
    expect(shells.areShort).toBe(false);
    clock.advance(10_001);
    await Promise.all(work);
    expect([shells.areExpected, shells.target, shells.waiting.length, ended.length]).toEqual([
      false,
      1,
      1,
      7,
    ]);
  });

  test("are given up a minute after each was asked for, whenever that was", async () => {
    for (let index = 0; index < 3; index++) await taken();
    clock.advance(30_000);
    for (let index = 0; index < 2; index++) await taken();
    await fill();
    expect(shells.waiting.length).toBe(5);
    clock.advance(30_002);
    expect(shells.waiting.length).toBe(2);
    clock.advance(30_000);
    expect(shells.waiting.length).toBe(1);
  });

  test("count what is expected and then asked for once", async () => {
    shells.expect(3);
    await fill();
    for (let index = 0; index < 3; index++) await taken();
    expect([shells.areShort, shells.target]).toEqual([false, 3]);
  });

  test("are given out while they are being started, each once", async () => {
    let go = (): void => {};
    hold = new Promise((resolve) => (go = resolve));
    const adding = shells.add(never);
    const both = Promise.all([taken(), taken()]);
    go();
    await adding;
    expect(await both).toEqual([1, undefined]);
    expect(shells.waiting).toEqual([]);
  });

  test("that cannot be started are told to whoever starts them, and nobody waits for them", async () => {
    failure = new Error("no room");
    const adding = shells.add(never);
    const taking = taken();
    await expect(adding).rejects.toThrow("no room");
    expect(await taking).toBeUndefined();
  });

  test("that have died, or cannot be stopped, are discarded", async () => {
    shells.expect(2);
    await fill();
    dead.add(1);
    expect(await taken()).toBe(2);
    await shells.add(never);
    failure = new Error("no freezer");
    clock.advance(600);
    await Promise.all(work);
    expect([discarded, shells.waiting]).toEqual([[1, 3], []]);
  });

  test("do not wait at all where none are wanted", async () => {
    shells = open(0);
    shells.expect(8);
    expect([shells.areShort, shells.target, await taken()]).toEqual([false, 0, undefined]);
    expect(shells.target).toBe(0);
  });
});
