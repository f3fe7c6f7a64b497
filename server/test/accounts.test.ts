import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { systemClock } from "@torpor/base";
import { expect, test } from "vitest";
import { admitBootstrapKey, openBootstrapKey } from "../src/auth/bootstrap-key.ts";
import { errorOf, type Reply, World } from "./world.ts";

/** A world in which the operator has made an account, and a key of its admin. */
async function withAccount(
  world: World,
  id: string,
  limits: object = {},
): Promise<{ operator: string; admin: string }> {
  const operator = await world.newKey(["operator"]);
  const made = await world.call("POST", "/v1/accounts", { key: operator, json: { id, limits } });
  expect(made).toMatchObject({
    status: 201,
    body: { id, usage: { sandboxes: 0, sandboxes_awake: 0, cpu: 0 } },
  });
  const key = await world.call("POST", "/v1/keys", {
    key: operator,
    json: { name: "first", account: id, scopes: ["admin"] },
  });
  expect(key).toMatchObject({ status: 201, body: { account: id, tenant: null } });
  return { operator, admin: String(key.body["key"]) };
}

const denied = (reply: Reply): void =>
  expect(reply).toMatchObject({ status: 403, body: { error: { code: "permission_denied" } } });

test("the operator makes an account and its first key; what it makes is another account's to nobody", async () => {
  await using world = await World.start();
  const { admin } = await withAccount(world, "acme");
  const theirs = await world.sandbox({ template: "base" }, admin);
  expect(theirs.tenant).toBe("acme");
  const mine = await world.sandbox();
  for (const [key, foreign] of [
    [admin, mine.id],
    [world.adminKey, theirs.id],
  ] as const) {
    expect((await world.call("GET", `/v1/sandboxes/${foreign}`, { key })).status).toBe(404);
    expect((await world.call("GET", "/v1/sandboxes", { key })).body["items"]).toHaveLength(1);
  }
});

test("an account's admin sees its own account, its limits and what it has, and changes nothing of it", async () => {
  await using world = await World.start();
  const { admin, operator } = await withAccount(world, "acme", { max_lifetime_seconds: 50 });
  const { id } = await world.sandbox({ template: "base", persistent: true, tenant: "t" }, admin);
  await world.sandbox({ template: "base" }, admin);
  await world.call("POST", `/v1/sandboxes/${id}/hibernate`, { key: admin });
  const expected = {
    status: 200,
    body: {
      id: "acme",
      limits: { max_lifetime_seconds: 50 },
      usage: { sandboxes: 2, sandboxes_awake: 1 },
    },
  };
  for (const path of ["/v1/account", "/v1/accounts/acme"])
    expect(await world.call("GET", path, { key: admin })).toMatchObject(expected);
  expect(await world.call("GET", "/v1/accounts/acme", { key: operator })).toMatchObject(expected);
  denied(
    await world.call("PATCH", "/v1/accounts/acme", {
      key: admin,
      json: { limits: { max_lifetime_seconds: null } },
    }),
  );
  denied(await world.call("GET", "/v1/accounts", { key: admin }));
  denied(await world.call("POST", "/v1/accounts", { key: admin, json: { id: "more" } }));
  const foreign = await world.call("GET", "/v1/accounts/default", { key: admin });
  const unknown = await world.call("GET", "/v1/accounts/nothere", { key: admin });
  expect([foreign.status, unknown.status]).toEqual([404, 404]);
  expect(errorOf(foreign).message.replace("default", "nothere")).toBe(errorOf(unknown).message);
  const bound = await world.call("POST", "/v1/keys", {
    key: admin,
    json: { name: "bound", tenant: "t", scopes: ["admin"] },
  });
  denied(await world.call("GET", "/v1/account", { key: String(bound.body["key"]) }));
  denied(await world.call("GET", "/v1/account", { key: await world.newKey(["sandbox:read"]) }));
});

test("the operator lists, gets and revokes the keys of any account, others those of their own alone", async () => {
  await using world = await World.start();
  const { admin, operator } = await withAccount(world, "acme");
  const made = await world.call("POST", "/v1/keys", { key: admin, json: { name: "theirs", tenant: "t" } });
  const theirs = String(made.body["id"]);
  const names = async (key: string, query: string): Promise<string[]> => {
    const { body } = await world.call("GET", `/v1/keys${query}`, { key });
    return (body["items"] as { name: string }[]).map(({ name }) => name);
  };
  expect((await names(operator, "?account=acme")).sort()).toEqual(["first", "theirs"]);
  expect(await names(operator, "")).not.toContain("theirs");
  expect((await names(admin, "?account=acme")).sort()).toEqual(["first", "theirs"]);
  expect((await world.call("GET", "/v1/keys?account=nothere", { key: operator })).status).toBe(404);
  expect((await world.call("GET", "/v1/keys?account=a%2Fb", { key: operator })).status).toBe(400);
  const bound = await world.newKey(["admin"], "t");
  for (const key of [admin, world.adminKey, bound])
    for (const account of ["acme", "default", "nothere"]) {
      const own = key === admin ? "acme" : "default";
      if (account !== own) denied(await world.call("GET", `/v1/keys?account=${account}`, { key }));
    }
  // A tenant's key that names its own account still gets its tenant's alone.
  expect(await names(bound, "?account=default")).toEqual(await names(bound, ""));

  for (const method of ["GET", "DELETE"])
    expect((await world.call(method, `/v1/keys/${theirs}`, { key: world.adminKey })).status).toBe(404);
  expect(await world.call("GET", `/v1/keys/${theirs}`, { key: operator })).toMatchObject({
    status: 200,
    body: { account: "acme", tenant: "t", revoked_at: null },
  });
  const revoked = await world.call("DELETE", `/v1/keys/${theirs}`, { key: operator });
  expect(revoked).toMatchObject({ status: 200, body: { revoked_at: expect.any(String) } });
  expect((await world.call("GET", "/v1/sandboxes", { key: String(made.body["key"]) })).status).toBe(401);
  expect((await world.call("GET", "/v1/sandboxes", { key: admin })).status).toBe(200);

  await world.restart(); // which writes what is still counted
  const { body } = await world.call("GET", "/v1/ledger?limit=200", { key: admin });
  const denials = (body["items"] as { action: string; reason: string; route: string }[])
    .filter(({ action }) => action === "deny")
    .map(({ reason, route }) => `${reason} ${route}`);
  // Those of another account's admin, who was told of nothing, and none of the operator's.
  expect(denials.filter((text) => text.includes("key_id")).sort()).toEqual([
    "foreign_id DELETE /v1/keys/{key_id}",
    "foreign_id GET /v1/keys/{key_id}",
  ]);
});

test("the operator's scope is handed on by its holder alone, and never to another account or one tenant", async () => {
  await using world = await World.start();
  const { admin, operator } = await withAccount(world, "acme");
  const make = async (key: string, json: object): Promise<Reply> =>
    await world.call("POST", "/v1/keys", { key, json: { name: "k", scopes: ["operator"], ...json } });
  denied(await make(admin, {}));
  denied(await make(world.adminKey, {}));
  denied(await make(admin, { account: "default", scopes: ["sandbox:read"] }));
  denied(await make(world.adminKey, { account: "acme", scopes: ["sandbox:read"] }));
  for (const json of [{ account: "acme" }, { tenant: "t" }])
    expect(await make(operator, json)).toMatchObject({
      status: 400,
      body: { error: { code: "invalid_request" } },
    });
  expect(await make(operator, { account: "nothere", scopes: ["admin"] })).toMatchObject({ status: 404 });
  const handed = await make(operator, {});
  expect(handed.status).toBe(201);
  const key = String(handed.body["key"]);
  expect((await world.call("GET", "/v1/accounts", { key })).status).toBe(200);
  expect((await world.call("GET", "/v1/sandboxes", { key })).status).toBe(200);
});

test("accounts are listed in pages, newest first; a name is taken once", async () => {
  await using world = await World.start();
  const { operator } = await withAccount(world, "a1");
  for (const id of ["a2", "a3"])
    expect((await world.call("POST", "/v1/accounts", { key: operator, json: { id } })).status).toBe(201);
  const again = await world.call("POST", "/v1/accounts", { key: operator, json: { id: "a2" } });
  expect(again).toMatchObject({ status: 409, body: { error: { code: "already_exists" } } });
  const seen: string[] = [];
  let cursor = "";
  do {
    const page = await world.call("GET", `/v1/accounts?limit=2${cursor}`, { key: operator });
    seen.push(...(page.body["items"] as { id: string }[]).map(({ id }) => id));
    cursor = page.body["next_cursor"] === null ? "" : `&cursor=${page.body["next_cursor"] as string}`;
  } while (cursor !== "");
  expect(seen.sort()).toEqual(["a1", "a2", "a3", "default"]);
  for (const json of [
    { id: "" },
    { id: "a/b" },
    { id: "x", limits: { max_lifetime_seconds: 0 } },
    { id: "x", limits: { nope: 1 } },
  ])
    expect((await world.call("POST", "/v1/accounts", { key: operator, json })).status).toBe(400);
});

test("no sandbox outlives what its account allows, or the server, whichever is less; other accounts are as before", async () => {
  await using world = await World.start({ maxLifetimeSeconds: 1_000 });
  const { admin, operator } = await withAccount(world, "acme", { max_lifetime_seconds: 100 });
  const lifeSeconds = async (key: string, id: string): Promise<number> => {
    const { body } = await world.call("GET", `/v1/sandboxes/${id}/lifecycle`, { key });
    const sandbox = await world.call("GET", `/v1/sandboxes/${id}`, { key });
    const { at } = (body["clocks"] as { max_lifetime: { at: string } }).max_lifetime;
    return (Date.parse(at) - Date.parse(String(sandbox.body["created_at"]))) / 1_000;
  };
  const stateful = { template: "base", persistent: true, tenant: "t" };
  const theirs = await world.sandbox(stateful, admin);
  const mine = await world.sandbox(stateful);
  expect(await lifeSeconds(admin, theirs.id)).toBe(100);
  expect(await lifeSeconds(world.adminKey, mine.id)).toBe(1_000);
  const tooLong = await world.call("POST", "/v1/sandboxes", {
    key: admin,
    json: { template: "base", ttl_seconds: 101 },
  });
  expect(tooLong.status).toBe(400);
  expect(errorOf(tooLong).message).toContain("account acme");
  const extended = await world.call("PATCH", `/v1/sandboxes/${theirs.id}/lifecycle`, {
    key: admin,
    json: { ttl_seconds: 101 },
  });
  expect(extended.status).toBe(400);

  const freed = await world.call("PATCH", "/v1/accounts/acme", {
    key: operator,
    json: { limits: { max_lifetime_seconds: null } },
  });
  expect(freed.body).toMatchObject({ limits: { max_lifetime_seconds: null } });
  const later = await world.sandbox(stateful, admin);
  expect(await lifeSeconds(admin, later.id)).toBe(1_000);
  expect(await lifeSeconds(admin, theirs.id)).toBe(100); // what was there is left alone
  expect(
    (await world.call("PATCH", "/v1/accounts/nothere", { key: operator, json: { limits: {} } })).status,
  ).toBe(404);
});

test("the key in the server's file is the operator's, also one that was made before there were operators", async () => {
  await using world = await World.start();
  const directory = mkdtempSync(join(tmpdir(), "torpor-key-"));
  try {
    const file = join(directory, "api-key");
    const { keyStore } = world.server;
    const start = async (): Promise<boolean> => {
      const { key, isNew } = openBootstrapKey(file, undefined);
      await admitBootstrapKey(keyStore, key, systemClock);
      return isNew;
    };
    expect(await start()).toBe(true);
    const isOperator = async (): Promise<boolean> =>
      (await world.call("GET", "/v1/accounts", { key: readFileSync(file, "utf8").trim() })).status === 200;
    expect(await isOperator()).toBe(true);
    writeFileSync(file, `${world.adminKey}\n`);
    expect(await isOperator()).toBe(false);
    expect(await start()).toBe(false);
    expect(await isOperator()).toBe(true);
    const bound = await world.newKey(["admin"], "acme");
    writeFileSync(file, `${bound}\n`);
    await start();
    expect(await isOperator()).toBe(false); // one tenant's key is never made more of
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
});

test("a list of accounts goes on behind any name an account may have", async () => {
  await using world = await World.start();
  const operator = await world.newKey(["operator"]);
  const names = ["a.b@c.example:1", "x".repeat(128), "z"];
  for (const id of names)
    expect((await world.call("POST", "/v1/accounts", { key: operator, json: { id } })).status).toBe(201);
  const seen: unknown[] = [];
  for (let cursor: string | null = ""; cursor !== null;) {
    const query = cursor === "" ? "" : `&cursor=${cursor}`;
    const page = await world.call("GET", `/v1/accounts?limit=1${query}`, { key: operator });
    expect(page.status).toBe(200);
    seen.push(...(page.body["items"] as { id: string }[]).map(({ id }) => id));
    cursor = page.body["next_cursor"] as string | null;
  }
  expect(seen).toEqual(expect.arrayContaining(names));
});
