import { describe, expect, it } from "vitest";
import type { Measured, MeasuredTimes, Question, Shape } from "../src/advise.ts";
import { advise, impossible, type Known } from "../src/advise-walk.ts";
import { DEFAULT_PRICES } from "../src/price.ts";
import type { Workload } from "../src/workload.ts";

const seen = (value: number): Measured => ({ value, measured: true, samples: 9, source: "template" });
const times: MeasuredTimes = {
  create_seconds: seen(0.03),
  hibernate_seconds: seen(0.4),
  wake_seconds: seen(0.35),
  image_bytes: seen(150_000_000),
};
const known: Known = {
  template: "code-interpreter",
  cpu: 1,
  memory_mb: 1024,
  disk_mb: 4096,
  prices: DEFAULT_PRICES,
  times,
};

interface Case {
  who: string;
  workload: Workload;
  shape: Shape;
  decidedBy: Question;
  reason: RegExp;
  settings: object;
}

/** The cases that users bring, and what an expert tells them. */
const CASES: Case[] = [
  {
    who: "a one-shot job",
    workload: { survives: false, interactive: false, use_seconds: 30 },
    shape: "ephemeral",
    decidedBy: "survives",
    reason: /Nothing needs to survive/,
    settings: { persistent: false, ttl_seconds: 300, idle_timeout_seconds: null, on_idle: "destroy" },
  },
  {
    who: "a scheduled job with ten minutes of work, once a day",
    workload: { survives: [], interactive: false, uses_per_day: 1, use_seconds: 600, setup_seconds: 30 },
    shape: "ephemeral",
    decidedBy: "survives",
    reason: /nothing to leak, to clean up or to pay for/,
    settings: { persistent: false, ttl_seconds: 1260, on_expire: "destroy" },
  },
  {
    who: "an untrusted snippet whose files are wanted",
    workload: { survives: ["files"], untrusted: true, interactive: true, single_tenant: true },
    shape: "ephemeral",
    decidedBy: "untrusted",
    reason: /gone before the next use.*taken out as files/,
    settings: { persistent: false, ttl_seconds: 300, idle_timeout_seconds: null },
  },
  {
    who: "a chat coding session",
    workload: {
      survives: ["files", "packages", "memory"],
      untrusted: false,
      interactive: true,
      single_tenant: true,
      idle_gap_seconds: 1_200,
      setup_seconds: 45,
    },
    shape: "stateful",
    decidedBy: "warmth",
    reason: /Somebody waits.*a wake takes 0.3 s, setting up again 45 s/,
    settings: {
      persistent: true,
      ttl_seconds: null,
      idle_timeout_seconds: 60,
      on_idle: "hibernate",
      retention_seconds: null,
    },
  },
  {
    who: "a hosted notebook",
    workload: {
      survives: ["memory", "files"],
      interactive: true,
      single_tenant: true,
      idle_gap_seconds: 14_400,
    },
    shape: "stateful",
    decidedBy: "warmth",
    reason: /with processes and memory as they were left/,
    settings: { persistent: true, on_idle: "hibernate" },
  },
  {
    who: "a logged-in browser that a job comes back to",
    workload: { survives: ["browser"], interactive: false, single_tenant: true, idle_gap_seconds: 3_600 },
    shape: "stateful",
    decidedBy: "survives",
    reason: /needs to survive \(browser\)/,
    settings: { persistent: true, on_idle: "hibernate", retention_seconds: null },
  },
  {
    who: "a big data set that takes ten minutes to load",
    workload: { setup_seconds: 600, single_tenant: true, idle_gap_seconds: 7_200 },
    shape: "stateful",
    decidedBy: "warmth",
    reason: /Setting up takes 10 min, a wake 0.3 s/,
    settings: { persistent: true, on_idle: "hibernate", retention_seconds: 2_592_000 },
  },
  {
    who: "the same data set, used once in three months",
    workload: { setup_seconds: 600, single_tenant: true, idle_gap_seconds: 7_776_000 },
    shape: "ephemeral",
    decidedBy: "idle",
    reason: /setting up again costs less than keeping its image/,
    settings: { persistent: false, ttl_seconds: 720 },
  },
  {
    who: "a notebook that several tenants would share",
    workload: { survives: true, interactive: true, single_tenant: false },
    shape: "ephemeral",
    decidedBy: "single_tenant",
    reason: /one stateful sandbox for each tenant/,
    settings: { persistent: false, ttl_seconds: 3600, idle_timeout_seconds: 900, on_idle: "destroy" },
  },
  {
    who: "whoever does not know",
    workload: {},
    shape: "ephemeral",
    decidedBy: "unsure",
    reason: /ephemeral, which leaves nothing/,
    settings: { persistent: false, ttl_seconds: 300 },
  },
];

describe("the advice that an expert gives", () => {
  it.each(CASES)(
    "to $who: $shape, decided by $decidedBy",
    ({ workload, shape, decidedBy, reason, settings }) => {
      const advice = advise(workload, known);
      expect({ shape: advice.shape, decidedBy: advice.decided_by }).toEqual({ shape, decidedBy });
      expect(advice.reason).toMatch(reason);
      expect(advice.settings).toMatchObject(settings);
      expect(advice.steps.filter(({ decides }) => decides).map(({ question }) => question)).toEqual([
        decidedBy,
      ]);
      expect(advice.costs.filter(({ advised }) => advised)).toHaveLength(1);
    },
  );

  it("asks in the order of the questions, and none after one that made it ephemeral", () => {
    const order = ["survives", "untrusted", "warmth", "single_tenant", "idle", "unsure"];
    for (const { workload, decidedBy, shape } of CASES) {
      const asked = advise(workload, known).steps.map(({ question }) => question);
      expect(asked).toEqual(order.slice(0, asked.length));
      if (shape === "ephemeral") expect(asked.at(-1)).toBe(decidedBy);
      else expect(asked.at(-1)).toBe("idle");
    }
  });

  it("says what is lost: everything wanted of an ephemeral one, connections to the outside of one that sleeps", () => {
    const untrusted = advise({ survives: ["files", "browser"], untrusted: true }, known);
    expect(untrusted.lost.map(({ kind }) => kind)).toEqual(["files", "browser"]);
    expect(untrusted.notes.join()).toMatch(/accept_risk: true/);
    const kept = advise({ survives: true, single_tenant: true }, known);
    expect(kept.lost).toEqual([{ kind: "connections", when: expect.stringContaining("outside") as string }]);
  });

  it("advises a snapshot to start from where setting up is slow and nothing is kept", () => {
    expect(advise({ survives: false, setup_seconds: 60 }, known).notes.join()).toMatch(/from_snapshot/);
    expect(advise({ survives: false, setup_seconds: 1 }, known).notes.join()).not.toMatch(/from_snapshot/);
  });

  it("says what is documented rather than measured, and what is assumed", () => {
    const documented: Measured = { value: 0.5, measured: false, samples: 0, source: "documented" };
    const unmeasured = advise({}, { ...known, times: { ...times, wake_seconds: documented } });
    expect(unmeasured.notes.join("\n")).toMatch(/Not measured on this machine yet.*: wake_seconds/);
    expect(unmeasured.notes.join("\n")).toMatch(/costs are of one use an hour/);
    expect(unmeasured.facts).toMatchObject({ uses_per_day: 24, from: { uses_per_day: "assumed" } });
    const given = advise({ uses_per_day: 48 }, known);
    expect(given.facts).toMatchObject({ idle_gap_seconds: 1_740, from: { idle_gap_seconds: "given" } });
    expect(given.notes).toEqual([]);
    const measured = advise({}, { ...known, seen: { idle_gap_seconds: 540 } });
    expect(measured.facts).toMatchObject({ uses_per_day: 144, from: { idle_gap_seconds: "measured" } });
  });

  it("lets the idle timeout follow the wake: what a wake costs is a hundredth of the idle time before it", () => {
    const wake = (value: number) =>
      advise({ interactive: true }, { ...known, times: { ...times, wake_seconds: seen(value) } }).settings
        .idle_timeout_seconds;
    expect([wake(0.2), wake(1.1), wake(60)]).toEqual([60, 120, 900]);
  });

  it("knows when uses do not fit in a day", () => {
    expect(impossible({ uses_per_day: 100, idle_gap_seconds: 3_600 })).toMatch(/100 uses a day/);
    expect(impossible({ uses_per_day: 100, use_seconds: 60, idle_gap_seconds: 600 })).toBeNull();
    expect(impossible({ uses_per_day: 0.5, idle_gap_seconds: 3_600 })).toBeNull();
  });
});

describe("the costs of the alternatives", () => {
  it("are those of a day like all others: set up once long ago, and paid for by the state", () => {
    const { costs } = advise(
      { survives: true, interactive: true, idle_gap_seconds: 3_540, use_seconds: 60, setup_seconds: 30 },
      known,
    );
    const of = (policy: string) => costs.find((one) => one.policy === policy);
    const hour = 0.0504 + 0.0162;
    expect(of("awake")).toMatchObject({ cold_starts_per_day: 0, wait_p95_ms: 0 });
    expect(of("awake")?.cost_per_day).toBeCloseTo(24 * hour, 9);
    expect(of("ephemeral")?.cost_per_day).toBeCloseTo((24 * 90 * hour) / 3_600, 9);
    expect(of("ephemeral")).toMatchObject({ cold_starts_per_day: 24, wait_p50_ms: 30_030 });
    expect(of("hibernate_1m")).toMatchObject({ wakes_per_day: 24, wait_p50_ms: 350, advised: true });
    const image = ((150_000_000 / 1024 ** 3) * 0.08) / (30 * 24);
    const perUse = (120 / 3_600) * hour + ((3_600 - 120 - 0.4) / 3_600) * image;
    expect(of("hibernate_1m")?.cost_per_day).toBeCloseTo(24 * perUse, 9);
  });
});
