import { afterEach, beforeEach, expect, test } from "vitest";
import { errorOf, eventually, type Reply, World } from "./world.ts";

let world: World;
let operator: string;
beforeEach(async () => {
  world = await World.start();
  operator = await world.newKey(["operator"]);
});
afterEach(async () => {
  await world[Symbol.asyncDispose]();
});

async function limit(limits: object, tenantLimits: object = {}): Promise<void> {
  const json = { limits, tenant_limits: tenantLimits };
  const reply = await world.call("PATCH", "/v1/accounts/default", { key: operator, json });
  expect(reply.status).toBe(200);
}

const create = async (json: object = {}): Promise<Reply> =>
  await world.call("POST", "/v1/sandboxes", { json: { template: "base", ...json } });
const lasting = (tenant: string): object => ({ persistent: true, tenant });
const move = async (id: unknown, verb: string): Promise<Reply> =>
  await world.call("POST", `/v1/sandboxes/${id as string}/${verb}`);

test("of 100 creates at once a quota lets through as many as it says, and the refusal says all there is to say", async () => {
  await limit({ sandboxes: 7 });
  const replies = await Promise.all(Array.from({ length: 100 }, () => create()));
  expect(replies.filter(({ status }) => status === 201)).toHaveLength(7);
  const refused = replies.filter(({ status }) => status === 403);
  expect(refused).toHaveLength(93);
  expect(refused[0]?.body["error"]).toMatchObject({
    code: "quota_exceeded",
    retryable: false,
    message:
      "account default may have 7 sandboxes and has 7, and this create needs 1 more: destroy some, or have the limit sandboxes raised by whoever runs this server",
    details: { limit: "sandboxes", of: "account", value: 7, usage: 7, asked: 1 },
  });
  expect(world.host.liveMachines()).toHaveLength(7);
  const [one] = replies.filter(({ status }) => status === 201);
  await world.call("DELETE", `/v1/sandboxes/${one?.body["id"] as string}`);
  expect((await create()).status).toBe(201); // room again as soon as the destroy has answered
}, 60_000);

test("a create that a quota may refuse makes no host get a machine ready", async () => {
  await create();
  expect(world.host.expected).toBe(1);
  await limit({}, { sandboxes: 1 });
  expect((await create()).status).toBe(403);
  expect(world.host.expected).toBe(1);
});

test("a tenant's limits are its own, and show with what it has", async () => {
  await limit({ sandboxes: 5 }, { sandboxes: 2 });
  const statuses = async (tenant: string): Promise<number[]> =>
    [await create({ tenant }), await create({ tenant }), await create({ tenant })].map(
      ({ status }) => status,
    );
  expect(await statuses("a")).toEqual([201, 201, 403]);
  expect(await statuses("b")).toEqual([201, 201, 403]);
  expect(await statuses("c")).toEqual([201, 403, 403]); // the account's own is reached first
  const refused = await create({ tenant: "a" });
  expect(errorOf(refused).message).toContain("tenant a may have 2 sandboxes and has 2");
  const bound = await world.newKey(["sandbox:read"], "a");
  const own = await world.call("GET", "/v1/tenants/a", { key: bound });
  expect(own).toMatchObject({
    status: 200,
    body: { tenant: "a", limits: { sandboxes: 2 }, usage: { sandboxes: 2 } },
  });
  expect((await world.call("GET", "/v1/tenants/b", { key: bound })).status).toBe(404);
  expect((await world.call("GET", "/v1/tenants/nobody")).body).toMatchObject({ usage: { sandboxes: 0 } });
  const account = await world.call("GET", "/v1/account");
  expect(account.body).toMatchObject({
    limits: { sandboxes: 5, cpu: null },
    tenant_limits: { sandboxes: 2 },
    usage: { sandboxes: 5, sandboxes_awake: 5, creates_per_minute: 5 },
  });
});

test("one that sleeps makes room for another awake, and is woken by nothing while there is none", async () => {
  await limit({ sandboxes_awake: 1 });
  const first = await create(lasting("t"));
  expect((await create(lasting("t"))).status).toBe(403);
  await move(first.body["id"], "hibernate");
  const second = await create(lasting("t"));
  expect(second.status).toBe(201);
  for (const reply of [
    await move(first.body["id"], "wake"),
    await world.exec(first.body["id"] as string, { cmd: "true" }),
    await world.call("POST", `/v1/sandboxes/${first.body["id"] as string}/snapshots`, { json: {} }),
  ])
    expect(reply).toMatchObject({ status: 403, body: { error: { details: { limit: "sandboxes_awake" } } } });
  const asleep = await world.call("GET", `/v1/sandboxes/${first.body["id"] as string}`);
  expect(asleep.body["state"]).toBe("hibernated");
  await move(second.body["id"], "hibernate");
  expect((await world.exec(first.body["id"] as string, { cmd: "true" })).status).toBe(200);
});

test("one that its host wakes by itself is put back to sleep where there is no room for it, as often as it takes", async () => {
  await limit({ sandboxes_awake: 1 });
  const id = (await create(lasting("t"))).body["id"] as string;
  await move(id, "hibernate");
  const second = await create(lasting("t"));
  world.host.fault({ on: /POST .*\/hibernate/, kind: "error" });
  await world.host.move(id, "wake"); // for work that came while it fell asleep
  const asked = (): number => world.host.requests.filter((line) => line.includes(`${id}/hibernate`)).length;
  await eventually(() => asked() === 2);
  expect(world.host.machines.get(id)?.machine.state).toBe("running");
  world.server.watch.reconcileSoon();
  await eventually(() => world.host.machines.get(id)?.machine.state === "hibernated");
  const shown = async (): Promise<Record<string, unknown>> =>
    (await world.call("GET", `/v1/sandboxes/${id}`)).body;
  await eventually(async () => (await shown())["generation"] === 2);
  expect(await shown()).toMatchObject({ state: "hibernated" });
  expect((await world.call("GET", "/v1/account")).body).toMatchObject({ usage: { sandboxes_awake: 1 } });
  await move(second.body["id"], "hibernate");
  await world.host.move(id, "wake");
  await eventually(async () => (await shown())["state"] === "running");
  expect((await move(second.body["id"], "wake")).status).toBe(403);
});

test("a wake of one that falls asleep meanwhile is refused where there is no room for it any more", async () => {
  await limit({ sandboxes_awake: 1 });
  const id = (await create(lasting("t"))).body["id"] as string;
  let goOn = (): void => {};
  const until = new Promise<void>((resolve) => (goOn = resolve));
  world.host.fault({ on: /POST .*\/wake/, kind: "delay", until });
  const wake = move(id, "wake");
  await eventually(() => world.host.requests.some((line) => line.includes(`${id}/wake`)));
  await world.host.move(id, "hibernate");
  const shown = async (): Promise<unknown> => (await world.call("GET", `/v1/sandboxes/${id}`)).body["state"];
  await eventually(async () => (await shown()) === "hibernated");
  const second = await create(lasting("t"));
  expect(second.status).toBe(201);
  goOn();
  expect(await wake).toMatchObject({
    status: 403,
    body: { error: { code: "quota_exceeded", details: { limit: "sandboxes_awake" } } },
  });
  await eventually(() => world.host.machines.get(id)?.machine.state === "hibernated");
  expect(await shown()).toBe("hibernated");
});

test("a wake that the host refuses counts for nothing afterwards", async () => {
  await limit({ sandboxes_awake: 1 });
  const { body } = await create(lasting("t"));
  await move(body["id"], "hibernate");
  world.host.fault({ on: /POST .*\/wake/, kind: "error" });
  expect((await move(body["id"], "wake")).status).toBe(500);
  expect((await world.call("GET", "/v1/account")).body).toMatchObject({ usage: { sandboxes_awake: 0 } });
  expect((await move(body["id"], "wake")).status).toBe(200);
});

test("a rate is refused with the time after which to try again", async () => {
  await limit({ creates_per_minute: 3 });
  const replies = await Promise.all(Array.from({ length: 5 }, () => create()));
  const refused = replies.filter(({ status }) => status === 429);
  expect(refused).toHaveLength(2);
  const [one] = refused as [Reply];
  expect(errorOf(one)).toMatchObject({
    code: "rate_limited",
    retryable: true,
    details: { limit: "creates_per_minute" },
  });
  const seconds = Number(one.headers.get("retry-after"));
  expect(seconds).toBeGreaterThan(30);
  expect(seconds).toBeLessThanOrEqual(60);
});

test("a tenant that asks for sixty at once does not keep another from its first", async () => {
  // All that one tenant may have under way: two thirds of the four that a server asks of each of the host's four cores.
  const share = 11;
  let makeThem = (): void => {};
  const until = new Promise<void>((resolve) => (makeThem = resolve));
  world.host.fault({ on: /^PUT \/v1\/machines/, kind: "delay", until, times: share });
  let made = 0;
  const noisy = Array.from({ length: 60 }, async () => {
    const { status } = await create({ tenant: "noisy" });
    made += 1;
    return status;
  });
  const asked = (): number =>
    world.host.requests.filter((line) => line.startsWith("PUT /v1/machines/")).length;
  await eventually(() => asked() === share);
  for (let first = 0; first < 3; first++) expect((await create({ tenant: "quiet" })).status).toBe(201);
  expect({ made, asked: asked() }).toEqual({ made: 0, asked: share + 3 });
  makeThem();
  expect(new Set(await Promise.all(noisy))).toEqual(new Set([201]));
}, 60_000);
