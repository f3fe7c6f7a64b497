import { FakeClock, systemClock } from "@torpor/base";
import { describe, expect, test } from "vitest";

describe("the fake clock", () => {
  test("fires what falls due in order, each at its own time, and nothing else", () => {
    const clock = new FakeClock(1000);
    const fired: [string, number][] = [];
    clock.after(30, () => fired.push(["late", clock.now()]));
    clock.after(10, () => fired.push(["early", clock.now()]));
    clock.after(31, () => fired.push(["not yet", clock.now()]));
    clock.advance(30);
    expect(fired).toEqual([
      ["early", 1010],
      ["late", 1030],
    ]);
  });

  test("fires a timer that a firing timer sets within the same advance", () => {
    const clock = new FakeClock();
    let fired = 0;
    clock.after(10, () => clock.after(5, () => (fired = clock.monotonic())));
    clock.advance(20);
    expect(fired).toBe(15);
  });

  test("does not fire a cancelled timer", () => {
    const clock = new FakeClock();
    let fired = false;
    clock.after(10, () => (fired = true))();
    clock.advance(100);
    expect(fired).toBe(false);
  });

  test("moves the wall clock alone when it is set", () => {
    const clock = new FakeClock(1000);
    let fired = false;
    clock.after(10, () => (fired = true));
    clock.jump(3_600_000);
    expect([clock.now(), clock.monotonic(), fired]).toEqual([3_601_000, 0, false]);
  });
});

describe("the system clock", () => {
  test("fires, also for a delay in the past", async () => {
    await new Promise<void>((resolve) => systemClock.after(-5, resolve));
    await new Promise<void>((resolve) => systemClock.after(1, resolve));
  });

  test("keeps a delay longer than a timer can hold, instead of firing at once", async () => {
    let fired = false;
    const cancel = systemClock.after(30 * 24 * 3600 * 1000, () => (fired = true));
    await new Promise<void>((resolve) => systemClock.after(20, resolve));
    cancel();
    expect(fired).toBe(false);
  });
});
