import { createHash } from "node:crypto";
import { CodedError } from "@torpor/protocol";
import { afterAll, beforeAll, expect, test } from "vitest";
import { World } from "../world.ts";

let world: World;
beforeAll(async () => {
  world = await World.start({ e2bDomain: "e2b.test" });
});
afterAll(async () => {
  await world[Symbol.asyncDispose]();
});

async function create(json: Record<string, unknown> = {}): Promise<{ id: string; token: string }> {
  const { status, text, body } = await world.call("POST", "/v2/sandboxes", {
    json: { templateID: "base", ...json },
  });
  expect(status, text).toBe(201);
  return { id: String(body["sandboxID"]), token: String(body["envdAccessToken"]) };
}

async function health(id: string, token?: string): Promise<number> {
  const headers = { "e2b-sandbox-id": id, ...(token === undefined ? {} : { "x-access-token": token }) };
  return (await world.call("GET", "/health", { key: null, headers })).status;
}

test("health without a token is told of sandboxes of E2B's API alone, and wakes none", async () => {
  const { id, token } = await create({ autoPause: true, autoResume: { enabled: true } });
  expect(await health(id)).toBeLessThan(300);
  await world.call("POST", `/v1/sandboxes/${id}/hibernate`);
  expect(await health(id)).toBe(502);
  expect(await health(id, "wrong")).toBe(502);
  expect(world.host.machines.get(id)?.machine.state).toBe("hibernated");
  expect(await health(id, token)).toBeLessThan(300);
  expect(world.host.machines.get(id)?.machine.state).toBe("running");
  const own = await world.sandbox({ template: "base", auto_wake: true });
  expect(await health(own.id)).toBe(401);
});

test("a signed URL that names its path twice is let in nowhere", async () => {
  const { id, token } = await create();
  const digest = createHash("sha256").update(`hello.txt:read:user:${token}`).digest("base64");
  const signature = encodeURIComponent(`v1_${digest.replace(/=+$/, "")}`);
  const query = `path=hello.txt&path=/etc/shadow&username=user&signature=${signature}`;
  for (const path of [`/files?${query}`, `/files??${query}`]) {
    const headers = { "e2b-sandbox-id": id };
    expect((await world.call("GET", path, { key: null, headers })).status).toBe(401);
    expect((await world.call("GET", path, { key: null })).status).toBeGreaterThanOrEqual(400);
  }
});

test("timeouts beyond the longest are refused with the longest", async () => {
  const { id } = await create();
  for (const verb of ["timeout", "connect", "resume", "fork"]) {
    const { status, body } = await world.call("POST", `/sandboxes/${id}/${verb}`, {
      json: { timeout: 2_592_001 },
    });
    expect([status, body["message"]], verb).toEqual([400, expect.stringContaining("2592000")]);
  }
});

test("a mask of the Host that could be no Host is refused", async () => {
  for (const maskRequestHost of ["", "a\r\nb", "a\0", "a b"]) {
    const json = { templateID: "base", network: { maskRequestHost } };
    expect((await world.call("POST", "/v2/sandboxes", { json })).status).toBe(400);
  }
  await create({ network: { maskRequestHost: "localhost:${PORT}" } });
});

test("a list by what was never made from is empty", async () => {
  await create();
  const { body } = await world.call("POST", "/v3/templates", { json: { name: "mine" } });
  for (const template of ["mine", String(body["templateID"]), `snap_${"a".repeat(20)}`, "not/a/name"]) {
    const reply = await world.call("GET", `/v2/sandboxes?template=${encodeURIComponent(template)}`);
    expect([reply.status, reply.text.trim()], template).toEqual([200, "[]"]);
  }
});

test("a tenant's unfinished builds are bounded, and a tag deletes no template", async () => {
  const statuses = [];
  for (let asked = 0; asked < 21; asked += 1)
    statuses.push((await world.call("POST", "/v3/templates", { json: { name: "many" } })).status);
  expect(statuses.filter((status) => status === 202).length).toBeGreaterThanOrEqual(19);
  expect(statuses.at(-1)).toBe(429);
  const tagged = await world.call("DELETE", "/templates/many:v1");
  expect([tagged.status, tagged.body["message"]]).toEqual([400, expect.stringContaining("removeTags")]);
  expect((await world.call("DELETE", "/templates/many:default")).status).toBe(204);
  expect((await world.call("POST", "/v3/templates", { json: { name: "many" } })).status).toBe(202);
});

test("one that sleeps with its memory and cannot be booted from its files sleeps again, with its memory", async () => {
  const { id } = await create({ autoPause: true });
  await world.call("POST", `/sandboxes/${id}/pause`);
  world.host.fault({ on: /hibernate/, kind: "error", error: new CodedError("no_space", "the disk is full") });
  const { status } = await world.call("POST", `/sandboxes/${id}/connect`, {
    json: { timeout: 60, memory: false },
  });
  expect(status).toBeGreaterThanOrEqual(500);
  expect(world.host.machines.get(id)?.machine).toMatchObject({
    state: "hibernated",
    image: { memory: true },
  });
});
