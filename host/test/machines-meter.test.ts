import { afterEach, beforeEach, describe, expect, test } from "vitest";
import type { Machine } from "@torpor/protocol";
import { trafficIn } from "../src/driver/gvisor/traffic.ts";
import { OWN_PROCESS, TEST_SPEC } from "./fakes/journal-entry.ts";
import { MachineBench } from "./fakes/machine-bench.ts";
import { until } from "./fakes/until.ts";

let bench: MachineBench;
beforeEach(async () => {
  bench = new MachineBench();
  await bench.open();
});
afterEach(() => bench.close());

const slot = (): number => bench.machines.reach("one").handle.place.slot;
const known = (): Machine => bench.machines.get("one") as Machine;

/** The machine `one` computes and talks. */
function use(cpuMs: number, inBytes = 0, outBytes = 0): void {
  const fake = bench.driver.machine(slot());
  fake.cpuMs += cpuMs;
  fake.traffic = { inBytes: fake.traffic.inBytes + inBytes, outBytes: fake.traffic.outBytes + outBytes };
}

const shown = (machine: Machine) =>
  machine.moves.map(({ number, to, at, used }) => [number, to, Date.parse(at) - START, used.cpu_seconds]);

const START = 1_700_000_000_000;

describe("what a machine held and used", () => {
  test("is told move by move, with what it had used by then, over sleep, wake, pause and end", async () => {
    await bench.machines.create("one", TEST_SPEC);
    use(2_000, 10, 20);
    bench.clock.advance(10_000);
    await bench.machines.pause("one");
    bench.clock.advance(5_000);
    await bench.machines.resume("one");
    await until(() => known().state === "running");
    use(1_000);
    bench.clock.advance(1_000);
    await bench.machines.hibernate("one");
    bench.clock.advance(60_000);
    await bench.machines.wake("one");
    use(500);
    bench.clock.advance(1_000);
    const ended = await bench.machines.end("one", "user");
    expect(shown(ended)).toEqual([
      [1, "running", 0, 0],
      [2, "paused", 10_000, 2],
      [3, "running", 15_000, 2],
      [4, "hibernating", 16_000, 3],
      [5, "hibernated", 16_000, 3],
      [6, "running", 76_000, 3],
      [7, "ending", 77_000, 3.5],
    ]);
    expect(ended.moves.map(({ image_bytes: bytes }) => bytes > 0)).toEqual([
      false,
      false,
      false,
      false,
      true,
      false,
      false,
    ]);
    expect(ended.used).toMatchObject({ cpu_seconds: 3.5, network_in_bytes: 10, network_out_bytes: 20 });
    expect(bench.journal.get("one")?.meter?.moves).toEqual(ended.moves); // a server that comes late reads the same
  });

  test("does not count what its copy used while it waited in a pool", async () => {
    bench.driver.bootCpuMs = 700;
    await bench.machines.create("one", TEST_SPEC);
    use(300);
    expect((await bench.machines.end("one", "user")).used.cpu_seconds).toBe(0.3);
  });

  test("tells how long it ran with nobody asking anything of it and nothing being computed", async () => {
    await bench.machines.create("one", TEST_SPEC);
    bench.machines.watch();
    const counted = (): number => bench.journal.get("one")?.meter?.at ?? 0;
    const halfMinute = async (): Promise<void> => {
      bench.clock.advance(30_000);
      await until(() => counted() === bench.clock.now());
    };
    await halfMinute();
    expect(known().used.idle_seconds).toBe(30);
    use(20_000); // it computes by itself
    await halfMinute();
    expect(known().used.idle_seconds).toBe(30);
    const done = bench.machines.reach("one").activity.begin("request", "GET /");
    await halfMinute();
    expect(known().used.idle_seconds).toBe(30);
    bench.clock.advance(1);
    done();
    await halfMinute();
    expect(known().used.idle_seconds).toBe(30); // asked within it
    await halfMinute();
    expect(known().used.idle_seconds).toBe(60);
  });

  test("goes on being counted by the next host process, with nothing counted twice", async () => {
    await bench.machines.create("one", TEST_SPEC);
    use(2_000);
    bench.clock.advance(31_000);
    bench.machines.watch();
    await until(() => known().used.cpu_seconds === 2);
    bench.machines.stopWatching();
    const entry = bench.journal.get("one");
    if (entry !== undefined) bench.journal.put({ ...entry, ...OWN_PROCESS }); // a process that lives, for the adoption to find
    await bench.restart();
    use(1_000);
    bench.clock.advance(1_000);
    const ended = await bench.machines.end("one", "user");
    expect(shown(ended)).toEqual([
      [1, "running", 0, 0],
      [2, "ending", 32_000, 3],
    ]);
  });

  test("ends where a host last saw it when it ended while no host lived, and says how much later that was noticed", async () => {
    await bench.machines.create("one", TEST_SPEC);
    bench.clock.advance(31_000);
    bench.machines.watch();
    await until(() => bench.journal.get("one")?.meter?.at === START + 31_000);
    const dead = bench.driver.machine(slot());
    dead.alive = false;
    await dead.guest?.close();
    bench.machines.stopWatching();
    bench.clock.advance(3_600_000);
    await bench.restart();
    await until(() => known().state === "failed");
    expect(known().moves.at(-1)).toMatchObject({
      to: "failed",
      at: new Date(START + 31_000).toISOString(),
      noticed_after_ms: 3_600_000,
    });
  });

  test("has no move that could not be written", async () => {
    await bench.machines.create("one", TEST_SPEC);
    bench.journal.full = true;
    await expect(bench.machines.pause("one")).rejects.toThrow(/full/);
    bench.journal.full = false;
    expect(known().moves.map(({ to }) => to)).toEqual(["running"]);
  });

  test("keeps the newest moves of a machine that sleeps and wakes for ever, with their numbers", async () => {
    await bench.machines.create("one", TEST_SPEC);
    for (let round = 0; round < 20; round += 1) {
      await bench.machines.pause("one");
      await bench.machines.resume("one");
      await until(() => known().state === "running");
    }
    const { moves } = known();
    expect(moves).toHaveLength(32);
    expect(moves.map(({ number }) => number)).toEqual(Array.from({ length: 32 }, (_, index) => index + 10));
  });
});

describe("traffic", () => {
  test("is what all devices but loopback received and sent", () => {
    const text = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:     999       1    0    0    0     0          0         0      999       1    0    0    0     0       0          0
  eth0:    1500       3    0    0    0     0          0         0      700       2    0    0    0     0       0          0
  eth1:1:       5 0 0 0 0 0 0 0 0
`;
    expect(trafficIn(text)).toEqual({ inBytes: 1501, outBytes: 700 });
    expect(trafficIn("")).toEqual({ inBytes: 0, outBytes: 0 });
  });
});
