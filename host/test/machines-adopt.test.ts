import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { processIdentity } from "../src/process-identity.ts";
import { FakeGuest } from "./fakes/fake-guest.ts";
import { fakeAddress } from "./fakes/fake-router.ts";
import { journalEntry, TEST_SPEC } from "./fakes/journal-entry.ts";
import { MachineBench, NOTHING } from "./fakes/machine-bench.ts";

/** The one process sure to live: this one. */
const OWN = { pid: process.pid, startTime: processIdentity(process.pid)?.startTime ?? 0 };
const SLOT = 9;

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

describe("a host that comes back", () => {
  const running = { id: "one", state: "running", slot: SLOT, address: fakeAddress(SLOT), ...OWN } as const;

  test("takes over a machine whose process lives and whose guest answers, and guards its slot", async () => {
    guest = await FakeGuest.listen(
      fakeAddress(SLOT),
      () => "attests",
      () => [],
      false,
    );
    bench.router.slots.set(SLOT, "internet");
    bench.journal.put(journalEntry({ ...running, deadlineUnixMs: bench.clock.now() + 1000 }));
    expect(await bench.restart()).toEqual({ adopted: 1, ended: 0, swept: [] });
    expect(bench.machines.reach("one")).toMatchObject({
      entry: { id: "one", accessToken: "token" },
      handle: { process: OWN, place: { slot: SLOT } },
    });
    expect(bench.events).toEqual(["started"]);
    bench.clock.advance(1000);
    while (bench.machines.get("one")?.state !== "ended")
      await new Promise((resolve) => setImmediate(resolve));
    expect(bench.machines.get("one")?.reason).toBe("ttl_expired");
    expect(bench.inPlace).toEqual(NOTHING);
  });

  test("ends at once what fell due while it was away", async () => {
    guest = await FakeGuest.listen(
      fakeAddress(SLOT),
      () => "attests",
      () => [],
      false,
    );
    bench.journal.put(journalEntry({ ...running, deadlineUnixMs: bench.clock.now() - 1 }));
    await bench.restart();
    bench.clock.advance(0);
    while (bench.machines.get("one")?.state !== "ended")
      await new Promise((resolve) => setImmediate(resolve));
    expect(bench.machines.get("one")?.reason).toBe("ttl_expired");
  });

  test.each([
    [
      "was being created",
      { state: "creating", slot: null, pid: null, startTime: null },
      "create_failed",
      /restarted while it was being created/,
    ],
    ["was being ended", { state: "ending", reason: "user", message: "asked for" }, "user", /^asked for$/],
    ["has no process any more", { pid: 4_194_305 }, "runtime_crashed", /ended while the host was away/],
    [
      "has another process under its pid",
      { startTime: OWN.startTime + 1 },
      "runtime_crashed",
      /ended while the host was away/,
    ],
    ["has half a record", { startTime: null }, "runtime_crashed", /ended while the host was away/],
  ] as const)(
    "ends one that %s, with a reason, and clears its slot away",
    async (_what, changes, reason, message) => {
      bench.router.slots.set(SLOT, "internet");
      bench.journal.put(journalEntry({ ...running, ...changes }));
      expect(await bench.restart()).toMatchObject({ adopted: 0, ended: 1 });
      expect(bench.machines.get("one")).toMatchObject({
        state: "ended",
        reason,
        message: expect.stringMatching(message) as string,
      });
      expect(bench.inPlace).toEqual(NOTHING);
      expect(bench.events).toEqual([`ended: ${reason}`]);
    },
  );

  test("ends one whose guest does not answer, without keeping the others waiting for long", async () => {
    bench.journal.put(journalEntry(running));
    const startedAt = performance.now();
    expect(await bench.restart()).toMatchObject({ adopted: 0, ended: 1 });
    expect(performance.now() - startedAt).toBeLessThan(15_000);
    expect(bench.machines.get("one")).toMatchObject({
      state: "ended",
      reason: "runtime_crashed",
      message: expect.stringContaining("could not be adopted") as string,
    });
  });

  test("leaves what had ended as it was, and tells nobody again", async () => {
    bench.journal.put(journalEntry({ ...running, state: "ended", endedAt: 5, reason: "idle" }));
    expect(await bench.restart()).toEqual({ adopted: 0, ended: 0, swept: [] });
    expect(bench.machines.get("one")).toMatchObject({ state: "ended", reason: "idle" });
    expect(bench.events).toEqual([]);
  });

  test("sweeps every slot in place that no machine of the journal stands in", async () => {
    await bench.machines.create("lost", TEST_SPEC);
    bench.router.slots.set(77, "none");
    bench.journal.put({ ...journalEntry(), id: "lost", state: "ended", endedAt: 1, reason: "user" });
    expect((await bench.restart()).swept).toEqual([1, 77]);
    expect(bench.inPlace).toEqual(NOTHING);
  });

  test("can be killed half-way and comes to the same end", async () => {
    bench.router.slots.set(SLOT, "internet");
    for (const id of ["a", "b", "c"])
      bench.journal.put(journalEntry({ ...running, id, pid: 4_194_305, slot: SLOT }));
    bench.driver.fail("kill");
    await expect(bench.restart()).rejects.toThrow("fails to kill");
    await new Promise((resolve) => setTimeout(resolve, 20));
    await bench.restart();
    for (const id of ["a", "b", "c"])
      expect(bench.machines.get(id)).toMatchObject({ state: "ended", reason: "runtime_crashed" });
    expect(bench.inPlace).toEqual(NOTHING);
  });
});
