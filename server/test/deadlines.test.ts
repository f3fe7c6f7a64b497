import { afterEach, beforeEach, expect, test } from "vitest";
import { TenantScope } from "../src/auth/tenant-scope.ts";
import { EventReader } from "./read-events.ts";
import { eventually, World } from "./world.ts";

const COUNT = 200;
/** How late an end may be, milliseconds; what the real host keeps of this is in its own suite. */
const MAX_MS = 1_000;
/**
 * And how late it may be told of. Clients, server and host share this one process and its machine with other suites, dozens
 * end in the same moment, and each is two commits that reach the disk: a bound against getting stuck, not a figure.
 */
const TOLD_MS = 5_000;

const everything = TenantScope.fromVerifiedKey({ keyId: "k", account: "default", tenant: null });

let world: World;
beforeEach(async () => {
  world = await World.start();
  world.host.keepsDeadlines = true;
});
afterEach(async () => {
  await world[Symbol.asyncDispose]();
});

const ttlSeconds = (): number => 3 + Math.floor(Math.random() * 4);

/** Makes them all, ends at random moments, half of them put off once. */
async function makeAll(): Promise<void> {
  let left = COUNT;
  const make = async (): Promise<void> => {
    while (left-- > 0) {
      const { id } = await world.sandbox({ template: "base", ttl_seconds: ttlSeconds() });
      const json = { ttl_seconds: ttlSeconds() };
      if (left % 2 === 0) await world.call("PATCH", `/v1/sandboxes/${id}/lifecycle`, { json });
    }
  };
  await Promise.all(Array.from({ length: 8 }, make));
}

/** Prints how late they were, and holds it against what is promised. */
function expectOnTime(what: string, latenessMs: readonly number[], maxMs: number): void {
  const sorted = latenessMs.toSorted((one, other) => one - other);
  const at = (share: number): number => sorted[Math.ceil(sorted.length * share) - 1] ?? Number.NaN;
  const [p50, p99, max] = [at(0.5), at(0.99), at(1)];
  console.info(`${sorted.length} deadlines, ${what}: late by p50 ${p50} ms, p99 ${p99} ms, max ${max} ms`);
  expect(sorted).toHaveLength(COUNT);
  expect(sorted[0]).toBeGreaterThanOrEqual(0);
  expect(max).toBeLessThanOrEqual(maxMs);
}

async function records() {
  const { items } = await world.server.sandboxStore.list(everything, {
    states: [],
    metadata: {},
    limit: 1_000,
  });
  return items;
}

test("200 that end by themselves are on record and told of, under load", async () => {
  await using reader = await EventReader.open(world, "/v1/events?types=sandbox.destroyed");
  await makeAll();
  const load = new AbortController();
  const busy = Array.from({ length: 2 }, async () => {
    while (!load.signal.aborted) await world.call("GET", "/v1/sandboxes?limit=20");
  });
  await eventually(() => reader.events.length === COUNT);
  load.abort();
  await Promise.all(busy);
  const dueAt = new Map((await records()).map(({ id, expiresAt }) => [id, expiresAt ?? 0]));
  expectOnTime(
    "until their event",
    reader.events.map(({ at, sandbox_id: id }) => Date.parse(at) - (dueAt.get(id ?? "") ?? 0)),
    TOLD_MS,
  );
  expect(new Set(reader.events.map(({ reason }) => reason))).toEqual(new Set(["ttl_expired"]));
}, 60_000);

test("200 end on time while the server is away, and are on record with their own times once it is back", async () => {
  await makeAll();
  await world.server.close();
  await eventually(() => world.host.liveMachines().length === 0);
  await world.restart();
  await eventually(async () => (await records()).every(({ state }) => state === "destroyed"));
  const ended = await records();
  expectOnTime(
    "the server away",
    ended.map(({ endedAt, expiresAt }) => (endedAt ?? 0) - (expiresAt ?? 0)),
    MAX_MS,
  );
  expect(new Set(ended.map(({ reason }) => reason))).toEqual(new Set(["ttl_expired"]));
}, 60_000);
