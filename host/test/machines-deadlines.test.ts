import { systemClock } from "@torpor/base";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { FakeGuest } from "./fakes/fake-guest.ts";
import { fakeAddress } from "./fakes/fake-router.ts";
import { journalEntry, OWN_PROCESS as OWN, TEST_SPEC } from "./fakes/journal-entry.ts";
import { MachineBench, NOTHING } from "./fakes/machine-bench.ts";
import { until } from "./fakes/until.ts";

const HOUR_MS = 3600_000;
const SLOT = 9;
const STANDING = { id: "one", slot: SLOT, address: fakeAddress(SLOT), ...OWN } as const;

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

function state(id = "one"): string | undefined {
  return bench.machines.get(id)?.state;
}

/** Lets what the clock has set off be done. */
async function advance(ms: number): Promise<void> {
  bench.clock.advance(ms);
  await new Promise((resolve) => setTimeout(resolve, 25));
}

async function createDueIn(ms: number, changes: Partial<typeof TEST_SPEC> = {}): Promise<void> {
  await bench.machines.create("one", { ...TEST_SPEC, deadline_unix_ms: bench.clock.now() + ms, ...changes });
}

/** What the API shows of the time that is left. */
function shownLeftMs(): number {
  return (bench.machines.get("one")?.deadline_unix_ms ?? Number.NaN) - bench.clock.now();
}

describe("the absolute end", () => {
  const atEnd = (): Partial<typeof TEST_SPEC> => ({ max_lifetime_unix_ms: bench.clock.now() + 60_000 });

  test("ends it with its own reason, though its TTL is later", async () => {
    await createDueIn(HOUR_MS, atEnd());
    await advance(59_999);
    expect(state()).toBe("running");
    await advance(1);
    await until(() => state() === "ended");
    expect(bench.machines.get("one")).toMatchObject({ reason: "max_lifetime" });
  });

  test("ends one that sleeps too, and is moved by no jump of the wall clock", async () => {
    await bench.machines.create("one", { ...TEST_SPEC, ...atEnd(), deadline_unix_ms: null });
    await bench.machines.hibernate("one");
    bench.clock.jump(2 * HOUR_MS);
    await advance(59_000);
    expect(state()).toBe("hibernated");
    await advance(1_000);
    await until(() => state() === "ended");
    expect(bench.machines.get("one")).toMatchObject({ reason: "max_lifetime" });
  });
});

describe.each([
  ["forward", 2 * HOUR_MS],
  ["back", -2 * HOUR_MS],
])("a wall clock set two hours %s", (_way, jumpMs) => {
  test("moves no deadline of a running machine, and what is shown follows it", async () => {
    await createDueIn(60_000);
    bench.machines.watch();
    await advance(10_000);
    bench.clock.jump(jumpMs);
    await until(() => shownLeftMs() === 50_000);
    expect(bench.journal.get("one")?.deadlineUnixMs).toBe(bench.clock.now() + 50_000);
    expect(bench.events).toEqual(["started", "deadline_changed"]);
    await advance(49_999);
    expect(state()).toBe("running");
    await advance(1);
    await until(() => state() === "ended");
    expect(bench.machines.get("one")?.reason).toBe("ttl_expired");
  });

  test("moves none before it is noticed, whatever is asked of the machine in that moment", async () => {
    await createDueIn(60_000);
    bench.clock.jump(jumpMs);
    await bench.machines.pause("one");
    await bench.machines.resume("one");
    bench.machines.update("one", { idle_timeout_seconds: 1000 });
    await advance(59_999);
    expect(state()).toBe("running");
    await advance(1);
    await until(() => state() === "ended");
  });

  test("moves no retention of an image", async () => {
    await createDueIn(100 * HOUR_MS, { retention_seconds: 100 });
    bench.machines.watch();
    await bench.machines.hibernate("one");
    bench.clock.jump(jumpMs);
    await advance(99_000);
    await new Promise((resolve) => setTimeout(resolve, 300));
    expect(state()).toBe("hibernated");
    await advance(1_000);
    await until(() => state() === "ended");
    expect(bench.machines.get("one")?.reason).toBe("retention");
  });

  test("while no host lived moves none either: the machine was not restarted, its monotonic clock went on", async () => {
    await createDueIn(60_000);
    guest = await FakeGuest.listen(fakeAddress(SLOT), () => "attests", undefined, false);
    const entry = bench.journal.get("one");
    bench.journal.put(journalEntry({ ...entry, ...STANDING }));
    bench.clock.advance(10_000);
    bench.clock.jump(jumpMs);
    await bench.restart();
    expect(shownLeftMs()).toBe(50_000);
    await advance(49_999);
    expect(state()).toBe("running");
    await advance(1);
    await until(() => state() === "ended");
  });
});

describe("after a restart of the machine the wall clock holds", () => {
  /** A machine that sleeps, due in a minute and a half, and a host that comes back `awayMs` later. */
  async function comeBackAfter(awayMs: number, changes: Partial<typeof TEST_SPEC> = {}): Promise<void> {
    await createDueIn(90_000, changes);
    await bench.machines.hibernate("one");
    bench.machines.stopWatching();
    bench.clock.jump(awayMs);
    bench.clock.reboot();
    await bench.restart();
    await until(() => state() === "hibernated");
  }

  test("a deadline yet to come falls due when it is", async () => {
    await comeBackAfter(20_000);
    await advance(69_999);
    expect(state()).toBe("hibernated");
    await advance(1);
    await until(() => state() === "ended");
  });

  test("one that has passed falls due after a minute's grace, in which it can be renewed", async () => {
    await comeBackAfter(5 * HOUR_MS);
    await advance(59_999);
    expect(state()).toBe("hibernated");
    bench.machines.update("one", { deadline_unix_ms: bench.clock.now() + 1000 });
    await advance(999);
    expect(state()).toBe("hibernated");
    await advance(1);
    await until(() => state() === "ended");
  });

  test("a clock that the network sets right within the grace is believed", async () => {
    await comeBackAfter(-5 * HOUR_MS); // the machine came up hours in the past
    bench.machines.watch();
    await advance(10_000);
    bench.clock.jump(5 * HOUR_MS + 20_000);
    await new Promise((resolve) => setTimeout(resolve, 300));
    expect(shownLeftMs()).toBe(60_000);
    await advance(59_999);
    expect(state()).toBe("hibernated");
    await advance(1);
    await until(() => state() === "ended");
  });

  test("a retention that has passed has the same grace", async () => {
    await comeBackAfter(5 * HOUR_MS, { retention_seconds: 100, deadline_unix_ms: null });
    await advance(59_999);
    expect(state()).toBe("hibernated");
    await advance(1);
    await until(() => state() === "ended");
    expect(bench.machines.get("one")?.reason).toBe("retention");
  });
});

describe("a deadline that falls due while something is under way waits for it, then acts", () => {
  test.each(["hibernate", "pause", "snapshot"] as const)("a %s", async (verb) => {
    await createDueIn(1000);
    const release = bench.driver.hold(verb === "pause" ? "pause" : "checkpoint");
    const moving =
      verb === "snapshot"
        ? bench.machines.snapshot("one", `snp${"0".repeat(20)}1`)
        : bench.machines[verb]("one");
    await until(() => verb === "pause" || state() !== "running");
    await advance(5000);
    expect(state()).not.toMatch(/^end/);
    release();
    await moving;
    await advance(0);
    await until(() => state() === "ended");
    expect(bench.machines.get("one")?.reason).toBe("ttl_expired");
    expect(await bench.inPlaceOnceTidy()).toEqual(NOTHING);
  });

  test("a wake", async () => {
    await createDueIn(1000);
    await bench.machines.hibernate("one");
    const release = bench.driver.hold("restore");
    const waking = bench.machines.wake("one");
    await advance(5000);
    expect(state()).toBe("waking");
    release();
    await waking;
    await advance(0);
    await until(() => state() === "ended");
    expect([await bench.inPlaceOnceTidy(), bench.imagesInPlace]).toEqual([NOTHING, []]);
  });
});

test("200 machines with deadlines of their own end within a quarter of a second of them, on the real clock and under load", async () => {
  bench.timekeeper = systemClock;
  await bench.restart();
  const dueIn = (): number => Date.now() + 1500 + Math.floor(Math.random() * 2500);
  const ids = Array.from({ length: 200 }, (_, index) => `m${index}`);
  await Promise.all(ids.map((id) => bench.machines.create(id, { ...TEST_SPEC, deadline_unix_ms: dueIn() })));
  bench.machines.watch();
  // Owners go on renewing: half of them are moved, some of those twice.
  for (const id of [...ids.slice(0, 100), ...ids.slice(0, 30)])
    bench.machines.update(id, { deadline_unix_ms: dueIn() });
  while (ids.some((id) => state(id) !== "ended")) await new Promise((resolve) => setTimeout(resolve, 20));
  const overshoots = ids
    .map((id) => {
      const { ended_at: at, deadline_unix_ms: deadline } = bench.machines.get(id) ?? {};
      return Date.parse(at ?? "") - (deadline ?? Number.NaN);
    })
    .toSorted((a, b) => a - b);
  const [p50, p99, max] = [overshoots[99], overshoots[197], overshoots[199]];
  process.stdout.write(`200 deadlines, fake driver: overshoot p50 ${p50} ms, p99 ${p99} ms, max ${max} ms\n`);
  expect(overshoots[0]).toBeGreaterThanOrEqual(-2); // the two clocks tick apart
  expect(p99).toBeLessThan(250);
  expect(max).toBeLessThan(1000);
});

describe("a renewal", () => {
  test("while a sleep is under way survives the sleep's failure", async () => {
    await createDueIn(60_000, { on_expire: "hibernate" });
    const release = bench.driver.hold("checkpoint");
    const sleep = bench.machines.hibernate("one").catch(() => "refused");
    await until(() => state() === "hibernating");
    const renewed = bench.clock.now() + 900_000;
    bench.machines.update("one", { deadline_unix_ms: renewed });
    bench.driver.fail("checkpoint");
    release();
    expect(await sleep).toBe("refused");
    expect(bench.machines.get("one")?.deadline_unix_ms).toBe(renewed);
    expect(bench.journal.get("one")?.deadlineUnixMs).toBe(renewed);
  });

  test("while a wake is under way survives the wake's failure", async () => {
    await createDueIn(60_000, { on_expire: "hibernate" });
    await bench.machines.hibernate("one");
    const release = bench.driver.hold("restore");
    const wake = bench.machines.wake("one").catch(() => "refused");
    await until(() => state() === "waking");
    const renewed = bench.clock.now() + 900_000;
    bench.machines.update("one", { deadline_unix_ms: renewed });
    bench.driver.fail("restore");
    release();
    expect(await wake).toBe("refused");
    expect(bench.machines.get("one")).toMatchObject({ state: "hibernated", deadline_unix_ms: renewed });
  });

  test("at the last moment wins, and one that comes when the machine has begun to fall asleep is refused", async () => {
    await createDueIn(1000, { on_expire: "hibernate" });
    await advance(999);
    bench.machines.update("one", { deadline_unix_ms: bench.clock.now() + 1000 });
    await advance(999);
    expect(state()).toBe("running");
    const release = bench.driver.hold("checkpoint");
    await advance(1);
    expect(() => bench.machines.update("one", { deadline_unix_ms: bench.clock.now() + 9000 })).toThrow(
      expect.objectContaining({ code: "wrong_state" }) as Error,
    );
    release();
    await until(() => state() === "hibernated");
    expect(bench.machines.get("one")?.deadline_unix_ms).toBeNull();
  });
});
