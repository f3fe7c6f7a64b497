import { join } from "node:path";
import { silentLog } from "@torpor/base";
import Database from "better-sqlite3";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { momentOf } from "../src/machine/boot-moment.ts";
import { Reconciliation } from "../src/machine/reconciliation.ts";
import { FakeGuest } from "./fakes/fake-guest.ts";
import { fakeAddress } from "./fakes/fake-router.ts";
import { journalEntry, OWN_PROCESS as OWN, TEST_SPEC } from "./fakes/journal-entry.ts";
import { MachineBench, NOTHING } from "./fakes/machine-bench.ts";
import { until } from "./fakes/until.ts";

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
    const deadlineUnixMs = bench.clock.now() + 1000;
    bench.journal.put(
      journalEntry({ ...running, deadlineUnixMs, deadlineMoment: momentOf(deadlineUnixMs, bench.clock) }),
    );
    expect(await bench.restart()).toEqual({ adopted: 1, failed: 0, ended: 0, swept: [] });
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
    bench.journal.put(
      journalEntry({
        ...running,
        deadlineUnixMs: bench.clock.now() - 1,
        deadlineMoment: momentOf(bench.clock.now() - 1, bench.clock),
      }),
    );
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
  ] as const)(
    "ends one that %s, with a reason, and clears its slot away",
    async (_what, changes, reason, message) => {
      bench.router.slots.set(SLOT, "internet");
      bench.journal.put(journalEntry({ ...running, ...changes }));
      expect(await bench.restart()).toMatchObject({ adopted: 0, ended: 1 });
      await until(() => bench.machines.get("one")?.state === "ended");
      expect(bench.machines.get("one")).toMatchObject({
        reason,
        message: expect.stringMatching(message) as string,
      });
      await bench.slots.sweep();
      expect(bench.inPlace).toEqual(NOTHING);
      expect(bench.events).toEqual([`ended: ${reason}`]);
    },
  );

  test.each([
    ["has no process any more", { pid: 4_194_305 }],
    ["has another process under its pid", { startTime: OWN.startTime + 1 }],
    ["has half a record", { startTime: null }],
  ] as const)("fails one that %s, with a reason, and takes its network away", async (_what, changes) => {
    bench.router.slots.set(SLOT, "internet");
    bench.journal.put(journalEntry({ ...running, ...changes }));
    expect(await bench.restart()).toMatchObject({ adopted: 0, failed: 1, swept: [] });
    await until(() => bench.inPlace.networks.length === 0);
    expect(bench.machines.get("one")).toMatchObject({
      state: "failed",
      reason: "runtime_crashed",
      message: expect.stringMatching(/ended while the host was away/) as string,
    });
    await until(() => bench.events.length === 1);
    expect(bench.events).toEqual(["failed: runtime_crashed"]);
    expect(await bench.restart()).toMatchObject({ adopted: 0, failed: 1 }); // it stays so over restarts
    expect((await bench.machines.end("one", "user")).reason).toBe("runtime_crashed");
    expect(bench.inPlace).toEqual(NOTHING);
  });

  test("never ends the machine that stands in a slot which the journal, out of date, gives to another too", async () => {
    guest = await FakeGuest.listen(fakeAddress(SLOT), () => "attests", undefined, false);
    bench.router.slots.set(SLOT, "internet");
    bench.journal.put(journalEntry({ ...running, id: "gone", pid: 4_194_305 }));
    bench.journal.put(journalEntry({ ...running, id: "two", state: "ending", reason: "user", pid: null }));
    bench.journal.put(journalEntry(running));
    expect(await bench.restart()).toMatchObject({ adopted: 1, failed: 1, ended: 1 });
    await until(() => bench.machines.get("two")?.state === "ended");
    expect([bench.driver.kills, bench.inPlace.networks]).toEqual([0, [SLOT]]);
    bench.machines.reach("one");
  });

  test("waits for no guest: one that does not answer keeps nobody up, and is ended by the watch on agents", async () => {
    guest = await FakeGuest.listen(fakeAddress(SLOT), () => "attests", undefined, false);
    guest.silent = true;
    bench.router.slots.set(SLOT, "internet");
    bench.journal.put(journalEntry(running));
    const startedAt = performance.now();
    expect(await bench.restart()).toMatchObject({ adopted: 1, failed: 0 });
    expect(performance.now() - startedAt).toBeLessThan(500);
    expect(bench.machines.get("one")?.state).toBe("running");
    await bench.machines.end("one", "user");
  });

  test("unlocks one that was left locked in the middle of a snapshot that had failed", async () => {
    guest = await FakeGuest.listen(fakeAddress(SLOT), () => "attests");
    bench.router.slots.set(SLOT, "internet");
    bench.journal.put(journalEntry({ ...running, generation: 4 }));
    await bench.restart();
    await until(() => guest?.locked === false);
    await bench.machines.awaken("one");
    expect(guest.inits).toMatchObject([{ generation: 4, previous_host_key: "key" }]);
  });

  test("leaves what had ended as it was, and tells nobody again", async () => {
    bench.journal.put(journalEntry({ ...running, state: "ended", endedAt: 5, reason: "idle" }));
    expect(await bench.restart()).toEqual({ adopted: 0, failed: 0, ended: 0, swept: [] });
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

  test("is not kept by one that cannot be cleared away, and comes to the same end later", async () => {
    bench.router.slots.set(SLOT, "internet");
    for (const id of ["a", "b", "c"])
      bench.journal.put(
        journalEntry({ ...running, id, state: "ending", reason: "idle", pid: null, slot: SLOT }),
      );
    bench.driver.fail("kill", 2);
    expect(await bench.restart()).toMatchObject({ ended: 3 });
    bench.machines.watch();
    await until(() => ["a", "b", "c"].every((id) => bench.machines.get(id)?.state === "ended"));
    expect(bench.inPlace).toEqual(NOTHING);
  });
});

describe("a record that cannot be read", () => {
  function damage(id: string): void {
    const database = new Database(join(bench.directory, "journal.sqlite"));
    database.prepare("UPDATE machines SET body = ? WHERE id = ?").run('{"id":', id);
    database.close();
  }

  beforeEach(async () => {
    guest = await FakeGuest.listen(fakeAddress(SLOT), () => "attests", undefined, false);
    for (const slot of [SLOT, SLOT + 1]) bench.router.slots.set(slot, "internet");
    const entry = { state: "running", slot: SLOT, address: fakeAddress(SLOT), ...OWN } as const;
    bench.journal.put(journalEntry({ ...entry, id: "one" }));
    bench.journal.put(journalEntry({ ...entry, id: "broken", slot: SLOT + 1 }));
    damage("broken");
  });

  test("does not keep the others, and nothing that may be its is touched", async () => {
    expect(await bench.restart()).toEqual({ adopted: 1, failed: 0, ended: 0, swept: [] });
    expect(bench.machines.brokenRecords).toMatchObject([{ id: "broken", slot: SLOT + 1 }]);
    expect(bench.inPlace.networks).toEqual([SLOT, SLOT + 1]);
    bench.machines.reach("one");
    // Unknown is not the same as not there: nobody may take it for gone, or make it anew.
    expect(() => bench.machines.get("broken")).toThrow(/cannot be read/);
    await expect(bench.machines.create("broken", TEST_SPEC)).rejects.toThrow(/cannot be read/);
    await expect(bench.machines.end("broken", "user")).rejects.toThrow(/cannot be read/);
  });

  test("of which not even the slot is known, keeps every slot from being swept", async () => {
    const database = new Database(join(bench.directory, "journal.sqlite"));
    database.prepare("UPDATE machines SET slot = NULL WHERE id = 'broken'").run();
    database.close();
    await bench.restart();
    expect(bench.machines.allSlotsKnown).toBe(false);
    expect(bench.inPlace.networks).toEqual([SLOT, SLOT + 1]);
  });

  test("is given up when a person says so, with what stands in its slot", async () => {
    await bench.restart();
    const { images, slots, machines } = bench;
    const reconciliation = new Reconciliation({ machines, slots, images, log: silentLog });
    bench.router.slots.set(77, "internet");
    expect(await reconciliation.findings()).toMatchObject([
      { kind: "record_unreadable", what: "broken" },
      { kind: "slot_unclaimed", what: "77" },
    ]);
    const { repaired, failed, left } = await reconciliation.repair();
    expect([repaired.length, failed, left]).toEqual([2, [], []]);
    expect(bench.machines.get("broken")).toBeUndefined();
    expect(bench.inPlace.networks).toEqual([SLOT]);
    expect(await reconciliation.findings()).toEqual([]);
  });
});
