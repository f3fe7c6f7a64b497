import { describe, expect, it } from "vitest";
import { addQuantities, costOf, DEFAULT_PRICES, NO_QUANTITIES, quantitiesIn } from "../src/price.ts";
import { SANDBOX_STATES } from "../src/states.ts";

const size = { cpu: 2, memory_mb: 2048, disk_mb: 4096, image_bytes: 1024 ** 3 };
const prices = {
  currency: "USD",
  vcpu_hour: 1,
  memory_gib_hour: 10,
  disk_gib_month: 100,
  image_gib_month: 1000,
};

describe("what a sandbox holds and costs", () => {
  it("counts cores, memory and disk of one that runs, each times the seconds", () => {
    expect(quantitiesIn("running", size, 3600)).toEqual({
      vcpu_seconds: 7200,
      memory_gib_seconds: 7200,
      disk_gib_seconds: 4 * 3600,
      image_gib_seconds: 0,
    });
  });

  it("counts no core of one that is paused, and nothing but its image of one that sleeps", () => {
    expect(quantitiesIn("paused", size, 10)).toMatchObject({ vcpu_seconds: 0, memory_gib_seconds: 20 });
    expect(quantitiesIn("hibernated", size, 10)).toEqual({ ...NO_QUANTITIES, image_gib_seconds: 10 });
  });

  it("counts no core and no memory from where a sleep or an end is accepted", () => {
    for (const state of ["hibernating", "destroying", "destroyed", "failed"] as const)
      expect(quantitiesIn(state, size, 10)).toMatchObject({ vcpu_seconds: 0, memory_gib_seconds: 0 });
  });

  it("is nothing in no time, in every state", () => {
    for (const state of SANDBOX_STATES) expect(quantitiesIn(state, size, 0)).toEqual(NO_QUANTITIES);
  });

  it("prices an hour of two cores and two GiB, and a month of an image", () => {
    const hour = { ...quantitiesIn("running", size, 3600), disk_gib_seconds: 0 };
    expect(costOf(hour, prices)).toBeCloseTo(2 * 1 + 2 * 10, 10);
    expect(costOf(quantitiesIn("hibernated", size, 30 * 86_400), prices)).toBeCloseTo(1000, 10);
    expect(costOf(quantitiesIn("failed", size, 30 * 86_400), prices)).toBeCloseTo(400, 10);
  });

  it("costs the same whether intervals are added up before or after they are priced", () => {
    const parts = [quantitiesIn("running", size, 12.345), quantitiesIn("hibernated", size, 6789)];
    const together = parts.reduce(addQuantities, NO_QUANTITIES);
    const apart = parts.reduce((sum, part) => sum + costOf(part, DEFAULT_PRICES), 0);
    expect(costOf(together, DEFAULT_PRICES)).toBeCloseTo(apart, 12);
  });
});
