import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { systemClock, silentLog } from "@torpor/base";
import {
  type Advice,
  type CreatedSandbox,
  costOf,
  DEFAULT_PRICES,
  quantitiesIn,
  type SandboxEvent,
} from "@torpor/protocol";
import { IdleWatch } from "../src/advise/idle-watch.ts";
import { ServerScope } from "../src/auth/tenant-scope.ts";
import { HostClient } from "../src/host/host-client.ts";
import { FixedPlacement, HostLink } from "../src/host/placement.ts";
import { errorOf, eventually, World } from "./world.ts";

let world: World;
beforeEach(async () => {
  world = await World.start();
});
afterEach(async () => {
  await world[Symbol.asyncDispose]();
});

const advise = async (json: object, key?: string): Promise<Advice> => {
  const reply = await world.call("POST", "/v1/advise", { json, ...(key === undefined ? {} : { key }) });
  expect(reply.status, reply.text).toBe(200);
  return reply.body as unknown as Advice;
};
const create = async (json: object): Promise<CreatedSandbox> =>
  await world.sandbox({ template: "base", ...json });
const idleWatch = (
  client: HostClient,
  clock: typeof systemClock,
  more: { atOnce?: number } = {},
): IdleWatch =>
  new IdleWatch({
    sandboxes: world.server.sandboxStore,
    events: world.server.eventStore,
    placement: new FixedPlacement([new HostLink(client, clock)], silentLog),
    prices: () => Promise.resolve(DEFAULT_PRICES),
    clock,
    log: silentLog,
    ...more,
  });
const eventsOf = async (id: string): Promise<SandboxEvent[]> =>
  (
    await world.call("GET", `/v1/sandboxes/${id}/events?follow=false&after=oldest`, {
      headers: { accept: "application/x-ndjson" },
    })
  ).text
    .split("\n")
    .filter((line) => line.includes('"sandbox.'))
    .map((line) => JSON.parse(line) as SandboxEvent);

describe("POST /v1/advise", () => {
  test("answers from documented figures while nothing was measured, and says so", async () => {
    const advice = await advise({ template: "base", interactive: true, setup_seconds: 30 });
    expect(advice).toMatchObject({ shape: "stateful", decided_by: "warmth" });
    for (const name of ["create_seconds", "hibernate_seconds", "wake_seconds", "image_bytes"] as const)
      expect(advice.facts[name]).toMatchObject({ measured: false, samples: 0, source: "documented" });
    expect(advice.notes.join()).toMatch(/Not measured on this machine yet/);
    expect(advice.facts.prices).toEqual(DEFAULT_PRICES);
  });

  test("counts with what creates, sleeps and wakes took here, also after a restart", async () => {
    world.host.sleepMs = 40;
    const { id } = await create({ persistent: true, tenant: "acme" });
    for (const verb of ["hibernate", "wake"] as const)
      await world.call("POST", `/v1/sandboxes/${id}/${verb}`);
    const measured = { measured: true, samples: 1, source: "template" };
    const expected = {
      create_seconds: measured,
      hibernate_seconds: { ...measured, value: 0.04 },
      wake_seconds: { ...measured, value: 0.04 },
      image_bytes: { ...measured, value: 4096 },
    };
    expect((await advise({ template: "base" })).facts).toMatchObject(expected);
    await world.restart();
    const later = await advise({ template: "base" });
    expect(later.facts).toMatchObject(expected);
    expect(later.break_even.sleep_beats_awake_seconds).toBeCloseTo(0.08, 9);
    expect(later.notes.join()).not.toMatch(/Not measured/);
    expect((await advise({ template: "other" })).facts.wake_seconds).toMatchObject({ source: "machine" });
    const events = await eventsOf(id);
    expect(events.find(({ type }) => type === "sandbox.hibernated")?.changes).toMatchObject({ took_ms: 40 });
    expect(events.findLast(({ type }) => type === "sandbox.running")?.changes).toMatchObject({ took_ms: 40 });
  });

  test("learns nothing from sleeps without memory, nor from the boots that end them", async () => {
    world.host.sleepMs = 40;
    const { id } = await create({ persistent: true, tenant: "acme" });
    const move = (verb: string, json = {}) => world.call("POST", `/v1/sandboxes/${id}/${verb}`, { json });
    await move("hibernate");
    await move("wake");
    world.host.sleepMs = 80;
    await move("hibernate", { memory: false });
    await move("wake");
    world.host.sleepMs = 40;
    await move("hibernate");
    await move("wake");
    const { facts } = await advise({ template: "base" });
    expect(facts.hibernate_seconds).toMatchObject({ samples: 2, value: 0.04 });
    expect(facts.wake_seconds).toMatchObject({ samples: 2, value: 0.04 });
  });

  test("takes size, image, own times and gaps of a sandbox that is named, and of one's own only", async () => {
    const { id } = await create({ persistent: true, tenant: "acme", memory_mb: 2048, cpu: 2 });
    for (const verb of ["hibernate", "wake", "hibernate"] as const)
      await world.call("POST", `/v1/sandboxes/${id}/${verb}`);
    const { facts } = await advise({ sandbox_id: id });
    expect(facts).toMatchObject({
      template: "base",
      cpu: 2,
      memory_mb: 2048,
      from: { idle_gap_seconds: "measured" },
    });
    expect(facts.idle_gap_seconds).toBe(300);
    expect(facts.image_bytes).toEqual({ value: 4096, measured: true, samples: 2, source: "sandbox" });
    expect(facts.wake_seconds).toMatchObject({ samples: 1, source: "sandbox" });
    const foreign = await world.newKey(["sandbox:read"], "other");
    const refused = await world.call("POST", "/v1/advise", { json: { sandbox_id: id }, key: foreign });
    expect([refused.status, errorOf(refused).code]).toEqual([404, "sandbox_not_found"]);
    const mismatch = await world.call("POST", "/v1/advise", { json: { sandbox_id: id, template: "other" } });
    expect(errorOf(mismatch).details).toMatchObject({ issues: [{ path: "template" }] });
  });

  test("refuses what is misspelt, out of bounds or does not fit in a day, by name", async () => {
    for (const [json, path] of [
      [{ survive: true }, "survive"],
      [{ idle_gap_seconds: -1 }, "idle_gap_seconds"],
      [{ survives: ["everything"] }, "survives"],
      [{ uses_per_day: 100, idle_gap_seconds: 3600 }, "uses_per_day"],
    ] as const) {
      const reply = await world.call("POST", "/v1/advise", { json });
      expect(reply.status, reply.text).toBe(400);
      expect(JSON.stringify(errorOf(reply))).toContain(path);
    }
  });
});

describe('a create with lifecycle "auto"', () => {
  test("follows the advice and tells what was chosen and why; asked again with its key it tells the same", async () => {
    const workload = { survives: true, interactive: true, untrusted: false, setup_seconds: 30 };
    const json = { template: "base", tenant: "acme", lifecycle: "auto", workload };
    const headers = { "idempotency-key": "auto-1" };
    const made = await world.call("POST", "/v1/sandboxes", { json, headers });
    expect(made.body).toMatchObject({
      persistent: true,
      expires_at: null,
      idle_timeout_seconds: 60,
      on_idle: "hibernate",
      retention_seconds: null,
      advice: {
        shape: "stateful",
        decided_by: "warmth",
        applied: { persistent: true, idle_timeout_seconds: 60 },
        set_by_caller: [],
      },
    });
    const steps = (made.body["advice"] as Advice).steps;
    expect(steps.find(({ question }) => question === "single_tenant")?.answer).toBe("yes");
    expect((await world.call("POST", "/v1/sandboxes", { json, headers })).body).toEqual(made.body);
    const plain = await create({});
    expect(plain.advice).toBeUndefined();
  });

  test("is ephemeral when nothing is said", async () => {
    const made = await create({ lifecycle: "auto" });
    expect(made).toMatchObject({ persistent: false, advice: { shape: "ephemeral", decided_by: "unsure" } });
    expect(Date.parse(made.expires_at ?? "") - Date.parse(made.created_at)).toBe(300_000);
  });

  test("leaves what the caller set, and gives a shape that the caller chose the clocks it needs", async () => {
    const one = await create({
      lifecycle: "auto",
      ttl_seconds: 77,
      on_idle: "pause",
      workload: { survives: false },
    });
    expect(one).toMatchObject({ on_idle: "pause", advice: { set_by_caller: ["ttl_seconds", "on_idle"] } });
    expect(Date.parse(one.expires_at ?? "") - Date.parse(one.created_at)).toBe(77_000);
    const kept = await create({
      lifecycle: "auto",
      persistent: true,
      tenant: "acme",
      workload: { survives: false },
    });
    expect(kept).toMatchObject({
      persistent: true,
      expires_at: null,
      on_idle: "hibernate",
      advice: { shape: "ephemeral", set_by_caller: ["persistent"], applied: { idle_timeout_seconds: 60 } },
    });
  });

  test("that is to be stateful is refused without a tenant, as any persistent one", async () => {
    const json = { template: "base", lifecycle: "auto", workload: { survives: true } };
    const refused = await world.call("POST", "/v1/sandboxes", { json });
    expect(errorOf(refused).details).toMatchObject({ issues: [{ path: "tenant" }] });
    expect(world.host.liveMachines()).toHaveLength(0);
  });

  test("works for sessions too, which are persistent unless the advice says otherwise", async () => {
    const json = {
      template: "base",
      tenant: "acme",
      key: "k",
      lifecycle: "auto",
      workload: { untrusted: true },
    };
    const made = await world.call("POST", "/v1/sessions", { json });
    expect(made.body).toMatchObject({
      created: true,
      sandbox: { persistent: false },
      advice: { decided_by: "untrusted" },
    });
    expect((await world.call("POST", "/v1/sessions", { json })).body).not.toHaveProperty("advice");
    const plain = await world.call("POST", "/v1/sessions", {
      json: { template: "base", tenant: "acme", key: "p" },
    });
    expect(plain.body).toMatchObject({ sandbox: { persistent: true } });
  });
});

describe("guard rails", () => {
  test("untrusted code in a persistent sandbox takes accept_risk, wherever persistent comes from", async () => {
    const json = { template: "base", tenant: "acme", persistent: true, workload: { untrusted: true } };
    for (const [path, more] of [
      ["/v1/sandboxes", {}],
      ["/v1/sandboxes", { lifecycle: "auto" }],
      ["/v1/sessions", { key: "k", persistent: undefined }],
    ] as const) {
      const refused = await world.call("POST", path, { json: { ...json, ...more } });
      expect(refused.status).toBe(400);
      expect(errorOf(refused).message).toMatch(/accept_risk must be true to keep untrusted code/);
    }
    expect(world.host.liveMachines()).toHaveLength(0);
    expect(await create({ ...json, accept_risk: true })).toMatchObject({ persistent: true });
    expect(await create({ workload: { untrusted: true } })).toMatchObject({ persistent: false });
  });

  test("one that is awake and unused for long is named once in each idle spell, with what it costs", async () => {
    const idle = await create({ persistent: true, tenant: "acme", on_idle: "none", cpu: 2 });
    const busy = await create({ persistent: true, tenant: "acme", on_idle: "none" });
    const asleep = await create({ persistent: true, tenant: "acme" });
    await world.call("POST", `/v1/sandboxes/${asleep.id}/hibernate`);
    const machine = world.host.machines.get(busy.id)?.machine;
    machine?.holds.push({ kind: "exec", what: "exec_1", since: busy.created_at });
    let later = 0;
    const clock = { ...systemClock, now: () => Date.now() + later };
    const client = new HostClient({ url: world.host.url, token: world.host.token });
    const watch = idleWatch(client, clock);
    const scope = ServerScope.forHousekeeping();
    expect(await watch.sweep(scope)).toBe(0);
    later = 2 * 3_600_000;
    expect(await watch.sweep(scope)).toBe(1);
    expect(await watch.sweep(scope)).toBe(0);
    const told = async () => (await eventsOf(idle.id)).filter(({ type }) => type === "sandbox.idle_awake");
    await eventually(async () => (await told()).length === 1);
    const [event] = await told();
    const size = { cpu: 2, memory_mb: idle.memory_mb, disk_mb: idle.disk_mb, image_bytes: 0 };
    const seconds = (event?.changes["idle_seconds"] as number | undefined) ?? 0;
    expect(seconds).toBeGreaterThanOrEqual(7_199);
    expect(event).toMatchObject({
      state: "running",
      previous_state: "running",
      changes: {
        cost_so_far: costOf(quantitiesIn("running", size, seconds), DEFAULT_PRICES),
        cost_per_day: costOf(quantitiesIn("running", size, 86_400), DEFAULT_PRICES),
        currency: "USD",
      },
    });
    // Used again, and left again.
    const entry = world.host.machines.get(idle.id);
    if (entry !== undefined) entry.machine.last_activity_at = new Date(Date.now() + 3_600_000).toISOString();
    later = 3 * 3_600_000;
    expect(await watch.sweep(scope)).toBe(1);
    client.close();
  });

  test("of more than are looked at in one sweep the next sweeps look at the others, and then at all again", async () => {
    const made = [];
    for (let count = 0; count < 3; count += 1)
      made.push(await create({ persistent: true, tenant: "acme", on_idle: "none" }));
    for (const { id } of made) {
      const holds = world.host.machines.get(id)?.machine.holds;
      holds?.push({ kind: "exec", what: "exec_1", since: made[0]?.created_at ?? "" });
    }
    const clock = { ...systemClock, now: () => Date.now() + 2 * 3_600_000 };
    const client = new HostClient({ url: world.host.url, token: world.host.token });
    const watch = idleWatch(client, clock, { atOnce: 1 });
    const scope = ServerScope.forHousekeeping();
    const seen = async (): Promise<(string | undefined)[]> => {
      const before = world.host.requests.length;
      for (let sweep = 0; sweep < 4; sweep += 1) await watch.sweep(scope);
      const asked = world.host.requests.slice(before);
      return asked.flatMap((line) => /^GET \/v1\/machines\/(s\w+)/.exec(line)?.[1] ?? []);
    };
    for (const asked of [await seen(), await seen()]) {
      expect(asked).toHaveLength(3);
      expect(new Set(asked)).toEqual(new Set(made.map(({ id }) => id)));
    }
    client.close();
  });
});
