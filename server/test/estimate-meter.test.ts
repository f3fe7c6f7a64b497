import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import {
  DEFAULT_PRICES,
  estimate,
  type HeldInterval,
  intervalsOf,
  type MachineMove,
  newSandboxId,
  NO_USE,
  type Policy,
  type SandboxState,
  type Use,
  usesByTenant,
} from "@torpor/protocol";
import { FakeClock } from "@torpor/base";
import { TenantScope } from "../src/auth/tenant-scope.ts";
import { type Database, openDatabase } from "../src/store/open-database.ts";
import type { SandboxRecord } from "../src/store/sandbox-record.ts";
import { SandboxStore } from "../src/store/sandbox-store.ts";
import { UsageStore } from "../src/store/usage-store.ts";
import { startPostgres } from "./postgres.ts";

/** Not at midnight, so that a trace spans two days. */
const T0 = Date.UTC(2026, 10, 1, 7, 30);
const WINDOW = { from_ms: T0, to_ms: T0 + 86_400_000 };
const PRICES = { ...DEFAULT_PRICES, disk_gib_month: 5 };
const MACHINERY = {
  cpu: 2,
  memory_mb: 2048,
  disk_mb: 4096,
  image_bytes: 300_000_000,
  create_seconds: 0.5,
  setup_seconds: 7,
  hibernate_seconds: 1.25,
  wake_seconds: 0.75,
};

const clock = new FakeClock(WINDOW.to_ms);

const traces = fc.array(
  fc.record<Use>({
    at_ms: fc.nat(80_000_000).map((ms) => T0 + ms),
    duration_ms: fc.integer({ min: 1, max: 3_000_000 }),
    tenant: fc.constantFrom("one", "two"),
  }),
  { minLength: 1, maxLength: 12 },
);
const policies = fc.record<Policy>({
  on_idle: fc.constantFrom("destroy", "hibernate", "pause", "none"),
  idle_seconds: fc.constantFrom(0, 60, 3_600),
});

/** What a host tells of a sandbox that was in these states. While it wakes it still is its image. */
function movesOf(intervals: readonly HeldInterval[]): MachineMove[] {
  const moves: MachineMove[] = [];
  for (const { state, from_ms: from } of intervals) {
    if (state === "creating" || state === "waking") continue;
    moves.push({
      number: moves.length + 1,
      to: state as MachineMove["to"],
      at: new Date(from).toISOString(),
      image_bytes: state === "hibernated" ? MACHINERY.image_bytes : 0,
      used: NO_USE,
      noticed_after_ms: 0,
    });
  }
  return moves;
}

/** Lives the life of one sandbox of a trace in the store, as a server would that hears of it bit by bit. */
async function live(
  store: SandboxStore,
  scope: TenantScope,
  intervals: readonly HeldInterval[],
): Promise<void> {
  const [first] = intervals;
  const last = intervals.at(-1);
  if (first === undefined || last === undefined) return;
  let record: SandboxRecord | undefined = await store.insert(scope, {
    id: newSandboxId(),
    tenant: first.tenant,
    name: null,
    template: "base",
    metadata: {},
    cpu: MACHINERY.cpu,
    memoryMb: MACHINERY.memory_mb,
    diskMb: MACHINERY.disk_mb,
    network: "none",
    host: "host",
    createdAt: first.from_ms,
    expiresAt: null,
    onExpire: "destroy",
    persistent: true,
    idleTimeoutSeconds: null,
    onIdle: "none",
    retentionSeconds: null,
    autoWake: true,
    hibernateMemory: true,
  });
  const moves = movesOf(intervals);
  const half = { moves: moves.slice(0, Math.ceil(moves.length / 2)), used: NO_USE };
  if (moves.length > 0) record = await store.advance(record, "running", { use: half });
  if (record !== undefined && last.to_ms < WINDOW.to_ms) {
    record = await store.advance(record, "destroying", { use: { moves, used: NO_USE }, endedAt: last.to_ms });
    if (record !== undefined) await store.advance(record, "destroyed", { endedAt: last.to_ms });
  } else if (record !== undefined) await store.note(record, { use: { moves, used: NO_USE } });
}

describe.each(["sqlite", "postgres"] as const)("on %s", (kind) => {
  const release: (() => Promise<void> | void)[] = [];
  let database: Database;
  beforeAll(async () => {
    if (kind === "postgres") {
      const postgres = await startPostgres();
      release.push(() => postgres[Symbol.asyncDispose]());
      database = await openDatabase({ kind, url: postgres.url });
    } else {
      const directory = mkdtempSync(join(tmpdir(), "torpor-estimate-"));
      release.push(() => rmSync(directory, { recursive: true, force: true }));
      database = await openDatabase({ kind, path: join(directory, "store.sqlite") });
    }
    release.push(() => database.close());
  }, 60_000);
  afterAll(async () => {
    for (const each of release.toReversed()) await each();
  });

  test("what a trace is estimated to cost is what the meter says of it once it has happened, to the cent and beyond", async () => {
    let run = 0;
    await fc.assert(
      fc.asyncProperty(traces, policies, async (trace, policy) => {
        run += 1;
        const account = `account${run}`;
        const scope = TenantScope.fromVerifiedKey({ keyId: "k", account, tenant: null });
        const store = new SandboxStore(database, undefined, undefined, clock);
        const sandboxes = new Map<number, HeldInterval[]>();
        for (const interval of intervalsOf(trace, policy, MACHINERY, WINDOW.to_ms))
          sandboxes.set(interval.sandbox, [...(sandboxes.get(interval.sandbox) ?? []), interval]);
        for (const intervals of sandboxes.values()) await live(store, scope, intervals);

        const estimated = estimate(usesByTenant(trace), policy, MACHINERY, PRICES, WINDOW);
        const { from_ms: from, to_ms: to } = WINDOW;
        const metered = await new UsageStore(database).sums(
          scope,
          { from, to, now: to },
          ["state"],
          () => PRICES,
        );
        // By day it is the same, also where days, intervals and what is asked for begin and end in each other.
        const cut = { from: from + 3_600_001, to: to + 7_200_000, now: to };
        const whole = await new UsageStore(database).sums(scope, cut, [], () => PRICES);
        const byDay = await new UsageStore(database).sums(scope, cut, ["day"], () => PRICES);
        expect(byDay.total.cost).toBeCloseTo(whole.total.cost, 5);
        expect(byDay.items.reduce((sum, { cost }) => sum + cost, 0)).toBeCloseTo(whole.total.cost, 5);
        // The store's times are whole milliseconds, and its sums are rounded to a millionth.
        expect(metered.total.cost).toBeCloseTo(estimated.cost, 4);
        const held = (state: SandboxState): number =>
          metered.items.find((item) => item.state === state)?.seconds[state as "running"] ?? 0;
        const truth = (state: SandboxState): number =>
          [...sandboxes.values()]
            .flat()
            .filter((interval) => interval.state === state)
            .reduce((sum, interval) => sum + Math.min(interval.to_ms, to) - interval.from_ms, 0) / 1_000;
        expect(held("running")).toBeCloseTo(truth("running"), 1);
        expect(held("paused")).toBeCloseTo(truth("paused"), 1);
      }),
      { numRuns: 40 },
    );
  }, 60_000);
});
