import { FakeClock } from "@torpor/base";
import { beforeEach, describe, expect, it } from "vitest";
import { MetricHistory } from "../src/machine/metric-history.ts";
import type { Live } from "../src/machine/phase.ts";

const START = 1_700_000_000_000;
const limits = { cpu: 2, memory_mb: 64, disk_mb: 10 };

let clock: FakeClock;
let history: MetricHistory;
let used: { cpuMs: number; memoryBytes: number };
let reads: number;
beforeEach(() => {
  clock = new FakeClock(START);
  history = new MetricHistory();
  used = { cpuMs: 1_000, memoryBytes: 30 << 20 };
  reads = 0;
});

const live = (): Live => ({ handle: {} }) as Live;
const sources = () => ({
  clock,
  limits,
  driver: {
    stats: () => {
      reads += 1;
      return { ...used, memoryPeakBytes: 0, oomKills: 0 };
    },
    occupancy: () => ({ cacheBytes: 10 << 20, diskBytes: 5 << 20 }),
  },
});

/** The watch looks four times a second. */
function run(machine: Live, seconds: number, cpuMsASecond = 0): void {
  for (let quarter = 0; quarter < seconds * 4; quarter += 1) {
    history.look(machine, sources());
    used.cpuMs += cpuMsASecond / 4;
    clock.advance(250);
  }
  history.look(machine, sources());
}
const all = () => history.between(undefined, sources(), 0, Infinity);

describe("the metrics of a machine", () => {
  it("are a sample every 5 s, with the share of its CPU that it used in them", () => {
    run(live(), 15, 500);
    expect(all()).toEqual(
      [5, 10, 15].map((second) => ({
        at_unix_ms: START + second * 1_000,
        cpu_used_percent: 25,
        memory_used_bytes: 20 << 20,
        memory_cache_bytes: 10 << 20,
        disk_used_bytes: 5 << 20,
      })),
    );
    expect(reads).toBe(4);
    expect(history.between(undefined, sources(), START + 5_000, START + 10_000)).toHaveLength(2);
  });

  it("end with one of now while it runs, which is not kept", () => {
    const machine = live();
    run(machine, 5);
    used.cpuMs += 1_000;
    clock.advance(1_000);
    const [, now] = history.between(machine, sources(), 0, Infinity);
    expect(now).toMatchObject({ at_unix_ms: START + 6_000, cpu_used_percent: 50 });
    expect(all()).toHaveLength(1);
  });

  it("go on over a sleep, where the counters begin anew", () => {
    run(live(), 5, 100);
    clock.advance(60_000);
    used.cpuMs = 0;
    run(live(), 5, 200);
    expect(all().map((sample) => [sample.at_unix_ms - START, sample.cpu_used_percent])).toEqual([
      [5_000, 5],
      [70_000, 10],
    ]);
  });

  it("are those of the last hour, and never more than the machine may have", () => {
    used.memoryBytes = 200 << 20;
    run(live(), 2 * 3_600, 5_000);
    const samples = all();
    expect(samples).toHaveLength(720);
    expect(samples[0]?.at_unix_ms).toBe(START + 3_605_000);
    expect(samples[0]).toMatchObject({ cpu_used_percent: 100, memory_used_bytes: 64 << 20 });
  });
});
