import { afterAll, beforeAll, expect, test } from "vitest";
import { sampleAt } from "../fake-host.ts";
import { World } from "../world.ts";

let world: World;
beforeAll(async () => {
  world = await World.start();
});
afterAll(async () => {
  await world[Symbol.asyncDispose]();
});

async function create(): Promise<string> {
  return String(
    (await world.call("POST", "/v2/sandboxes", { json: { templateID: "base" } })).body["sandboxID"],
  );
}

async function metrics(id: string, query = ""): Promise<Record<string, unknown>[]> {
  const { status, text } = await world.call("GET", `/sandboxes/${id}/metrics${query}`);
  expect(status, text).toBe(200);
  return JSON.parse(text) as Record<string, unknown>[];
}

test("metrics are told of the time that is asked for, its first and last second included", async () => {
  const id = await create();
  const at = 1_790_000_000_000;
  world.host.samples.set(
    id,
    [0, 5, 10, 15].map((second) => sampleAt(at + second * 1_000 + 400)),
  );
  expect(await metrics(id)).toHaveLength(5);
  const some = await metrics(id, `?start=${at / 1_000 + 5}&end=${at / 1_000 + 10}`);
  expect(some.map(({ timestampUnix }) => timestampUnix)).toEqual([1_790_000_005, 1_790_000_010]);
  expect(some[0]).toEqual({
    timestamp: "2026-09-21T14:13:25.400Z",
    timestampUnix: 1_790_000_005,
    cpuCount: expect.any(Number) as number,
    cpuUsedPct: 12.5,
    memUsed: 4_096,
    memTotal: expect.any(Number) as number,
    memCache: 1_024,
    diskUsed: 512,
    diskTotal: expect.any(Number) as number,
  });
  const { body } = await world.call("GET", `/v1/sandboxes/${id}/metrics?to=2026-09-21T14:13:21Z`);
  expect(body["items"]).toEqual([
    {
      at: "2026-09-21T14:13:20.400Z",
      cpu_used_percent: 12.5,
      memory_used_bytes: 4_096,
      memory_cache_bytes: 1_024,
      disk_used_bytes: 512,
    },
  ]);
});

test("of a sandbox that sleeps its past is told, and it sleeps on", async () => {
  const id = await create();
  world.host.samples.set(id, [sampleAt(1_790_000_000_000)]);
  await world.call("POST", `/v1/sandboxes/${id}/hibernate`);
  expect(await metrics(id)).toHaveLength(1);
  expect(world.host.machines.get(id)?.machine.state).toBe("hibernated");
});

test("metrics of several are told by id, without those that sleep, ended or are another's", async () => {
  const [running, asleep, gone] = await Promise.all([create(), create(), create()]);
  await world.call("POST", `/v1/sandboxes/${asleep}/hibernate`);
  await world.call("DELETE", `/sandboxes/${gone}`);
  const asked = [running, asleep, gone, "nobodys"].join(",");
  const { body } = await world.call("GET", `/sandboxes/metrics?sandbox_ids=${asked}`);
  expect(Object.keys(body["sandboxes"] as object)).toEqual([running]);
  const many = Array.from({ length: 101 }, (_, index) => `sbx${index}`).join(",");
  expect((await world.call("GET", `/sandboxes/metrics?sandbox_ids=${many}`)).status).toBe(400);
});
