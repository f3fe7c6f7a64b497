import { afterAll, beforeAll, expect, test } from "vitest";
import { errorOf, type Reply, World, eventually } from "./world.ts";

let world: World;
beforeAll(async () => {
  world = await World.start();
});
afterAll(async () => {
  await world[Symbol.asyncDispose]();
});

test("without a key, with a malformed one and with an unknown one the answer is 401", async () => {
  for (const options of [
    { key: null },
    { key: "x" },
    { key: `tp_${"a".repeat(40)}` },
    { key: null, headers: { authorization: "Basic eDp5" } },
  ]) {
    const reply = await world.call("GET", "/v1/sandboxes", options);
    expect(reply).toMatchObject({ status: 401, body: { error: { code: "unauthenticated" } } });
    expect(reply.headers.get("www-authenticate")).toContain("Bearer");
  }
});

test("X-API-Key is as good as a bearer token", async () => {
  expect(
    (await world.call("GET", "/v1/sandboxes", { key: null, headers: { "x-api-key": world.adminKey } }))
      .status,
  ).toBe(200);
});

test("each scope opens its own routes, those of what it holds, and no others", async () => {
  const opens = (scope: string, needed: string): boolean =>
    scope === needed ||
    scope === "admin" ||
    (needed === "sandbox:read" && (scope === "sandbox:write" || scope === "sandbox:exec"));
  const sandbox = await world.sandbox();
  const routes: [string, string, string, unknown?][] = [
    ["sandbox:read", "GET", "/v1/sandboxes"],
    ["sandbox:read", "GET", `/v1/sandboxes/${sandbox.id}`],
    ["sandbox:read", "GET", `/v1/sandboxes/${sandbox.id}/fs/dir?path=/`],
    ["sandbox:read", "GET", `/v1/sandboxes/${sandbox.id}/processes`],
    ["sandbox:read", "GET", `/v1/sandboxes/${sandbox.id}/logs`],
    ["sandbox:read", "GET", "/v1/templates"],
    ["sandbox:read", "GET", "/metrics"],
    ["sandbox:write", "POST", "/v1/sandboxes", { template: "base" }],
    ["sandbox:write", "PATCH", `/v1/sandboxes/${sandbox.id}/lifecycle`, { ttl_seconds: 60 }],
    ["sandbox:write", "POST", `/v1/sandboxes/${sandbox.id}/fs/dir?path=/d`, {}],
    ["sandbox:exec", "POST", `/v1/sandboxes/${sandbox.id}/exec`, { cmd: "true" }],
    ["template:write", "POST", "/v1/templates/base/build"],
    ["admin", "GET", "/v1/keys"],
  ];
  for (const scope of ["sandbox:read", "sandbox:write", "sandbox:exec", "template:write", "admin"] as const) {
    const key = await world.newKey([scope]);
    for (const [needed, method, path, json] of routes) {
      const reply = await world.call(method, path, { key, ...(json === undefined ? {} : { json }) });
      if (opens(scope, needed)) expect(reply.status, `${scope} on ${method} ${path}`).toBeLessThan(300);
      else
        expect(reply, `${scope} on ${method} ${path}`).toMatchObject({
          status: 403,
          body: { error: { code: "permission_denied", details: { needed } } },
        });
    }
  }
});

test("an unknown id and another tenant's id get the very same answer on every path", async () => {
  const mine = await world.newKey(["sandbox:read", "sandbox:write", "sandbox:exec"], "acme");
  const sandbox = await world.sandbox({ template: "base", tenant: "globex" });
  const unknown = `s${"a".repeat(25)}`;
  const paths: [string, string, unknown?][] = [
    ["GET", ""],
    ["DELETE", ""],
    ["GET", "/lifecycle"],
    ["PATCH", "/lifecycle", { ttl_seconds: 60 }],
    ["POST", "/exec", { cmd: "true" }],
    ["GET", "/processes"],
    ["GET", "/processes/1/output"],
    ["POST", "/processes/1/signal", { signal: "SIGTERM" }],
    ["POST", "/processes/1/stdin"],
    ["GET", "/fs?path=/x"],
    ["PUT", "/fs?path=/x"],
    ["DELETE", "/fs?path=/x"],
    ["GET", "/fs/dir?path=/"],
    ["POST", "/fs/dir?path=/x"],
    ["GET", "/fs/stat?path=/"],
    ["POST", "/fs/move", { source: "/a", destination: "/b" }],
    ["GET", "/fs/watch?path=/"],
    ["GET", "/fs/archive?path=/"],
    ["PUT", "/fs/archive?path=/"],
    ["GET", "/logs"],
  ];
  const before = world.host.requests.length;
  for (const [method, path, json] of paths) {
    const ask = async (id: string): Promise<unknown> => {
      const reply: Reply = await world.call(method, `/v1/sandboxes/${id}${path}`, {
        key: mine,
        ...(json === undefined ? {} : { json }),
      });
      expect(reply.status, `${method} ${path}`).toBe(404);
      return { ...errorOf(reply), request_id: "", message: errorOf(reply).message.replaceAll(id, "ID") };
    };
    expect(await ask(sandbox.id)).toEqual(await ask(unknown));
  }
  expect(world.host.requests.slice(before).filter((line) => line.includes(sandbox.id))).toEqual([]);
  const list = await world.call("GET", "/v1/sandboxes?state=all&tenant=globex", { key: mine });
  expect(list.body).toEqual({ items: [], next_cursor: null });
});

test("a tenant-bound key forces its own tenant, and another one named is refused", async () => {
  const key = await world.newKey(["sandbox:read", "sandbox:write"], "acme");
  expect((await world.sandbox({ template: "base" }, key)).tenant).toBe("acme");
  for (const json of [{ tenant: "globex" }, { metadata: { tenant_id: "globex" } }]) {
    expect(
      await world.call("POST", "/v1/sandboxes", { key, json: { template: "base", ...json } }),
    ).toMatchObject({ status: 403, body: { error: { code: "permission_denied" } } });
  }
  expect((await world.sandbox({ template: "base", metadata: { tenant_id: "initech" } })).tenant).toBe(
    "initech",
  );
  expect((await world.call("GET", "/metrics", { key })).status).toBe(403);
});

test.each(["sandbox:exec", "sandbox:write"] as const)(
  "one tenant's key with %s alone sees the sandboxes it works on, and nobody else's",
  async (scope) => {
    const key = await world.newKey([scope], "acme");
    const mine = await world.sandbox({ template: "base", tenant: "acme" });
    const other = await world.sandbox({ template: "base", tenant: "globex" });
    const seen = async (id: string): Promise<number> =>
      (await world.call("GET", `/v1/sandboxes/${id}`, { key })).status;
    expect([await seen(mine.id), await seen(other.id)]).toEqual([200, 404]);
    const { items } = (await world.call("GET", "/v1/sandboxes", { key })).body as {
      items: { tenant: string }[];
    };
    expect(new Set(items.map(({ tenant }) => tenant))).toEqual(new Set(["acme"]));
  },
);

test("a key is shown once, found by its prefix, and stops at once when it is revoked", async () => {
  const made = await world.call("POST", "/v1/keys", {
    json: { name: "ci", scopes: ["sandbox:read"], tenant: "acme" },
  });
  expect(made.status).toBe(201);
  const { id, key, prefix } = made.body as { id: string; key: string; prefix: string };
  expect(key).toMatch(/^tp_[A-Za-z0-9]{40}$/);
  expect(key.startsWith(prefix)).toBe(true);
  expect((await world.call("GET", "/v1/sandboxes", { key })).status).toBe(200);
  await eventually(async () => {
    const { items } = (await world.call("GET", "/v1/keys")).body as {
      items: { id: string; last_used_at: string | null }[];
    };
    return items.find((item) => item.id === id)?.last_used_at !== null;
  });
  expect((await world.call("GET", "/v1/keys")).text).not.toContain(key);
  const revoked = await world.call("DELETE", `/v1/keys/${id}`);
  expect(revoked.body).toMatchObject({ id, revoked_at: expect.any(String) });
  expect((await world.call("DELETE", `/v1/keys/${id}`)).body).toEqual({
    ...revoked.body,
    last_used_at: expect.any(String),
  });
  expect(await world.call("GET", "/v1/sandboxes", { key })).toMatchObject({ status: 401 });
  expect((await world.call("DELETE", "/v1/keys/key_nothing")).status).toBe(404);
});

test("a key that has expired is refused", async () => {
  const key = await world.newKey(["admin"], null, Date.now() - 1);
  const reply = await world.call("GET", "/v1/sandboxes", { key });
  expect(reply.status).toBe(401);
  expect(errorOf(reply).message).toContain("expired");
});

test("a tenant-bound admin key makes, sees and revokes keys of its tenant alone", async () => {
  const key = await world.newKey(["admin"], "acme");
  const other = await world.call("POST", "/v1/keys", { json: { name: "globex", tenant: "globex" } });
  expect((await world.call("POST", "/v1/keys", { key, json: { name: "x" } })).body).toMatchObject({
    tenant: "acme",
  });
  expect((await world.call("POST", "/v1/keys", { key, json: { name: "x", tenant: "globex" } })).status).toBe(
    403,
  );
  expect((await world.call("DELETE", `/v1/keys/${String(other.body["id"])}`, { key })).status).toBe(404);
  const { items } = (await world.call("GET", "/v1/keys", { key })).body as { items: { tenant: string }[] };
  expect(new Set(items.map(({ tenant }) => tenant))).toEqual(new Set(["acme"]));
});

test("health, the reference and its page need no key", async () => {
  expect(await world.call("GET", "/healthz", { key: null })).toMatchObject({
    status: 200,
    body: { status: "ok", host: { ok: true, id: "host-1" } },
  });
  expect((await world.call("GET", "/v1/openapi.json", { key: null })).body).toMatchObject({
    openapi: "3.1.0",
  });
  const page = await world.call("GET", "/docs", { key: null });
  expect(page.text).toContain("/v1/sandboxes/{id}/exec");
  expect(page.text).toContain("| NetworkRules</td>"); // what may be sent, with a table of its own
  expect(page.text).toContain("| {egress, allow, deny}</td>"); // what is shown
  expect(page.text).not.toMatch(/(src|href)="(https?:)?\/\//);
});
