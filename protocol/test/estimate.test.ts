import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { POLICIES } from "../src/policies.ts";
import {
  breakEven,
  estimate,
  gapCost,
  type HeldInterval,
  intervalsOf,
  type Machinery,
  quantitiesOf,
  type Use,
  usesByTenant,
  windowOf,
} from "../src/estimate.ts";
import { costOf, DEFAULT_PRICES, type Prices } from "../src/price.ts";
import { canTransition } from "../src/states.ts";

const machinery: Machinery = {
  cpu: 1,
  memory_mb: 1024,
  disk_mb: 4096,
  image_bytes: 150_000_000,
  create_seconds: 0.05,
  setup_seconds: 20,
  hibernate_seconds: 0.5,
  wake_seconds: 0.4,
};
const policy = (name: string) => {
  const found = POLICIES.find((one) => one.name === name);
  if (found === undefined) throw new Error(`no policy ${name}`);
  return found;
};
const use = (at: number, duration: number, tenant = "t"): Use => ({
  at_ms: at * 1_000,
  duration_ms: duration * 1_000,
  tenant,
});
const spans = (intervals: readonly HeldInterval[]) =>
  intervals.map((one) => [one.sandbox, one.state, one.from_ms / 1_000, one.to_ms / 1_000]);

/** The intervals of each sandbox. */
function livesOf(held: readonly HeldInterval[]): HeldInterval[][] {
  const lives = new Map<number, HeldInterval[]>();
  for (const interval of held)
    lives.set(interval.sandbox, [...(lives.get(interval.sandbox) ?? []), interval]);
  return [...lives.values()];
}

const machineries = fc.record({
  cpu: fc.double({ min: 0.1, max: 64, noNaN: true }),
  memory_mb: fc.integer({ min: 128, max: 65_536 }),
  disk_mb: fc.integer({ min: 64, max: 65_536 }),
  image_bytes: fc.integer({ min: 0, max: 10_000_000_000 }),
  create_seconds: fc.double({ min: 0, max: 10, noNaN: true }),
  setup_seconds: fc.double({ min: 0, max: 1_000, noNaN: true }),
  hibernate_seconds: fc.double({ min: 0, max: 30, noNaN: true }),
  wake_seconds: fc.double({ min: 0, max: 30, noNaN: true }),
});
const rates = fc.double({ min: 0, max: 10, noNaN: true });
const pricings: fc.Arbitrary<Prices> = fc.record({
  currency: fc.constant("USD"),
  vcpu_hour: rates,
  memory_gib_hour: rates,
  disk_gib_month: rates,
  image_gib_month: rates,
});
const traces = fc.array(
  fc.record({
    at_ms: fc.integer({ min: 0, max: 1_000_000 }),
    duration_ms: fc.integer({ min: 0, max: 400_000 }),
    tenant: fc.constantFrom("a", "b", "c"),
  }),
  { maxLength: 40 },
);

describe("a trace under a policy", () => {
  it("makes a sandbox for each use, also of two at once, when it is ephemeral", () => {
    const held = intervalsOf([use(0, 10), use(5, 1)], policy("ephemeral"), machinery, 100_000);
    expect(spans(held)).toEqual([
      [1, "creating", 0, 0.05],
      [1, "running", 0.05, 30.05],
      [2, "creating", 5, 5.05],
      [2, "running", 5.05, 26.05],
    ]);
  });

  it("hibernates after the idle time and wakes for the next use, which waits for that", () => {
    const uses = [use(0, 10), use(200, 5)];
    const held = intervalsOf(uses, policy("hibernate_1m"), machinery, 400_000);
    expect(spans(held)).toEqual([
      [1, "creating", 0, 0.05],
      [1, "running", 0.05, 90.05],
      [1, "hibernating", 90.05, 90.55],
      [1, "hibernated", 90.55, 200],
      [1, "waking", 200, 200.4],
      [1, "running", 200.4, 265.4],
      [1, "hibernating", 265.4, 265.9],
      [1, "hibernated", 265.9, 400],
    ]);
    const window = { from_ms: 0, to_ms: 400_000 };
    const found = estimate(usesByTenant(uses), policy("hibernate_1m"), machinery, DEFAULT_PRICES, window);
    expect(found).toMatchObject({ uses: 2, cold_starts: 1, wakes: 1, wait_p50_ms: 400, wait_p95_ms: 20_050 });
  });

  it("lets a use that comes while it falls asleep wait for that and for the wake", () => {
    const held = intervalsOf([use(0, 10), use(90.3, 5)], policy("hibernate_1m"), machinery, 95_000);
    expect(spans(held).slice(2, 4)).toEqual([
      [1, "hibernating", 90.05, 90.55],
      [1, "waking", 90.55, 90.95],
    ]);
  });

  it("shares one sandbox between uses of a tenant that overlap, and never between tenants", () => {
    const uses = [use(0, 100, "a"), use(50, 100, "a"), use(60, 10, "b")];
    const held = intervalsOf(uses, policy("ttl_5m"), machinery, 10_000_000);
    expect(new Set(held.map(({ sandbox, tenant }) => `${sandbox} ${tenant}`))).toEqual(
      new Set(["1 a", "2 b"]),
    );
    expect(spans(held)[1]).toEqual([1, "running", 0.05, 450]);
  });

  it("goes by the times of uses, in whatever order they come, and counts nothing for none", () => {
    const uses = [use(500, 5), use(0, 10), use(200, 5)];
    expect(intervalsOf(uses, policy("pause_5m"), machinery, 900_000)).toEqual(
      intervalsOf(uses.toReversed(), policy("pause_5m"), machinery, 900_000),
    );
    const none = estimate(usesByTenant([]), policy("awake"), machinery, DEFAULT_PRICES, {
      from_ms: 0,
      to_ms: 1,
    });
    expect(none).toMatchObject({ cost: 0, uses: 0, wait_p95_ms: 0 });
    expect(windowOf([])).toBeUndefined();
    expect(windowOf(uses)).toEqual({ from_ms: 0, to_ms: 505_000 });
  });

  it("tiles each sandbox's life without gap or overlap, by legal moves, and costs what its intervals cost", () => {
    fc.assert(
      fc.property(traces, fc.constantFrom(...POLICIES), machineries, pricings, (uses, one, sizes, prices) => {
        const window = { from_ms: 0, to_ms: 2_000_000 };
        const held = intervalsOf(uses, one, sizes, window.to_ms);
        const lives = livesOf(held);
        for (const life of lives) {
          for (const [index, interval] of life.entries()) {
            expect(interval.to_ms).toBeGreaterThan(interval.from_ms);
            const next = life[index + 1];
            if (next !== undefined) expect(next.from_ms).toBe(interval.to_ms);
          }
        }
        const found = estimate(usesByTenant(uses), one, sizes, prices, window);
        expect(found.cost).toBe(costOf(quantitiesOf(held, window), prices));
        expect(found.uses).toBe(uses.length);
      }),
    );
  });

  it("moves only as the table of states allows, where no move takes no time", () => {
    const uses = Array.from({ length: 20 }, (_, index) => use(index * 97, 7));
    for (const one of POLICIES) {
      const lives = livesOf(intervalsOf(uses, one, machinery, 5_000_000));
      for (const life of lives)
        for (const [index, { state }] of life.entries()) {
          const next = life[index + 1]?.state;
          // A pause and its end take no time here, so that what lies between is left out.
          if (next !== undefined && one.on_idle !== "pause") expect(canTransition(state, next)).toBe(true);
        }
    }
  });

  it("costs no less the longer it is looked at, and never more asleep than awake at the default prices", () => {
    fc.assert(
      fc.property(
        traces,
        fc.constantFrom(...POLICIES),
        fc.integer({ min: 1, max: 3_000_000 }),
        (uses, one, until) => {
          const cost = (name: typeof one, to: number) =>
            estimate(usesByTenant(uses), name, machinery, DEFAULT_PRICES, { from_ms: 0, to_ms: to }).cost;
          expect(cost(one, until)).toBeLessThanOrEqual(cost(one, until + 100_000) + 1e-12);
          expect(cost(policy("hibernate_5m"), until)).toBeLessThanOrEqual(
            cost(policy("awake"), until) + 1e-12,
          );
        },
      ),
    );
  });
});

describe("the break-even gaps", () => {
  it("lie where the costs cross, and on the right side of it", () => {
    fc.assert(
      fc.property(
        machineries,
        pricings,
        fc.double({ min: 1e-6, max: 1e6, noNaN: true }),
        (sizes, prices, more) => {
          const gaps = breakEven(sizes, prices);
          const cost = (way: "awake" | "asleep" | "rebuild", gap: number) => gapCost(way, gap, sizes, prices);
          const tolerance = 1e-9 * (1 + cost("awake", more) + cost("rebuild", more) + cost("asleep", more));
          const { sleep_beats_awake_seconds: sleep, rebuild_beats_sleep_seconds: rebuild } = gaps;
          if (sleep !== null) {
            const slack = tolerance + 1e-9 * cost("awake", sleep + more);
            expect(sleep).toBeGreaterThanOrEqual(sizes.hibernate_seconds + sizes.wake_seconds);
            expect(cost("asleep", sleep + more)).toBeLessThanOrEqual(cost("awake", sleep + more) + slack);
          }
          if (rebuild !== null) {
            const at = Math.max(rebuild, sizes.hibernate_seconds);
            const slack = tolerance + 1e-9 * cost("asleep", at + more);
            expect(cost("rebuild", at + more)).toBeLessThanOrEqual(cost("asleep", at + more) + slack);
            if (rebuild > sizes.hibernate_seconds)
              expect(Math.abs(cost("rebuild", rebuild) - cost("asleep", rebuild))).toBeLessThanOrEqual(slack);
          }
          if (gaps.rebuild_beats_awake_seconds !== null)
            expect(cost("rebuild", 0)).toBeCloseTo(cost("awake", gaps.rebuild_beats_awake_seconds), 6);
        },
      ),
    );
  });

  it("cost of a gap grows with the gap, awake and asleep, and not at all where it is rebuilt", () => {
    fc.assert(
      fc.property(
        machineries,
        pricings,
        fc.double({ min: 0, max: 1e6, noNaN: true }),
        rates,
        (sizes, prices, gap, more) => {
          for (const way of ["awake", "asleep"] as const)
            expect(gapCost(way, gap + more, sizes, prices)).toBeGreaterThanOrEqual(
              gapCost(way, gap, sizes, prices),
            );
          expect(gapCost("rebuild", gap + more, sizes, prices)).toBe(gapCost("rebuild", gap, sizes, prices));
        },
      ),
    );
  });

  it("move as one would expect: a longer set-up keeps images for longer, a dearer image for less long", () => {
    const of = (sizes: Partial<Machinery>, prices: Partial<Prices> = {}) =>
      breakEven({ ...machinery, ...sizes }, { ...DEFAULT_PRICES, ...prices }).rebuild_beats_sleep_seconds ??
      Number.NaN;
    expect(of({ setup_seconds: 200 })).toBeGreaterThan(of({ setup_seconds: 20 }));
    expect(of({}, { image_gib_month: 0.8 })).toBeLessThan(of({}));
    expect(
      breakEven(machinery, { ...DEFAULT_PRICES, image_gib_month: 0 }).rebuild_beats_sleep_seconds,
    ).toBeNull();
    expect(of({ setup_seconds: 0 })).toBe(0);
    // A day of 143 MiB costs what 20 seconds of a core and a GiB do.
    expect(of({}) / 3_600).toBeCloseTo(23.84, 1);
  });
});
