import { expect, it } from "vitest";
import { ConnectionError, NotFoundError } from "@torpor/sdk";
import { FakeServer, ndjson, sendError, sendJson } from "./fake-server.ts";

const template = {
  name: "base",
  hash: "abc",
  description: "Debian",
  size_bytes: 10,
  built_at: "2026-11-29T16:00:00Z",
  golden: ["gvisor"],
};

it("lists, gives and removes templates", async () => {
  await using server = await FakeServer.start();
  server
    .on("GET", "/v1/templates", ({ response }) => sendJson(response, 200, { templates: [template] }))
    .on("GET", "/v1/templates/base", ({ response }) => sendJson(response, 200, template))
    .on("DELETE", "/v1/templates/base", ({ response }) => response.writeHead(204).end())
    .on("DELETE", "/v1/templates/none", ({ response }) =>
      sendError(response, 404, "template_not_found", "none"),
    );
  const { templates } = server.client();
  const [first] = await templates.list();
  expect(first).toEqual(await templates.get("base"));
  expect(first).toMatchObject({
    sizeBytes: 10,
    builtAt: new Date("2026-11-29T16:00:00Z"),
    golden: ["gvisor"],
  });
  expect([await templates.remove("base"), await templates.remove("none")]).toEqual([true, false]);
});

it("builds a template, telling how far it is", async () => {
  await using server = await FakeServer.start();
  server.on("POST", "/v1/templates/base/build", ({ response }) => {
    const send = ndjson(response);
    send({ type: "progress", stage: "packages", label: "Installing", fraction: 0.5 });
    send({ type: "done", template, cached: false });
    response.end();
  });
  const seen: unknown[] = [];
  const build = await server
    .client()
    .templates.build("base", { onProgress: ({ stage, fraction }) => seen.push([stage, fraction]) });
  expect(build).toMatchObject({ cached: false, template: { name: "base" } });
  expect(seen).toEqual([["packages", 0.5]]);
});

it.each([
  [
    "says so",
    [{ type: "error", code: "template_not_found", message: "no such recipe" }],
    { code: "template_not_found" },
  ],
  [
    "stops in the middle",
    [{ type: "progress", stage: "s", label: "l", fraction: 0 }],
    { code: "connection_lost" },
  ],
])("throws when a build %s", async (_what, lines, expected) => {
  await using server = await FakeServer.start();
  server.on("POST", "/v1/templates/base/build", ({ response }) => {
    const send = ndjson(response);
    for (const line of lines) send(line);
    response.end();
  });
  const error = await server
    .client()
    .templates.build("base")
    .catch((caught: unknown) => caught);
  expect(error).toMatchObject(expected);
  expect(error).toBeInstanceOf(expected.code === "connection_lost" ? ConnectionError : NotFoundError);
});

it("makes, shows, lists and revokes keys", async () => {
  const key = {
    id: "k1",
    name: "ci",
    prefix: "tp_abcd",
    account: "default",
    tenant: "acme",
    scopes: ["sandbox:read"],
    created_at: "2026-11-29T16:00:00Z",
    expires_at: null,
    last_used_at: null,
    revoked_at: null,
  };
  await using server = await FakeServer.start();
  let body: unknown;
  const listed: unknown[] = [];
  server
    .on("POST", "/v1/keys", async (call) => {
      body = await call.json();
      sendJson(call.response, 201, { ...key, key: "tp_secret" });
    })
    .on("GET", "/v1/keys", ({ request, response }) => {
      listed.push(request.url);
      sendJson(response, 200, { items: [key], next_cursor: null });
    })
    .on("GET", "/v1/keys/k1", ({ response }) => sendJson(response, 200, key))
    .on("GET", "/v1/keys/k2", ({ response }) => sendError(response, 404, "not_found", "no such key"))
    .on("DELETE", "/v1/keys/k1", ({ response }) => sendJson(response, 200, key))
    .on("DELETE", "/v1/keys/k2", ({ response }) => sendError(response, 404, "not_found", "no such key"));
  const { keys } = server.client();
  const made = await keys.create({
    name: "ci",
    tenant: "acme",
    scopes: ["sandbox:read"],
    expiresInSeconds: 60,
  });
  expect(body).toEqual({ name: "ci", tenant: "acme", scopes: ["sandbox:read"], expires_in_seconds: 60 });
  expect(made).toMatchObject({ key: "tp_secret", prefix: "tp_abcd", expiresAt: null });
  expect(await keys.list()).toEqual([
    expect.objectContaining({ id: "k1", createdAt: new Date("2026-11-29T16:00:00Z") }),
  ]);
  await keys.list({ account: "acme" });
  expect(listed).toEqual(["/v1/keys", "/v1/keys?account=acme"]);
  expect(await keys.get("k1")).toMatchObject({ id: "k1", tenant: "acme", prefix: "tp_abcd" });
  await expect(keys.get("k2")).rejects.toBeInstanceOf(NotFoundError);
  expect([await keys.revoke("k1"), await keys.revoke("k2")]).toEqual([true, false]);
});

const quota = <Value>(value: Value) => ({
  sandboxes: value,
  sandboxes_awake: value,
  cpu: value,
  memory_mb: value,
  disk_mb: value,
  image_bytes: value,
  creates_per_minute: value,
});
const shownQuota = <Value>(value: Value) => ({
  sandboxes: value,
  sandboxesAwake: value,
  cpu: value,
  memoryMb: value,
  diskMb: value,
  imageBytes: value,
  createsPerMinute: value,
});

it("makes, shows, lists and limits accounts, and makes keys in them", async () => {
  const wire = {
    id: "acme",
    created_at: "2026-11-29T16:00:00Z",
    limits: { max_lifetime_seconds: 60, ...quota(null), sandboxes_awake: 9 },
    tenant_limits: quota(2),
    usage: quota(3),
  };
  await using server = await FakeServer.start();
  const bodies: unknown[] = [];
  server
    .on("POST", "/v1/accounts", async (call) => {
      bodies.push(await call.json());
      sendJson(call.response, 201, wire);
    })
    .on("PATCH", "/v1/accounts/acme", async (call) => {
      bodies.push(await call.json());
      sendJson(call.response, 200, wire);
    })
    .on("GET", "/v1/tenants/t1", ({ response }) =>
      sendJson(response, 200, { tenant: "t1", limits: quota(2), usage: quota(1) }),
    )
    .on("GET", "/v1/account", ({ response }) => sendJson(response, 200, wire))
    .on("GET", "/v1/accounts/acme", ({ response }) => sendJson(response, 200, wire))
    .on("GET", "/v1/accounts", ({ response }) =>
      sendJson(response, 200, { items: [wire], next_cursor: null }),
    );
  const { accounts } = server.client();
  const made = await accounts.create({ id: "acme", limits: { maxLifetimeSeconds: 60 } });
  expect(made).toEqual({
    id: "acme",
    createdAt: new Date("2026-11-29T16:00:00Z"),
    limits: { maxLifetimeSeconds: 60, ...shownQuota(null), sandboxesAwake: 9 },
    tenantLimits: shownQuota(2),
    usage: shownQuota(3),
  });
  expect(
    await accounts.setLimits("acme", { maxLifetimeSeconds: null }, { tenantLimits: { memoryMb: 4 } }),
  ).toEqual(made);
  expect(bodies).toEqual([
    { id: "acme", limits: { max_lifetime_seconds: 60 }, tenant_limits: {} },
    { limits: { max_lifetime_seconds: null }, tenant_limits: { memory_mb: 4 } },
  ]);
  expect([await accounts.own(), await accounts.get("acme"), ...(await accounts.list().toArray())]).toEqual([
    made,
    made,
    made,
  ]);
  expect(await accounts.tenant("t1")).toEqual({
    tenant: "t1",
    limits: shownQuota(2),
    usage: shownQuota(1),
  });
});
