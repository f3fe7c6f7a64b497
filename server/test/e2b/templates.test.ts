import { afterAll, beforeAll, expect, test } from "vitest";
import { World } from "../world.ts";

let world: World;
beforeAll(async () => {
  world = await World.start();
});
afterAll(async () => {
  await world[Symbol.asyncDispose]();
});

async function create(
  templateID: string,
  metadata: Record<string, string> = {},
  key = world.adminKey,
): Promise<{ status: number; body: Record<string, unknown> }> {
  return await world.call("POST", "/v2/sandboxes", { key, json: { templateID, metadata } });
}

async function snapshot(name: string, key = world.adminKey): Promise<string> {
  const { body } = await create("base", {}, key);
  const made = await world.call("POST", `/sandboxes/${String(body["sandboxID"])}/snapshots`, {
    key,
    json: { name },
  });
  expect(made.status, made.text).toBe(201);
  expect(made.body["names"]).toEqual([name]);
  return String(made.body["snapshotID"]).replace(/:default$/, "");
}

/** The snapshot that the machine of a sandbox of that template was made from. */
async function origin(templateID: string, metadata: Record<string, string> = {}): Promise<unknown> {
  const { status, body } = await create(templateID, metadata);
  expect(status).toBe(201);
  return world.host.machines.get(String(body["sandboxID"]))?.machine.incarnations[0]?.from;
}

test("a sandbox is created from the newest snapshot of a name, with E2B's tag or without", async () => {
  await snapshot("ready to go");
  const newest = await snapshot("ready to go");
  expect(await origin("ready to go")).toBe(newest);
  expect(await origin("ready to go:default")).toBe(newest);
  const tagged = await snapshot("ready:v2");
  expect(await origin("ready:v2")).toBe(tagged);
  expect((await create("ready:v3")).status).toBe(404);
});

test("a snapshot's name takes the place of no template, and means nothing to another tenant", async () => {
  await snapshot("base");
  await snapshot("of-this-server");
  await snapshot("code-interpreter-v1");
  const [base] = world.host.templates;
  if (base === undefined) throw new Error("the fake host has templates");
  world.host.templates.push({ ...base, name: "of-this-server" });
  for (const name of ["base", "of-this-server"]) expect(await origin(name), name).toBe(null);

  await snapshot("mine");
  const key = await world.call("POST", "/v1/keys", { json: { name: "theirs", tenant: "elsewhere" } });
  const theirs = await world.call("POST", "/v2/sandboxes", {
    key: String(key.body["key"]),
    json: { templateID: "mine" },
  });
  expect(theirs.status).toBe(404);
});

test("a snapshot's name means the one of the tenant a create is for, also to a key of no tenant", async () => {
  const of = async (tenant: string): Promise<string> => {
    const key = await world.call("POST", "/v1/keys", { json: { name: tenant, tenant } });
    return await snapshot("worker", String(key.body["key"]));
  };
  const first = await of("first");
  const second = await of("second");
  expect((await create("worker")).status).toBe(404);
  expect(await origin("worker", { tenant_id: "first" })).toBe(first);
  expect(await origin("worker", { tenant_id: "second" })).toBe(second);
  expect((await create("worker", { tenant_id: "third" })).status).toBe(404);
  const own = await snapshot("worker");
  await of("first");
  expect(await origin("worker")).toBe(own);
});

test("a list says how many run on all its pages, and only when those that run are asked for", async () => {
  const metadata = { of: "the count" };
  for (let each = 0; each < 3; each += 1)
    await world.call("POST", "/v2/sandboxes", { json: { templateID: "base", metadata } });
  const list = async (query: string): Promise<[number, string | null]> => {
    const { body, headers } = await world.call("GET", `/v2/sandboxes?metadata=of%3Dthe%2520count${query}`);
    return [(body as unknown as unknown[]).length, headers.get("x-total-running")];
  };
  expect(await list("&limit=2")).toEqual([2, "3"]);
  const { body } = await world.call("GET", "/v2/sandboxes?metadata=of%3Dthe%2520count&limit=1");
  const [{ sandboxID }] = body as unknown as [{ sandboxID: string }];
  await world.call("POST", `/sandboxes/${sandboxID}/pause`, { json: {} });
  expect(await list("")).toEqual([3, "2"]);
  expect(await list("&state=running")).toEqual([2, "2"]);
  expect(await list("&state=paused")).toEqual([1, null]);
});

test("a template is shown with its builds in pages, and stays its owner's", async () => {
  const ask = async () => (await world.call("POST", "/v3/templates", { json: { name: "shown" } })).body;
  const first = await ask();
  const second = await ask();
  const path = `/templates/${String(first["templateID"])}`;
  const { status, body, headers } = await world.call("GET", `${path}?limit=1`);
  expect(status).toBe(200);
  expect(body).toMatchObject({
    templateID: first["templateID"],
    names: ["shown"],
    public: false,
    spawnCount: 0,
    lastSpawnedAt: null,
    builds: [{ buildID: second["buildID"], status: "waiting", cpuCount: 1, memoryMB: 1_024 }],
  });
  const next = await world.call("GET", `${path}?nextToken=${headers.get("x-next-token") ?? ""}`);
  expect(next.body["builds"]).toMatchObject([{ buildID: first["buildID"] }]);
  expect(next.headers.get("x-next-token")).toBeNull();
  expect((await world.call("GET", `${path}?nextToken=nothing`)).status).toBe(400);

  for (const at of [path, `/v2${path}`]) {
    expect((await world.call("PATCH", at, { json: { public: false } })).body).toEqual({ names: ["shown"] });
    const refused = await world.call("PATCH", at, { json: { public: true } });
    expect(refused.body).toMatchObject({
      code: 400,
      message: expect.stringMatching(/public templates/) as string,
    });
  }
});
