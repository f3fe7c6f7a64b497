import {
  addQuantities,
  type Allotment,
  costOf,
  NO_QUANTITIES,
  type Prices,
  type Quantities,
  quantitiesIn,
} from "./price.ts";
import type { SandboxState } from "./states.ts";

/** One stretch of work that somebody wants of a sandbox. Times are milliseconds. */
export interface Use {
  at_ms: number;
  duration_ms: number;
  tenant: string;
}

/** What a sandbox does between two uses. */
export interface Policy {
  /** `destroy` with an idle time of 0 is ephemeral: a sandbox for each use. All others keep one for each tenant. */
  on_idle: "destroy" | "hibernate" | "pause" | "none";
  /** Since the end of its last use. */
  idle_seconds: number;
}

/** How large a sandbox is, and how long its moves take on a machine. */
export interface Machinery extends Allotment {
  create_seconds: number;
  setup_seconds: number;
  hibernate_seconds: number;
  wake_seconds: number;
}

/** What one sandbox was in, from and until when. */
export interface HeldInterval {
  /** Counts the sandboxes of a trace from 1. */
  sandbox: number;
  tenant: string;
  state: SandboxState;
  from_ms: number;
  to_ms: number;
  allotment: Allotment;
}

/** What came of a use: how long it waited for a sandbox that could serve it, and for what. */
export interface PlayedUse {
  at_ms: number;
  wait_ms: number;
  waited_for: "nothing" | "create" | "wake";
}

export interface Estimate {
  quantities: Quantities;
  /** In the currency of the prices; not rounded. */
  cost: number;
  uses: number;
  /** Uses that found no sandbox: made and set up for them. */
  cold_starts: number;
  /** Uses that found it asleep. */
  wakes: number;
  /** Nearest rank over all uses; 0 when there is none. */
  wait_p50_ms: number;
  wait_p95_ms: number;
}

/** Of a trace, the part that is counted. */
export interface Window {
  from_ms: number;
  to_ms: number;
}

const MS = 1_000;

/** Plays one tenant's uses, in order of time, until `until`; what is told comes in the order in which it happens to each sandbox. */
class Player {
  readonly #policy: Policy;
  readonly #machinery: Machinery;
  readonly #until: number;
  readonly #nextSandbox: () => number;
  readonly #onInterval: (interval: HeldInterval) => void;
  readonly #onUse: (use: PlayedUse) => void;
  /** The one that is kept: since when it runs, when its set-up is done, and when its last use ends. */
  #kept: { sandbox: number; runsFrom: number; readyAt: number; busyUntil: number } | undefined;

  constructor(
    policy: Policy,
    machinery: Machinery,
    until: number,
    nextSandbox: () => number,
    onInterval: (interval: HeldInterval) => void,
    onUse: (use: PlayedUse) => void,
  ) {
    this.#policy = policy;
    this.#machinery = machinery;
    this.#until = until;
    this.#nextSandbox = nextSandbox;
    this.#onInterval = onInterval;
    this.#onUse = onUse;
  }

  use({ at_ms: at, duration_ms: duration, tenant }: Use): void {
    const { create_seconds: create, setup_seconds: setup } = this.#machinery;
    const isEachItsOwn = this.#policy.on_idle === "destroy" && this.#policy.idle_seconds === 0;
    const waited = this.#kept === undefined ? "create" : this.#wakeFor(at, tenant);
    if (waited === "create") {
      const sandbox = this.#nextSandbox();
      const runsFrom = at + create * MS;
      const readyAt = runsFrom + setup * MS;
      this.#tell(sandbox, tenant, "creating", at, runsFrom);
      if (isEachItsOwn) this.#tell(sandbox, tenant, "running", runsFrom, readyAt + duration);
      else this.#kept = { sandbox, runsFrom, readyAt, busyUntil: readyAt };
      this.#onUse({ at_ms: at, wait_ms: readyAt - at, waited_for: "create" });
      if (isEachItsOwn) return;
    }
    const kept = this.#kept;
    if (kept === undefined) return;
    const startsAt = Math.max(at, kept.readyAt);
    kept.busyUntil = Math.max(kept.busyUntil, startsAt + duration);
    if (waited !== "create") this.#onUse({ at_ms: at, wait_ms: startsAt - at, waited_for: waited });
  }

  /** Brings the one that is kept to the moment of a use. */
  #wakeFor(at: number, tenant: string): PlayedUse["waited_for"] {
    const kept = this.#kept;
    if (kept === undefined) return "create";
    const idleAt = kept.busyUntil + this.#policy.idle_seconds * MS;
    if (this.#policy.on_idle === "none" || at <= idleAt) return "nothing";
    const { sandbox } = kept;
    this.#tell(sandbox, tenant, "running", kept.runsFrom, idleAt);
    if (this.#policy.on_idle === "destroy") {
      this.#kept = undefined;
      return "create";
    }
    if (this.#policy.on_idle === "pause") {
      this.#tell(sandbox, tenant, "paused", idleAt, at);
      this.#kept = { sandbox, runsFrom: at, readyAt: at, busyUntil: at };
      return "nothing";
    }
    const asleepAt = idleAt + this.#machinery.hibernate_seconds * MS;
    const wakesAt = Math.max(at, asleepAt);
    const awakeAt = wakesAt + this.#machinery.wake_seconds * MS;
    this.#tell(sandbox, tenant, "hibernating", idleAt, asleepAt);
    this.#tell(sandbox, tenant, "hibernated", asleepAt, wakesAt);
    this.#tell(sandbox, tenant, "waking", wakesAt, awakeAt);
    this.#kept = { sandbox, runsFrom: awakeAt, readyAt: awakeAt, busyUntil: awakeAt };
    return "wake";
  }

  /** What the one that is kept does from its last use until the end. */
  finish(tenant: string): void {
    const kept = this.#kept;
    if (kept === undefined) return;
    const { on_idle: onIdle } = this.#policy;
    const idleAt =
      onIdle === "none"
        ? this.#until
        : Math.min(this.#until, kept.busyUntil + this.#policy.idle_seconds * MS);
    this.#tell(kept.sandbox, tenant, "running", kept.runsFrom, idleAt);
    if (onIdle === "pause") this.#tell(kept.sandbox, tenant, "paused", idleAt, this.#until);
    if (onIdle !== "hibernate") return;
    const asleepAt = idleAt + this.#machinery.hibernate_seconds * MS;
    this.#tell(kept.sandbox, tenant, "hibernating", idleAt, asleepAt);
    this.#tell(kept.sandbox, tenant, "hibernated", asleepAt, this.#until);
  }

  #tell(sandbox: number, tenant: string, state: SandboxState, from: number, to: number): void {
    const end = Math.min(to, this.#until);
    if (from >= end) return;
    this.#onInterval({
      sandbox,
      tenant,
      state,
      from_ms: from,
      to_ms: end,
      allotment: this.#machinery,
    });
  }
}

/** The uses of each tenant, in order of time. */
export function usesByTenant(uses: readonly Use[]): Map<string, Use[]> {
  const tenants = new Map<string, Use[]>();
  for (const use of uses) {
    const theirs = tenants.get(use.tenant);
    if (theirs === undefined) tenants.set(use.tenant, [use]);
    else theirs.push(use);
  }
  for (const theirs of tenants.values()) theirs.sort((one, other) => one.at_ms - other.at_ms);
  return tenants;
}

function play(
  tenants: ReadonlyMap<string, readonly Use[]>,
  policy: Policy,
  machinery: Machinery,
  until: number,
  onInterval: (interval: HeldInterval) => void,
  onUse: (use: PlayedUse) => void,
): void {
  let sandboxes = 0;
  const nextSandbox = (): number => (sandboxes += 1);
  for (const [tenant, uses] of tenants) {
    const player = new Player(policy, machinery, until, nextSandbox, onInterval, onUse);
    for (const use of uses) player.use(use);
    player.finish(tenant);
  }
}

/** What is held, by whom, under a policy: every interval of every sandbox that the trace makes, until `untilMs`. */
export function intervalsOf(
  uses: readonly Use[],
  policy: Policy,
  machinery: Machinery,
  untilMs: number,
): HeldInterval[] {
  const intervals: HeldInterval[] = [];
  play(
    usesByTenant(uses),
    policy,
    machinery,
    untilMs,
    (interval) => intervals.push(interval),
    () => {},
  );
  return intervals;
}

/** What intervals hold, the part of each that lies in the window. */
export function quantitiesOf(intervals: Iterable<HeldInterval>, window: Window): Quantities {
  let sum = NO_QUANTITIES;
  for (const interval of intervals) sum = withInterval(sum, interval, window);
  return sum;
}

function withInterval(sum: Quantities, interval: HeldInterval, { from_ms, to_ms }: Window): Quantities {
  const ms = Math.min(interval.to_ms, to_ms) - Math.max(interval.from_ms, from_ms);
  return ms <= 0 ? sum : addQuantities(sum, quantitiesIn(interval.state, interval.allotment, ms / MS));
}

/**
 * What a trace costs under a policy, and how long its uses wait. Uses of one tenant that overlap share its sandbox, but for
 * the ephemeral policy, under which each has its own.
 *
 * @param tenants as {@link usesByTenant} gives them
 * @param window what is counted; the trace is played from its beginning until the window's end
 */
export function estimate(
  tenants: ReadonlyMap<string, readonly Use[]>,
  policy: Policy,
  machinery: Machinery,
  prices: Prices,
  window: Window,
): Estimate {
  let quantities = NO_QUANTITIES;
  let coldStarts = 0;
  let wakes = 0;
  const waits: number[] = [];
  play(
    tenants,
    policy,
    machinery,
    window.to_ms,
    (interval) => {
      quantities = withInterval(quantities, interval, window);
    },
    ({ at_ms: at, wait_ms: wait, waited_for: waitedFor }) => {
      if (at < window.from_ms || at >= window.to_ms) return;
      waits.push(wait);
      if (waitedFor === "create") coldStarts += 1;
      if (waitedFor === "wake") wakes += 1;
    },
  );
  const sorted = Float64Array.from(waits).sort();
  const at = (quantile: number): number => sorted[Math.max(0, Math.ceil(quantile * sorted.length) - 1)] ?? 0;
  return {
    quantities,
    cost: costOf(quantities, prices),
    uses: waits.length,
    cold_starts: coldStarts,
    wakes,
    wait_p50_ms: at(0.5),
    wait_p95_ms: at(0.95),
  };
}

/** The window from a trace's first use to the end of its last. @returns undefined when there is no use */
export function windowOf(uses: readonly Use[]): Window | undefined {
  const [first] = uses;
  if (first === undefined) return undefined;
  const window: Window = { from_ms: first.at_ms, to_ms: first.at_ms };
  for (const { at_ms: at, duration_ms: duration } of uses) {
    window.from_ms = Math.min(window.from_ms, at);
    window.to_ms = Math.max(window.to_ms, at + duration);
  }
  return window;
}

/** Gaps between two uses, in seconds, at which one way begins to cost less than another; null when it never does. */
export interface BreakEven {
  /** Asleep costs less than awake, and a sleep and a wake have time to happen. */
  sleep_beats_awake_seconds: number | null;
  /** A new sandbox that is set up again costs less than the image of one that sleeps. */
  rebuild_beats_sleep_seconds: number | null;
  /** A new sandbox that is set up again costs less than one that stays awake. */
  rebuild_beats_awake_seconds: number | null;
}

/** What one gap between two uses costs, until work goes on after it. */
export function gapCost(
  way: "awake" | "asleep" | "rebuild",
  gapSeconds: number,
  machinery: Machinery,
  prices: Prices,
): number {
  const { setup_seconds: setup, hibernate_seconds: hibernate, wake_seconds: wake } = machinery;
  const cost = (state: SandboxState, seconds: number): number =>
    costOf(quantitiesIn(state, machinery, seconds), prices);
  if (way === "awake") return cost("running", gapSeconds);
  if (way === "rebuild") return cost("running", setup);
  return (
    cost("hibernating", hibernate) +
    cost("hibernated", Math.max(0, gapSeconds - hibernate)) +
    cost("waking", wake)
  );
}

/** Where the costs of {@link gapCost} cross. */
export function breakEven(machinery: Machinery, prices: Prices): BreakEven {
  const { setup_seconds: setup, hibernate_seconds: hibernate, wake_seconds: wake } = machinery;
  const running = costOf(quantitiesIn("running", machinery, 1), prices);
  const asleep = costOf(quantitiesIn("hibernated", machinery, 1), prices);
  // As a line: what a sleep costs is `enter + asleep * gap`, for gaps that are not shorter than falling asleep.
  const enter = gapCost("asleep", hibernate, machinery, prices) - asleep * hibernate;
  const rebuild = gapCost("rebuild", 0, machinery, prices);
  return {
    sleep_beats_awake_seconds:
      running <= asleep ? null : Math.max(enter / (running - asleep), hibernate + wake),
    rebuild_beats_sleep_seconds:
      rebuild <= gapCost("asleep", 0, machinery, prices)
        ? 0
        : asleep === 0
          ? null
          : Math.max(0, (rebuild - enter) / asleep),
    rebuild_beats_awake_seconds: running === 0 ? null : setup,
  };
}
