import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { EVENT_TYPES, type SandboxEvent, sandboxEventSchema } from "@torpor/protocol";
import { ServerScope } from "../src/auth/tenant-scope.ts";
import { EventReader } from "./read-events.ts";
import { errorOf, eventually, World } from "./world.ts";

let world: World;
beforeEach(async () => {
  world = await World.start();
});
afterEach(async () => {
  await world[Symbol.asyncDispose]();
});

async function destroy(id: string): Promise<void> {
  await world.call("DELETE", `/v1/sandboxes/${id}`);
}

const LIFE = ["sandbox.creating", "sandbox.running", "sandbox.destroying", "sandbox.destroyed"];

describe("the events of one sandbox", () => {
  test("tell its whole life in order, each as the schema says, and end after it when not followed", async () => {
    const { id } = await world.sandbox();
    await world.call("POST", `/v1/sandboxes/${id}/hibernate`);
    await world.call("POST", `/v1/sandboxes/${id}/wake`);
    await destroy(id);
    const reply = await world.call("GET", `/v1/sandboxes/${id}/events?follow=false`, {
      headers: { accept: "application/x-ndjson" },
    });
    expect(reply.headers.get("content-type")).toBe("application/x-ndjson");
    const lines = reply.text
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line) as SandboxEvent);
    const events = lines.filter(({ type }) => EVENT_TYPES.includes(type));
    for (const event of events) sandboxEventSchema.parse(event);
    expect(events.map(({ state }) => state)).toEqual([
      "creating",
      "running",
      "hibernating",
      "hibernated",
      "waking",
      "running",
      "destroying",
      "destroyed",
    ]);
    expect(events.map(({ previous_state: from }) => from)).toEqual([
      null,
      "creating",
      "running",
      "hibernating",
      "hibernated",
      "waking",
      "running",
      "destroying",
    ]);
    expect(events.map(({ generation }) => generation)).toEqual([1, 1, 1, 1, 1, 2, 2, 2]);
    expect(events.at(-1)).toMatchObject({ reason: "user", sandbox_id: id, tenant: "default" });
  });

  test("name what changed when its clocks do", async () => {
    const { id } = await world.sandbox();
    await using reader = await EventReader.open(world, `/v1/sandboxes/${id}/events?types=sandbox.updated`);
    await world.call("PATCH", `/v1/sandboxes/${id}/lifecycle`, { json: { on_expire: "hibernate" } });
    await eventually(() => reader.events.length === 1);
    expect(reader.events[0]).toMatchObject({
      type: "sandbox.updated",
      state: "running",
      previous_state: "running",
      changes: { on_expire: "hibernate" },
    });
  });

  test("are another tenant's secret: 404, as for a sandbox that never was", async () => {
    const { id } = await world.sandbox({ template: "base", tenant: "a" });
    const key = await world.newKey(["sandbox:read"], "b");
    expect((await world.call("GET", `/v1/sandboxes/${id}/events`, { key })).status).toBe(404);
  });
});

describe("the events of all", () => {
  test("come as they happen, from now on, with their ids on the wire", async () => {
    await world.sandbox();
    await using reader = await EventReader.open(world, "/v1/events");
    const { id } = await world.sandbox();
    await destroy(id);
    await eventually(() => reader.events.length === 4);
    expect(reader.types).toEqual(LIFE);
    expect(reader.lastId).toBe(reader.events.at(-1)?.id);
  });

  test("are the key's own: a tenant's key sees that tenant's alone, and its place moves past the others'", async () => {
    const key = await world.newKey(["sandbox:read"], "b");
    await using reader = await EventReader.open(world, "/v1/events", { key });
    await world.sandbox({ template: "base", tenant: "a" });
    await world.sandbox({ template: "base", tenant: "b" });
    await eventually(() => reader.events.length === 2);
    expect(new Set(reader.events.map(({ tenant }) => tenant))).toEqual(new Set(["b"]));
    const all = await world.call("GET", "/v1/events?after=oldest&follow=0&tenant=a");
    expect(all.text).not.toContain('"tenant":"b"');
    expect(all.text).toContain('"tenant":"a"');
  });

  test("resume after the last id without a gap or a repeat, over broken connections and a restart", async () => {
    const seen: SandboxEvent[] = [];
    let lastId: string | undefined;
    const follow = async (what: () => Promise<void>): Promise<void> => {
      const reader = await EventReader.open(world, "/v1/events", { lastId });
      await eventually(() => reader.lastId !== undefined);
      await what();
      await reader.close();
      seen.push(...reader.events);
      lastId = reader.lastId;
    };
    const make = async (): Promise<void> => {
      await destroy((await world.sandbox()).id);
    };
    await follow(async () => {}); // cut off before its first event
    await make();
    await follow(make);
    await make();
    await world.restart();
    await make();
    await using last = await EventReader.open(world, "/v1/events", { lastId });
    await eventually(() => seen.length + last.events.length >= 16);
    const ids = [...seen, ...last.events].map(({ id }) => id);
    expect(new Set(ids).size).toBe(ids.length);
    expect([...seen, ...last.events].map(({ type }) => type)).toEqual([...LIFE, ...LIFE, ...LIFE, ...LIFE]);
  });

  test("that many write at once reach everyone in the same order", async () => {
    await using first = await EventReader.open(world, "/v1/events");
    await using second = await EventReader.open(world, "/v1/events");
    await Promise.all(Array.from({ length: 12 }, async () => await destroy((await world.sandbox()).id)));
    await eventually(() => first.events.length === 48 && second.events.length === 48);
    expect(first.events).toEqual(second.events);
    const numbers = first.events.map(({ id }) => Number(id.slice(4)));
    expect(numbers).toEqual(numbers.toSorted((a, b) => a - b));
  });

  test("say so when the place to resume from is no longer kept, and name what there is", async () => {
    for (let index = 0; index < 2; index += 1) await destroy((await world.sandbox()).id);
    const store = world.server.eventStore;
    const newest = await store.lastSeq();
    expect(await store.purge(ServerScope.forHousekeeping(), 0, 3, 1_000)).toBe(newest - 3);
    const reply = await world.call("GET", "/v1/events?after=evt_1");
    expect(reply.status).toBe(410);
    expect(errorOf(reply)).toMatchObject({
      code: "events_expired",
      details: { oldest_id: `evt_${newest - 2}`, newest_id: `evt_${newest}` },
    });
    // The last one forgotten is a good place: all that comes after it is there.
    const rest = await world.call("GET", `/v1/events?after=evt_${newest - 3}&follow=0`);
    expect(rest.text.match(/^data:/gm)).toHaveLength(3);
    // Everything may grow old but the newest, from which it is known what was forgotten.
    expect(await store.purge(ServerScope.forHousekeeping(), Date.now() + 1_000, 0, 1_000)).toBe(2);
    expect((await world.call("GET", `/v1/events?after=evt_${newest - 2}`)).status).toBe(410);
    const future = await world.call("GET", `/v1/events?after=evt_${newest + 5}`);
    expect(errorOf(future)).toMatchObject({
      code: "events_expired",
      details: { newest_id: `evt_${newest}` },
    });
  });

  test.each(["after=yesterday", "after=evt_", "types=sandbox.exploded", "follow=maybe", "limit=3"])(
    "refuse %s and name the field",
    async (query) => {
      const reply = await world.call("GET", `/v1/events?${query}`);
      expect(reply.status).toBe(400);
      expect(errorOf(reply).message).toContain(query.split("=")[0]);
    },
  );

  test("refuse a Last-Event-ID that is none of ours", async () => {
    const reply = await world.call("GET", "/v1/events", { headers: { "last-event-id": "17" } });
    expect(errorOf(reply)).toMatchObject({ code: "invalid_request" });
  });

  test("cost a client that reads nothing only its own connection", async () => {
    const slow = await world.fetch("GET", "/v1/events");
    await Promise.all(Array.from({ length: 20 }, async () => await destroy((await world.sandbox()).id)));
    await using quick = await EventReader.open(world, "/v1/events?after=oldest");
    await eventually(() => quick.events.length === 80);
    await slow.body?.cancel();
  });
});

test("a move whose event cannot be written does not happen", async () => {
  const { id } = await world.sandbox();
  await world.server.database.db.schema.dropTable("events").execute();
  expect((await world.call("DELETE", `/v1/sandboxes/${id}`)).status).toBe(500);
  expect((await world.call("GET", `/v1/sandboxes/${id}`)).body["state"]).toBe("running");
  expect(world.host.liveMachines()).toEqual([id]);
});
