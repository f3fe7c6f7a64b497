import type { AdviceSettings, PolicyCost, Shape } from "./advise.ts";
import { estimate, type Machinery, type Policy, type Use, usesByTenant } from "./estimate.ts";
import type { Prices } from "./price.ts";

/** A policy with a name. */
export interface NamedPolicy extends Policy {
  name: string;
  label: string;
  shape: Shape;
}

/** The alternatives that are always counted. */
export const POLICIES: readonly NamedPolicy[] = [
  {
    name: "ephemeral",
    label: "ephemeral: a sandbox for each use",
    shape: "ephemeral",
    on_idle: "destroy",
    idle_seconds: 0,
  },
  {
    name: "ttl_5m",
    label: "destroyed 5 min after its last use",
    shape: "ephemeral",
    on_idle: "destroy",
    idle_seconds: 300,
  },
  {
    name: "ttl_1h",
    label: "destroyed 1 h after its last use",
    shape: "ephemeral",
    on_idle: "destroy",
    idle_seconds: 3_600,
  },
  {
    name: "hibernate_1m",
    label: "hibernated 1 min after its last use",
    shape: "stateful",
    on_idle: "hibernate",
    idle_seconds: 60,
  },
  {
    name: "hibernate_5m",
    label: "hibernated 5 min after its last use",
    shape: "stateful",
    on_idle: "hibernate",
    idle_seconds: 300,
  },
  {
    name: "pause_5m",
    label: "paused 5 min after its last use",
    shape: "stateful",
    on_idle: "pause",
    idle_seconds: 300,
  },
  { name: "awake", label: "always awake", shape: "stateful", on_idle: "none", idle_seconds: 0 },
];

export const DAY_SECONDS = 86_400;
const DEFAULT_USE_SECONDS = 60;
/** Nothing is said of when it is used: once an hour. */
const ASSUMED_GAP_SECONDS = 3_540;

/** How a workload comes: within each `period`, `uses` of them, `gap` apart. Seconds. */
export interface Pattern {
  gap: number;
  use: number;
  uses: number;
  period: number;
}

/** A minute, or as much as a day has room for. */
export function assumedUse(gap = 0, uses = 1): number {
  const room = (DAY_SECONDS - (uses - 1) * gap) / uses;
  return uses < 1 ? DEFAULT_USE_SECONDS : Math.max(0, Math.min(DEFAULT_USE_SECONDS, room));
}

/** The pattern of uses that take so long, so far apart, so many a day; what is undefined follows or is assumed. */
export function patternOf(use: number, gap: number | undefined, uses: number | undefined): Pattern {
  if (uses === undefined) {
    const between = gap ?? ASSUMED_GAP_SECONDS;
    return { gap: between, use, uses: 1, period: Math.max(1, between + use) };
  }
  const period = DAY_SECONDS / uses;
  if (uses < 1 || gap === undefined) return { gap: Math.max(0, period - use), use, uses: 1, period };
  return { gap, use, uses: Math.floor(uses), period: DAY_SECONDS };
}

/** What each alternative costs on a day like all others, that of the settings among them. */
export function costsOf(
  pattern: Pattern,
  machinery: Machinery,
  prices: Prices,
  settings: AdviceSettings,
): PolicyCost[] {
  const advised: NamedPolicy = {
    name: "advised",
    label: "",
    shape: settings.persistent ? "stateful" : "ephemeral",
    on_idle: settings.on_idle,
    idle_seconds: settings.idle_timeout_seconds ?? 0,
  };
  const isAdvised = (policy: Policy): boolean =>
    policy.on_idle === advised.on_idle && policy.idle_seconds === advised.idle_seconds;
  const policies = POLICIES.some(isAdvised)
    ? POLICIES
    : [
        {
          ...advised,
          label: `${PAST[advised.on_idle]} ${spanText(advised.idle_seconds)} after its last use`,
        },
        ...POLICIES,
      ];
  // The second of two periods: what was made in the first is there, as it is on any day but the first.
  const uses: Use[] = [0, 1].flatMap((period) =>
    Array.from({ length: pattern.uses }, (_, index) => ({
      at_ms: (period * pattern.period + index * (pattern.gap + pattern.use)) * 1_000,
      duration_ms: pattern.use * 1_000,
      tenant: "",
    })),
  );
  const tenants = usesByTenant(uses);
  const window = { from_ms: pattern.period * 1_000, to_ms: 2 * pattern.period * 1_000 };
  const perDay = DAY_SECONDS / pattern.period;
  return policies.map((policy) => {
    const found = estimate(tenants, policy, machinery, prices, window);
    return {
      policy: policy.name,
      label: policy.label,
      shape: policy.shape,
      on_idle: policy.on_idle,
      idle_seconds: policy.idle_seconds,
      cost_per_day: found.cost * perDay,
      cold_starts_per_day: found.cold_starts * perDay,
      wakes_per_day: found.wakes * perDay,
      wait_p50_ms: found.wait_p50_ms,
      wait_p95_ms: found.wait_p95_ms,
      advised: isAdvised(policy),
    };
  });
}

const PAST = { destroy: "destroyed", hibernate: "hibernated", pause: "paused", none: "awake" } as const;

/** A span for a sentence: `0.4 s`, `45 s`, `5 min`, `3 h`, `2.8 d`. */
export function spanText(value: number): string {
  const round = (one: number): string => String(Number(one.toFixed(one < 10 ? 1 : 0)));
  if (value < 0.1) return `${Math.round(value * 1_000)} ms`;
  if (value < 120) return `${round(value)} s`;
  if (value < 7_200) return `${round(value / 60)} min`;
  if (value < 172_800) return `${round(value / 3_600)} h`;
  return `${round(value / 86_400)} d`;
}
