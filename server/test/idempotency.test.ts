import { createHash } from "node:crypto";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { systemClock } from "@torpor/base";
import { CodedError } from "@torpor/protocol";
import type { TenantScope } from "../src/auth/tenant-scope.ts";
import { KeyedExecs } from "../src/guest/keyed-execs.ts";
import { BodyHashes } from "../src/http/body-hashes.ts";
import { idempotencySlot } from "../src/store/idempotency-store.ts";
import { openDatabase } from "../src/store/open-database.ts";
import { eventually, World } from "./world.ts";

let world: World;
beforeEach(async () => {
  world = await World.start();
});
afterEach(async () => {
  await world[Symbol.asyncDispose]();
});

const key = (name: string): { headers: Record<string, string> } => ({ headers: { "idempotency-key": name } });

test("the same key and body give the same stored answer and make one sandbox", async () => {
  const first = await world.call("POST", "/v1/sandboxes", { json: { template: "base" }, ...key("a") });
  const second = await world.call("POST", "/v1/sandboxes", { json: { template: "base" }, ...key("a") });
  expect(first.status).toBe(201);
  expect(first.headers.get("idempotency-replayed")).toBeNull();
  expect(second).toMatchObject({ status: 201, text: first.text });
  expect(second.headers.get("idempotency-replayed")).toBe("true");
  expect(world.host.liveMachines()).toHaveLength(1);
});

test("what is kept of a body gives no clue to the secrets in it", async () => {
  const json = { template: "base", secrets: { PIN: "1234" } };
  const body = Buffer.from(JSON.stringify(json));
  expect((await world.call("POST", "/v1/sandboxes", { json, ...key("a") })).status).toBe(201);
  const { db } = world.server.database;
  const { body_hash: kept } = await db
    .selectFrom("idempotency")
    .select("body_hash")
    .executeTakeFirstOrThrow();
  expect(kept).toMatch(/^[0-9a-f]{64}$/);
  expect(kept).not.toBe(createHash("sha256").update(body).digest("hex"));
});

test("the same key with another body is 409 idempotency_mismatch", async () => {
  await world.call("POST", "/v1/sandboxes", { json: { template: "base" }, ...key("a") });
  expect(
    await world.call("POST", "/v1/sandboxes", { json: { template: "base", cpu: 2 }, ...key("a") }),
  ).toMatchObject({ status: 409, body: { error: { code: "idempotency_mismatch" } } });
});

test("many at once with one key wait for the first and get its answer", async () => {
  world.host.fault({ on: /^PUT/, kind: "delay", delayMs: 200 });
  const replies = await Promise.all(
    Array.from({ length: 10 }, () =>
      world.call("POST", "/v1/sandboxes", { json: { template: "base" }, ...key("a") }),
    ),
  );
  expect(new Set(replies.map(({ status, text }) => `${status} ${text}`)).size).toBe(1);
  expect(replies.filter(({ headers }) => headers.get("idempotency-replayed") === null)).toHaveLength(1);
  expect(world.host.liveMachines()).toHaveLength(1);
});

test("answers survive a restart of the server", async () => {
  const first = await world.call("POST", "/v1/sandboxes", { json: { template: "base" }, ...key("a") });
  await world.restart();
  expect((await world.call("POST", "/v1/sandboxes", { json: { template: "base" }, ...key("a") })).text).toBe(
    first.text,
  );
});

test("a failure that may pass frees the key, a refusal is kept", async () => {
  world.host.fault({ on: /^PUT/, kind: "error", error: new CodedError("capacity_exhausted", "full") });
  expect(
    (await world.call("POST", "/v1/sandboxes", { json: { template: "base" }, ...key("a") })).status,
  ).toBe(429);
  expect(
    (await world.call("POST", "/v1/sandboxes", { json: { template: "base" }, ...key("a") })).status,
  ).toBe(201);
  expect(
    (await world.call("POST", "/v1/sandboxes", { json: { template: "later" }, ...key("b") })).status,
  ).toBe(404);
  world.host.templates.push({
    name: "later",
    hash: "h",
    description: "",
    size_bytes: 1,
    built_at: "",
    golden: [],
  });
  expect(
    await world.call("POST", "/v1/sandboxes", { json: { template: "later" }, ...key("b") }),
  ).toMatchObject({ status: 404, body: { error: { code: "template_not_found" } } });
});

test("keys of different tenants and routes do not meet", async () => {
  const acme = await world.newKey(["sandbox:write"], "acme");
  const globex = await world.newKey(["sandbox:write"], "globex");
  const one = await world.call("POST", "/v1/sandboxes", {
    key: acme,
    json: { template: "base" },
    ...key("same"),
  });
  const two = await world.call("POST", "/v1/sandboxes", {
    key: globex,
    json: { template: "base" },
    ...key("same"),
  });
  expect(one.body["id"]).not.toBe(two.body["id"]);
  expect((await world.exec(String(one.body["id"]), { cmd: "echo 1" }, key("same"))).status).toBe(200);
});

test("a keyed exec runs once however it is repeated: buffered, streamed, at once or after a restart", async () => {
  const { id } = await world.sandbox();
  const command = { cmd: "echo once; sleep 0.2" };
  const replies = await Promise.all(Array.from({ length: 5 }, () => world.exec(id, command, key("e"))));
  expect(new Set(replies.map(({ text }) => text)).size).toBe(1);
  expect(replies[0]?.body).toMatchObject({ stdout: "once\n", outcome: "exited" });
  await world.restart();
  expect((await world.exec(id, command, key("e"))).text).toBe(replies[0]?.text);
  expect(world.guest(id).starts).toEqual([command.cmd]);

  const streamed = { cmd: "echo streamed; sleep 0.2" };
  const ask = async (): Promise<string> =>
    (await world.exec(id, streamed, { headers: { accept: "application/x-ndjson", "idempotency-key": "s" } }))
      .text;
  const [first, second] = await Promise.all([ask(), ask()]);
  expect(second).toBe(first);
  await world.restart();
  expect(await ask()).toBe(first);
  expect(world.guest(id).starts).toEqual([command.cmd, streamed.cmd]);
});

test("a keyed exec writes nothing to the store, and refuses another body", async () => {
  const { id } = await world.sandbox();
  const rows = async (): Promise<number> => {
    const database = await openDatabase({ kind: "sqlite", path: join(world.directory, "server.sqlite") });
    try {
      return (await database.db.selectFrom("idempotency").selectAll().execute()).length;
    } finally {
      await database.close();
    }
  };
  const before = await rows();
  expect((await world.exec(id, { cmd: "echo 1" }, key("e"))).status).toBe(200);
  const again = await world.exec(id, { cmd: "echo 1" }, key("e"));
  expect(again.headers.get("idempotency-replayed")).toBe("true");
  expect(await world.exec(id, { cmd: "echo 2" }, key("e"))).toMatchObject({
    status: 409,
    body: { error: { code: "idempotency_mismatch" } },
  });
  expect(await rows()).toBe(before);
  expect(world.guest(id).starts).toEqual(["echo 1"]);
});

test("a keyed exec that could not start may be sent again", async () => {
  const { id } = await world.sandbox();
  world.host.fault({
    on: /Start$/,
    kind: "error",
    times: 6,
    error: new CodedError("guest_unavailable", "busy"),
  });
  expect((await world.exec(id, { cmd: "echo 1" }, key("e"))).status).toBe(503);
  expect((await world.exec(id, { cmd: "echo 1" }, key("e"))).body).toMatchObject({ stdout: "1\n" });
});

test("a keyed exec whose client left is not run again: the repeat tells how it ended", async () => {
  const { id } = await world.sandbox();
  const leave = new AbortController();
  const command = { cmd: "echo begun; sleep 60" };
  const lost = world.exec(id, command, { ...key("e"), signal: leave.signal });
  await eventually(() => [...world.guest(id).running.values()].some(({ events }) => events.length > 1));
  leave.abort();
  await expect(lost).rejects.toThrow();
  const again = await world.exec(id, command, key("e"));
  expect(again).toMatchObject({
    status: 200,
    body: { outcome: "signalled", signal: "SIGKILL", stdout: "begun\n" },
  });
  expect(world.guest(id).starts).toEqual([command.cmd]);
});

test("a keyed exec that broke off when the server died goes on from where it was", async () => {
  const { id } = await world.sandbox();
  const command = { cmd: "echo begun; sleep 0.5; echo finished", background: false };
  const lost = world.exec(id, command, key("e")).catch(() => undefined);
  await eventually(() => world.guest(id).running.size > 0);
  const first = world.server;
  await world.startSecond();
  const again = await world.exec(id, command, key("e"));
  expect(again).toMatchObject({ status: 200, body: { stdout: "begun\nfinished\n", outcome: "exited" } });
  expect(world.guest(id).starts).toEqual([command.cmd]);
  await lost;
  expect(first.url).not.toBe(world.url);
});

test("an answer too large to keep is fetched from the sandbox again, or refused, and the command not repeated", async () => {
  const { id } = await world.sandbox();
  const command = { cmd: "head -c 2000000 /dev/zero | tr '\\0' x" };
  const first = await world.exec(id, command, key("big"));
  const second = await world.exec(id, command, key("big"));
  expect(second.body["stdout"]).toBe(first.body["stdout"]);
  world.guest(id).running.clear();
  expect(await world.exec(id, command, key("big"))).toMatchObject({
    status: 409,
    body: { error: { code: "conflict" } },
  });
  expect(world.guest(id).starts).toEqual([command.cmd]);
});

test("a repeat of making an API key is refused, for the key is kept nowhere", async () => {
  expect((await world.call("POST", "/v1/keys", { json: { name: "x" }, ...key("k") })).status).toBe(201);
  expect(await world.call("POST", "/v1/keys", { json: { name: "x" }, ...key("k") })).toMatchObject({
    status: 409,
    body: { error: { code: "conflict" } },
  });
  expect(
    ((await world.call("GET", "/v1/keys")).body["items"] as { name: string }[]).filter(
      ({ name }) => name === "x",
    ),
  ).toHaveLength(1);
});

test("moves and signals happen once per key too", async () => {
  const { id } = await world.sandbox();
  await world.call("PUT", `/v1/sandboxes/${id}/fs?path=/a`, { body: "1" });
  const move = (): Promise<unknown> =>
    world.call("POST", `/v1/sandboxes/${id}/fs/move`, {
      json: { source: "/a", destination: "/b" },
      ...key("m"),
    });
  expect(await move()).toMatchObject({ status: 200, body: { path: "/b" } });
  expect(await move()).toMatchObject({ status: 200, body: { path: "/b" } });
});

test("a malformed key is refused", async () => {
  for (const bad of ["", "a b", "x".repeat(256)])
    expect((await world.call("POST", "/v1/sandboxes", { json: {}, ...key(bad) })).status).toBe(400);
});

test("the id of a keyed command depends on no secret: a server with another finds the command that runs", async () => {
  const slot = idempotencySlot({ account: "a", tenant: null } as TenantScope, "POST /x", "e");
  const nothing = { start: () => noEvents(), attach: () => noEvents() };
  const ids = await Promise.all(
    ["one", "two"].map(async (secret) => {
      const execs = new KeyedExecs(systemClock, new BodyHashes(Buffer.from(secret)));
      return (await execs.open(slot, Buffer.from("body"), new AbortController().signal, nothing)).execId;
    }),
  );
  expect(ids[0]).toBe(ids[1]);
});

async function* noEvents(): AsyncGenerator<never> {}
