import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { afterAll, expect, test } from "vitest";
import { canTransition, type SandboxEvent } from "@torpor/protocol";
import { TenantScope } from "../src/auth/tenant-scope.ts";
import { UsageStore } from "../src/store/usage-store.ts";
import { type Round, rounds, run, Told } from "./model/lifecycle-model.ts";
import { MortalWorld } from "./model/mortal-world.ts";
import { auditOf } from "./ledger-world.ts";
import { EventReader } from "./read-events.ts";

/** How long the model runs, milliseconds; TORPOR_MODEL_SECONDS for longer hunts. */
const BUDGET_MS = Number(process.env["TORPOR_MODEL_SECONDS"] ?? 20) * 1_000;
/** TORPOR_MODEL_SEED repeats a run. */
const SEED = Number(process.env["TORPOR_MODEL_SEED"] ?? Date.now() % 1_000_000_000);
/** How long a host is away, milliseconds. */
const AWAY_MS = 100;
/** For everything to come to rest once nothing happens any more. */
const REST_WITHIN_MS = 5_000;

const directory = mkdtempSync(join(tmpdir(), "torpor-model-template-"));
afterAll(() => rmSync(directory, { recursive: true, force: true }));

const everything = TenantScope.fromVerifiedKey({ keyId: "model", account: "default", tenant: null });
const RESTING = ["running", "paused", "hibernated", "destroyed"];

test(
  "clients, host and crashes in any order: records, machines and events agree in the end, and nobody was told a lie",
  async () => {
    console.info(`lifecycle model: seed ${SEED}, ${BUDGET_MS / 1_000} s`);
    const template = await MortalWorld.template(directory);
    const seen = { runs: 0, deaths: new Set<string>(), sandboxes: 0, events: 0 };
    const playScript = async (script: readonly Round[]): Promise<void> => {
      await using world = await MortalWorld.start(template);
      const told = new Told();
      const followed: SandboxEvent[] = [];
      let lastId: string | undefined = "evt_0";
      await Promise.all(
        [false, false, true].map(
          async (persistent) => await run(world, told, { do: "create", key: null, persistent }),
        ),
      );
      for (const round of script) lastId = await play(world, told, round, followed, lastId);
      await settle(world);
      await check(world, told, followed, lastId);
      seen.runs += 1;
      for (const at of world.deaths) seen.deaths.add(at);
      seen.sandboxes += told.made.size;
      seen.events += followed.length;
    };
    let current = Promise.resolve();
    await fc.assert(
      fc.asyncProperty(rounds, async (script) => {
        current = playScript(script);
        await current;
      }),
      {
        seed: SEED,
        numRuns: 10_000,
        interruptAfterTimeLimit: BUDGET_MS,
        markInterruptAsFailure: false,
      },
    );
    await current; // the one that the time limit left alone: it counts, and takes its world with it
    console.info(
      `lifecycle model: ${seen.runs} runs, ${seen.sandboxes} sandboxes, ${seen.events} events, killed at ${seen.deaths.size} different points`,
    );
    expect(seen.runs).toBeGreaterThan(2);
    expect(seen.deaths.size).toBeGreaterThan(2);
  },
  BUDGET_MS + 60_000,
);

/** One round, and the next server when this one is dead. @returns where a follower of the events stands */
async function play(
  world: MortalWorld,
  told: Told,
  { steps, killAt, hostAway }: Round,
  followed: SandboxEvent[],
  lastId: string | undefined,
): Promise<string | undefined> {
  let reader: EventReader | undefined;
  try {
    reader = await EventReader.open(world, "/v1/events", { lastId });
  } catch {
    // killed before it answered: the next reader goes on from the same place
  }
  if (hostAway) await world.host.goAway();
  if (killAt !== null) world.life.arm(killAt);
  const done = Promise.all(steps.map(async (step) => await run(world, told, step)));
  // Some wait for a host that is away: it comes back while they do.
  if (hostAway) {
    await Promise.race([done, new Promise((resolve) => setTimeout(resolve, AWAY_MS))]);
    await world.host.listen();
  }
  await done;
  world.life.disarm();
  if (reader !== undefined) {
    await reader.close();
    followed.push(...reader.events);
  }
  if (world.life.dead) {
    await world.end();
    await world.boot();
  }
  return reader?.lastId ?? lastId;
}

async function settle(world: MortalWorld): Promise<void> {
  world.host.clearFaults();
  const until = Date.now() + REST_WITHIN_MS;
  for (;;) {
    world.server.watch.reconcileSoon();
    await new Promise((resolve) => setTimeout(resolve, 30));
    const wrong = await disagreements(world);
    if (wrong.length === 0) return;
    if (Date.now() > until) throw new Error(`still wrong after ${REST_WITHIN_MS} ms:\n${wrong.join("\n")}`);
  }
}

/** Where record and machine do not agree, or a record has no way to rest. */
async function disagreements(world: MortalWorld): Promise<string[]> {
  const wrong: string[] = [];
  const { items } = await world.server.sandboxStore.list(everything, {
    states: [],
    metadata: {},
    limit: 10_000,
  });
  const known = new Map(items.map((record) => [record.id, record]));
  for (const record of items) {
    const machine = world.host.machines.get(record.id)?.machine;
    const living = machine !== undefined && machine.state !== "ended";
    const { id, state, generation, expiresAt, reason } = record;
    if (!RESTING.includes(state)) wrong.push(`${id} is ${state}`);
    else if (state === "destroyed") {
      if (living) wrong.push(`${id} is destroyed, but its machine is ${machine.state}`);
      if (reason === null) wrong.push(`${id} ended without a reason`);
      if (record.endedAt === null) wrong.push(`${id} ended at no time`);
    } else if (!living) wrong.push(`${id} is ${state}, but has no machine`);
    else {
      if (machine.state !== state) wrong.push(`${id} is ${state}, its machine ${machine.state}`);
      if (machine.generation !== generation)
        wrong.push(`${id} has generation ${generation}, its machine ${machine.generation}`);
      if (machine.deadline_unix_ms !== expiresAt)
        wrong.push(`${id} expires at ${expiresAt}, its machine at ${machine.deadline_unix_ms}`);
    }
  }
  for (const id of world.host.liveMachines()) if (!known.has(id)) wrong.push(`machine ${id} has no record`);
  return wrong;
}

async function check(
  world: MortalWorld,
  told: Told,
  followed: SandboxEvent[],
  lastId: string | undefined,
): Promise<void> {
  const { sandboxStore, eventStore } = world.server;
  const states = new Map<string, string>();
  for (const id of told.made) {
    const record = await sandboxStore.find(everything, id);
    if (record === undefined) throw new Error(`a client was told of ${id}, which is not on record`);
    states.set(id, record.state);
    const deadline = told.deadlines.get(id);
    const at = record.expiresAt === null ? null : new Date(record.expiresAt).toISOString();
    if (deadline?.disturbed === false && record.state !== "destroyed" && at !== deadline.at)
      throw new Error(`a client was told that ${id} ends at ${deadline.at}; it ends at ${at}`);
  }
  await checkMeter(world);
  for (const id of told.ended)
    if (states.get(id) !== "destroyed")
      throw new Error(`a client was told that ${id} had ended: ${states.get(id)}`);
  for (const [key, ids] of told.byKey)
    if (ids.size > 1) throw new Error(`Idempotency-Key ${key} made ${[...ids].join(" and ")}`);
  // The events are each sandbox's way through the table, up to where its record stands.
  const log = await eventStore.read(everything, { after: 0, limit: 100_000 });
  const last = new Map<string, SandboxEvent>();
  for (const { event } of log) {
    const { sandbox_id: id, state } = event;
    if (id === null || state === null) throw new Error(`${event.id} is of no sandbox`);
    const before = last.get(id)?.state ?? null;
    if (event.previous_state !== before)
      throw new Error(`${event.id} says that ${id} was ${event.previous_state}; it was ${before}`);
    const isMove = before === null || event.type === "sandbox.updated" || canTransition(before, state);
    if (!isMove) throw new Error(`${event.id}: no way leads from ${before} to ${event.state}`);
    last.set(id, event);
  }
  for (const [id, state] of states)
    if (last.get(id)?.state !== state)
      throw new Error(`${id} is ${state}; its events end at ${last.get(id)?.state}`);
  // The ledger tells of all they held, whatever died in between: no machine, image or address had two.
  const verdict = await auditOf(world.server.database);
  if (!verdict.ok) throw new Error(verdict.findings.map(({ message }) => message).join("\n"));
  const living = [...states.values()].filter((state) => state !== "destroyed");
  if (verdict.held.sandboxes < living.length) throw new Error("the ledger has lost a sandbox");
  // Whoever followed over all deaths saw all of it, once.
  await using rest = await EventReader.open(world, "/v1/events?follow=false", { lastId });
  const until = Date.now() + REST_WITHIN_MS;
  while (rest.ended === undefined && Date.now() < until)
    await new Promise((resolve) => setTimeout(resolve, 5));
  const ids = [...followed, ...rest.events].map(({ id }) => id);
  expect(ids).toEqual(log.map(({ event }) => event.id));
}

/** The meter tiles each sandbox's life, and says the same of it as its host. */
async function checkMeter(world: MortalWorld): Promise<void> {
  const { sandboxStore, database } = world.server;
  const usageStore = new UsageStore(database);
  const page = await sandboxStore.list(everything, { states: [], metadata: {}, limit: 10_000 });
  for (const { id, state, createdAt, endedAt } of page.items) {
    const { items: intervals } = await usageStore.intervals(everything, id);
    let at = createdAt;
    for (const [index, { number, from, to, state: held }] of intervals.entries()) {
      if (number !== index + 1) throw new Error(`interval ${index + 1} of ${id} has number ${number}`);
      if (Date.parse(from) !== at)
        throw new Error(`interval ${number} of ${id} begins at ${from}, not at ${at}`);
      if (to === null && (index !== intervals.length - 1 || held !== state))
        throw new Error(`interval ${number} of ${id}, ${held}, goes on though it is ${state}`);
      at = to === null ? Number.POSITIVE_INFINITY : Date.parse(to);
    }
    if (state === "destroyed" && at < (endedAt ?? 0) - 1)
      throw new Error(`the meter of ${id} ends at ${at}, before its end at ${endedAt}`);
    if (state !== "destroyed" && at !== Number.POSITIVE_INFINITY)
      throw new Error(`the meter of ${id} ends at ${at}, though it is ${state}`);
    const moves = world.host.machines.get(id)?.machine.moves ?? [];
    for (const interval of intervals) {
      if (interval.state !== "running" && interval.state !== "hibernated") continue;
      const move = moves.find(({ at: moved, to }) => to === interval.state && moved === interval.from);
      if (move === undefined) throw new Error(`${id} was not ${interval.state} from ${interval.from} on`);
      const next = moves[moves.indexOf(move) + 1];
      if (interval.to !== null && next !== undefined && Date.parse(interval.to) > Date.parse(next.at))
        throw new Error(
          `${id} is counted as ${interval.state} until ${interval.to}; it was until ${next.at}`,
        );
    }
  }
}
