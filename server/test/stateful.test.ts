import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { CodedError, type Sandbox } from "@torpor/protocol";
import { openDatabase } from "../src/store/open-database.ts";
import { errorOf, eventually, type Reply, World } from "./world.ts";

let world: World;
beforeEach(async () => {
  world = await World.start();
});
afterEach(async () => {
  await world[Symbol.asyncDispose]();
});

const persistent = (more: object = {}): Promise<Sandbox> =>
  world.sandbox({ template: "base", persistent: true, tenant: "acme", ...more });
const shown = async (id: string): Promise<Sandbox> =>
  (await world.call("GET", `/v1/sandboxes/${id}`)).body as unknown as Sandbox;
const post = (id: string, verb: string, json?: unknown): Promise<Reply> =>
  world.call("POST", `/v1/sandboxes/${id}/${verb}`, json === undefined ? {} : { json });

describe("a persistent sandbox", () => {
  test("needs a tenant, from any of the three places", async () => {
    const none = await world.call("POST", "/v1/sandboxes", { json: { persistent: true } });
    expect(none.status).toBe(400);
    expect(errorOf(none).details).toMatchObject({ issues: [{ path: "tenant" }] });
    const json = { template: "base", persistent: true };
    const meta = await world.sandbox({ ...json, metadata: { tenant_id: "m" } });
    expect(meta).toMatchObject({ tenant: "m", persistent: true });
    const key = await world.newKey(["sandbox:write"], "bound");
    expect(await world.sandbox(json, key)).toMatchObject({ tenant: "bound" });
    expect(world.host.liveMachines()).toHaveLength(2);
  });

  test("has no TTL and sleeps when idle, and an ephemeral one the other way round", async () => {
    const kept = await persistent();
    expect(kept).toMatchObject({
      persistent: true,
      expires_at: null,
      idle_timeout_seconds: 300,
      on_idle: "hibernate",
      on_expire: "destroy",
      retention_seconds: null,
      auto_wake: true,
      image: null,
    });
    expect(Date.parse(kept.idle_at ?? "") - Date.parse(kept.last_activity_at)).toBe(300_000);
    expect(world.host.machines.get(kept.id)?.spec).toMatchObject({
      deadline_unix_ms: null,
      idle_timeout_seconds: 300,
    });
    const brief = await world.sandbox();
    expect(brief).toMatchObject({ persistent: false, idle_timeout_seconds: null, idle_at: null });
    expect(brief.expires_at).not.toBeNull();
    const endless = await world.call("POST", "/v1/sandboxes", { json: { ttl_seconds: null } });
    expect(errorOf(endless).details).toMatchObject({ issues: [{ path: "ttl_seconds" }] });
  });
});

describe("sleep and wake", () => {
  test("keep the id and count the generation; again is fine", async () => {
    const { id } = await persistent();
    for (let turn = 0; turn < 2; turn += 1) {
      expect(await post(id, "hibernate")).toMatchObject({
        status: 200,
        body: { state: "hibernated", generation: 1, image: { size_bytes: 4096 }, idle_at: null },
      });
    }
    for (let turn = 0; turn < 2; turn += 1) {
      expect(await post(id, "wake")).toMatchObject({
        status: 200,
        body: { id, state: "running", generation: 2, image: null, attestation: { generation: 2 } },
      });
    }
    expect((await post(id, "pause")).body).toMatchObject({ state: "paused" });
    expect((await post(id, "resume")).body).toMatchObject({ state: "running", generation: 2 });
  });

  test("work wakes it, many at once share it, and the record says so afterwards", async () => {
    const { id } = await persistent();
    await post(id, "hibernate");
    const replies = await Promise.all(
      Array.from({ length: 50 }, (_, index) => world.exec(id, { cmd: `echo ${index}` })),
    );
    expect(replies.map(({ status }) => status)).toEqual(Array.from({ length: 50 }, () => 200));
    expect(await shown(id)).toMatchObject({ state: "running", generation: 2 });
    await post(id, "hibernate");
    const put = await world.call("PUT", `/v1/sandboxes/${id}/fs?path=/a`, { body: "1" });
    expect(put.status).toBeLessThan(300);
    expect(await shown(id)).toMatchObject({ state: "running", generation: 3 });
  });

  test("reads never wake it", async () => {
    const { id } = await persistent();
    await post(id, "hibernate");
    await shown(id);
    await world.call("GET", "/v1/sandboxes?state=hibernated");
    const lifecycle = await world.call("GET", `/v1/sandboxes/${id}/lifecycle`);
    expect(lifecycle).toMatchObject({
      status: 200,
      body: { state: "hibernated", clocks: { idle: { seconds: 300, at: null } }, holds: [] },
    });
    expect(world.host.machines.get(id)?.machine.state).toBe("hibernated");
  });

  test("with auto_wake off work is refused until it is woken", async () => {
    const { id } = await persistent({ auto_wake: false });
    await post(id, "hibernate");
    const refused = await world.exec(id, { cmd: "true" });
    expect(refused).toMatchObject({ status: 409, body: { error: { code: "wrong_state" } } });
    expect(errorOf(refused).message).toContain("/wake");
    await post(id, "wake");
    expect((await world.exec(id, { cmd: "true" })).status).toBe(200);
  });

  test("what the host does by itself reaches the record, and a wake it made for a request too", async () => {
    const { id } = await persistent();
    await world.host.move(id, "hibernate");
    await eventually(async () => (await shown(id)).state === "hibernated");
    await world.host.move(id, "wake");
    await eventually(async () => (await shown(id)).generation === 2);
    await world.host.move(id, "pause");
    await eventually(async () => (await shown(id)).state === "paused");
    expect((await world.exec(id, { cmd: "true" })).status).toBe(200);
    expect((await shown(id)).state).toBe("running");
    // Asleep without the record's knowledge: the host wakes it when the work arrives.
    await world.host.move(id, "hibernate", { silent: true });
    expect((await world.exec(id, { cmd: "true" })).status).toBe(200);
    await eventually(async () => (await shown(id)).generation === 3);
  });

  test("sleeps missed while the server was away are seen on its return", async () => {
    const { id } = await persistent();
    await world.host.move(id, "hibernate", { silent: true });
    await world.host.move(id, "wake", { silent: true });
    await world.host.move(id, "hibernate", { silent: true });
    await world.restart();
    await eventually(async () => (await shown(id)).state === "hibernated");
    expect(await shown(id)).toMatchObject({ generation: 2, image: { size_bytes: 4096 } });
    expect(world.host.liveMachines()).toEqual([id]);
  });

  test("asked for in every order at once, it ends where the host says, never stuck", async () => {
    const { id } = await persistent();
    world.host.sleepMs = 1;
    const verbs = Array.from({ length: 60 }, (_, index) => (index % 2 === 0 ? "hibernate" : "wake"));
    const replies = await Promise.all(verbs.map((verb) => post(id, verb)));
    expect(replies.filter(({ status }) => status !== 200)).toEqual([]);
    const machine = world.host.machines.get(id)?.machine;
    await eventually(async () => {
      const record = await shown(id);
      return record.state === machine?.state && record.generation === machine.generation;
    });
  });

  test("a failed hibernation leaves it running and says why", async () => {
    const { id } = await persistent();
    world.host.fault({
      on: /hibernate$/,
      kind: "error",
      error: new CodedError("no_space", "the disk is full"),
    });
    expect(await post(id, "hibernate")).toMatchObject({ status: 507, body: { error: { code: "no_space" } } });
    expect(await shown(id)).toMatchObject({ state: "running", generation: 1 });
    await post(id, "hibernate");
    world.host.fault({
      on: /wake$/,
      kind: "error",
      error: new CodedError("image_corrupt", "a byte is wrong"),
    });
    expect(await world.exec(id, { cmd: "true" })).toMatchObject({ status: 422 });
    expect(await shown(id)).toMatchObject({ state: "hibernated" });
  });

  test("a sleeping one is destroyed, and its sleep's owner alone can wake it", async () => {
    const { id } = await persistent();
    await post(id, "hibernate");
    const other = await world.newKey(["sandbox:write", "sandbox:exec"], "globex");
    for (const verb of ["wake", "hibernate", "pause", "resume", "fork", "snapshots", "promote"]) {
      const json = verb === "promote" ? { persistent: false, reason: "x" } : {};
      const reply = await world.call("POST", `/v1/sandboxes/${id}/${verb}`, { key: other, json });
      expect([verb, reply.status, errorOf(reply).code]).toEqual([verb, 404, "sandbox_not_found"]);
    }
    expect((await world.call("DELETE", `/v1/sandboxes/${id}`)).body).toMatchObject({ state: "destroyed" });
    expect(await post(id, "wake")).toMatchObject({ status: 410, body: { error: { code: "sandbox_ended" } } });
    expect(world.host.liveMachines()).toEqual([]);
  });
});

test("the state of a running one is told with its forecast; of a sleeping one only when it may be woken", async () => {
  const { id } = await persistent();
  const state = (query = ""): Promise<Reply> => world.call("GET", `/v1/sandboxes/${id}/state${query}`);
  expect(await state()).toMatchObject({
    status: 200,
    body: {
      sandbox_id: id,
      generation: 1,
      memory: { rss_bytes: 1 },
      forecast: {
        pause: { connections: { survives: "all" } },
        hibernate: {
          files: { survives: "all" },
          connections: { survives: "none", lost: ["tcp 10.0.0.2:5 -> 203.0.113.9:443"] },
        },
      },
    },
  });
  world.guest(id).inventory = { files: "what" };
  expect(errorOf(await state()).code).toBe("guest_unavailable");
  // Asleep without the record's knowledge: looking does not wake it.
  await world.host.move(id, "hibernate", { silent: true });
  expect((await state()).status).toBe(409);
  await post(id, "hibernate");
  expect(await state()).toMatchObject({ status: 409, body: { error: { code: "wrong_state" } } });
  expect(world.host.machines.get(id)?.machine.state).toBe("hibernated");
  await state("?wake=true");
  expect((await shown(id)).generation).toBe(2);
  expect((await state("?wake=perhaps")).status).toBe(400);
});

describe("the clocks", () => {
  test("change one by one, awake or asleep, and host and record agree", async () => {
    const { id } = await persistent();
    await post(id, "hibernate");
    const patch = (json: object): Promise<Reply> =>
      world.call("PATCH", `/v1/sandboxes/${id}/lifecycle`, { json });
    const changed = await patch({
      idle_timeout_seconds: 60,
      on_idle: "pause",
      retention_seconds: 3600,
      auto_wake: false,
      on_expire: "hibernate",
      ttl_seconds: 100,
    });
    const expected = {
      idle_timeout_seconds: 60,
      on_idle: "pause",
      retention_seconds: 3600,
      auto_wake: false,
      on_expire: "hibernate",
    };
    expect(changed).toMatchObject({ status: 200, body: { ...expected, state: "hibernated" } });
    expect(world.host.machines.get(id)?.machine).toMatchObject(expected);
    const { body } = await world.call("GET", `/v1/sandboxes/${id}/lifecycle`);
    expect(body).toMatchObject({ clocks: { ttl: { on_expire: "hibernate" }, retention: { seconds: 3600 } } });
    expect((await patch({ ttl_seconds: null })).body).toMatchObject({ expires_at: null, ...expected });
    expect((await patch({})).status).toBe(400);
    expect((await patch({ on_idle: "explode" })).status).toBe(400);
    const brief = await world.sandbox();
    const endless = await world.call("PATCH", `/v1/sandboxes/${brief.id}/lifecycle`, {
      json: { ttl_seconds: null },
    });
    expect(endless.status).toBe(400);
  });

  test("promote gives the other shape, keeps who asked, and never moves a tenant", async () => {
    const { id, tenant } = await world.sandbox();
    const promote = (json: object): Promise<Reply> => post(id, "promote", json);
    expect((await promote({ persistent: true })).status).toBe(400);
    expect((await promote({ persistent: true, reason: "r", tenant: "other" })).status).toBe(400);
    expect(await promote({ persistent: true, reason: "the user came back", tenant })).toMatchObject({
      status: 200,
      body: { persistent: true, expires_at: null, idle_timeout_seconds: 300 },
    });
    const back = await promote({ persistent: false, reason: "done" });
    expect(back).toMatchObject({ status: 200, body: { persistent: false, idle_timeout_seconds: null } });
    expect(back.body["expires_at"]).not.toBeNull();
  });
});

describe("a network policy", () => {
  test("is kept in one form, changed at any time, and inherited by copies", async () => {
    const parent = await persistent({ network: { allow: ["B.example", "a.example", "a.example"] } });
    const network = { egress: "none", allow: ["a.example", "b.example"], deny: [] };
    expect(parent).toMatchObject({ network });
    expect(world.host.machines.get(parent.id)?.spec.network).toEqual(network);
    const set = (json: unknown): ReturnType<typeof world.call> =>
      world.call("PATCH", `/v1/sandboxes/${parent.id}/network`, { json });
    await post(parent.id, "hibernate");
    const changed = await set({ network: { deny: ["203.0.113.0/24"] } });
    const next = { egress: "internet", allow: [], deny: ["203.0.113.0/24"] };
    expect(changed).toMatchObject({ status: 200, body: { state: "hibernated", network: next } });
    const { body } = await post(parent.id, "fork", {});
    const [child] = body["children"] as { sandbox: { network: unknown } }[];
    expect(child?.sandbox.network).toEqual(next);
    const taken = await post(parent.id, "snapshots", {});
    expect(await world.sandbox({ from_snapshot: String(taken.body["id"]) })).toMatchObject({ network: next });
    expect(await set({ network: "none" })).toMatchObject({ status: 200, body: { network: "none" } });
    const bad = await set({ network: { allow: ["a.example", "10.0.0.1"] } });
    expect(bad.status).toBe(400);
    expect(errorOf(bad).details).toMatchObject({ issues: [{ path: "network.allow.1" }] });
    for (const json of [{}, { network: "lan" }, { network: { allowed: [] } }, { network: null }])
      expect((await set(json)).status).toBe(400);
    expect((await world.call("GET", `/v1/sandboxes/${parent.id}`)).body).toMatchObject({ network: "none" });
    await world.call("DELETE", `/v1/sandboxes/${parent.id}`);
    expect((await set({ network: "none" })).status).toBe(410);
  });
});

describe("snapshots", () => {
  test("are taken, listed, started from and deleted", async () => {
    const parent = await persistent({ memory_mb: 512, disk_mb: 128, network: "none" });
    await post(parent.id, "hibernate");
    const taken = await post(parent.id, "snapshots", { name: "base line", retention_seconds: 60 });
    expect(taken).toMatchObject({
      status: 201,
      body: { name: "base line", sandbox_id: parent.id, tenant: "acme", size_bytes: 8192, generation: 2 },
    });
    const id = String(taken.body["id"]);
    expect((await world.call("GET", `/v1/snapshots?sandbox_id=${parent.id}`)).body).toMatchObject({
      items: [{ id }],
      next_cursor: null,
    });
    const child = await world.sandbox({ from_snapshot: id });
    expect(child).toMatchObject({ tenant: "acme", template: "base", memory_mb: 512, network: "none" });
    expect(world.host.machines.get(child.id)?.spec.from_snapshot).toBe(id);
    const bad = await world.call("POST", "/v1/sandboxes", {
      json: { from_snapshot: id, template: "code-interpreter" },
    });
    expect(errorOf(bad).details).toMatchObject({ issues: [{ path: "template" }] });
    expect((await world.call("DELETE", `/v1/snapshots/${id}`)).body).toEqual({ deleted: true });
    expect((await world.call("DELETE", `/v1/snapshots/${id}`)).status).toBe(404);
    expect(world.host.snapshots.size).toBe(0);
    expect((await world.call("GET", `/v1/snapshots/${id}`)).status).toBe(404);
  });

  test("are another tenant's on no path", async () => {
    const { id: sandboxId } = await persistent();
    const id = String((await post(sandboxId, "snapshots", {})).body["id"]);
    const key = await world.newKey(["sandbox:read", "sandbox:write"], "globex");
    const create = { template: "base", from_snapshot: id };
    for (const reply of [
      await world.call("GET", `/v1/snapshots/${id}`, { key }),
      await world.call("POST", "/v1/sandboxes", { key, json: create }),
      await world.call("POST", "/v1/sandboxes", { json: { ...create, tenant: "globex" } }),
      await world.call("POST", "/v1/sandboxes", {
        json: { ...create, from_snapshot: `snp${"a".repeat(23)}` },
      }),
    ])
      expect([reply.status, errorOf(reply).code]).toEqual([404, "snapshot_not_found"]);
    expect((await world.call("GET", "/v1/snapshots", { key })).body["items"]).toEqual([]);
    expect((await world.call("DELETE", `/v1/snapshots/${id}`, { key })).status).toBe(404);
    expect(world.host.snapshots.size).toBe(1);
  });

  test("past their retention, or left by a server that died in a fork, are removed at the next start", async () => {
    const { id } = await persistent();
    const taken = await post(id, "snapshots", { retention_seconds: 1 });
    const kept = await post(id, "snapshots", {});
    const database = await openDatabase({ kind: "sqlite", path: join(world.directory, "server.sqlite") });
    try {
      const [row] = await database.db.selectFrom("snapshots").selectAll().execute();
      if (row === undefined) throw new Error("no snapshot was recorded");
      await database.db
        .insertInto("snapshots")
        .values({ ...row, id: `snp${"f".repeat(23)}`, kind: "fork", created_at: 1, expires_at: null })
        .execute();
    } finally {
      await database.close();
    }
    await eventually(
      async () => (await world.call("GET", `/v1/snapshots/${String(taken.body["id"])}`)).status === 404,
    );
    await world.restart();
    await eventually(() => world.host.requests.includes(`DELETE /v1/snapshots/snp${"f".repeat(23)}`));
    await eventually(() => world.host.snapshots.size === 1);
    expect([...world.host.snapshots.keys()]).toEqual([kept.body["id"]]);
  });

  test("one that could not be taken leaves nothing", async () => {
    const { id } = await persistent();
    world.host.fault({ on: /snapshots$/, kind: "error", error: new CodedError("no_space", "full") });
    expect((await post(id, "snapshots", {})).status).toBe(507);
    expect((await world.call("GET", "/v1/snapshots")).body["items"]).toEqual([]);
    expect(world.host.requests.some((line) => line.startsWith("DELETE /v1/snapshots/"))).toBe(true);
  });
});

describe("fork", () => {
  test("makes children of their own that inherit, and leaves the parent running", async () => {
    const parent = await persistent({ metadata: { a: "1" }, network: "none", idle_timeout_seconds: 77 });
    const reply = await post(parent.id, "fork", { count: 12, metadata: { b: "2" } });
    expect(reply.status).toBe(201);
    const children = reply.body["children"] as { sandbox: Sandbox }[];
    expect(new Set([parent.id, ...children.map(({ sandbox }) => sandbox.id)]).size).toBe(13);
    for (const { sandbox } of children) {
      expect(sandbox).toMatchObject({
        state: "running",
        tenant: "acme",
        persistent: true,
        network: "none",
        idle_timeout_seconds: 77,
        expires_at: null,
        metadata: { a: "1", b: "2" },
      });
    }
    expect(await shown(parent.id)).toMatchObject({ state: "running", generation: 1 });
    expect(world.host.snapshots.size).toBe(0);
    expect((await world.call("GET", "/v1/snapshots")).body["items"]).toEqual([]);
    expect((await post(parent.id, "fork", { count: 101 })).status).toBe(400);
  });

  test("an ephemeral parent's deadline is its children's", async () => {
    const parent = await world.sandbox({ template: "base", ttl_seconds: 200 });
    const inherited = (await post(parent.id, "fork", {})).body["children"] as { sandbox: Sandbox }[];
    const at = (sandbox: Sandbox | undefined): number => Date.parse(sandbox?.expires_at ?? "");
    expect(Math.abs(at(inherited[0]?.sandbox) - at(parent))).toBeLessThan(1_000);
    const own = (await post(parent.id, "fork", { ttl_seconds: 1000 })).body["children"] as {
      sandbox: Sandbox;
    }[];
    expect(at(own[0]?.sandbox) - at(parent)).toBeGreaterThan(500_000);
  });

  test("each child fails on its own", async () => {
    const parent = await persistent();
    const error = new CodedError("capacity_exhausted", "the host is full");
    world.host.fault({ on: /^PUT/, kind: "error", error, times: 2 });
    const { body } = await post(parent.id, "fork", { count: 5 });
    const children = body["children"] as ({ sandbox: Sandbox } | { error: { code: string } })[];
    expect(children.filter((child) => "sandbox" in child)).toHaveLength(3);
    expect(children.flatMap((child) => ("error" in child ? [child.error.code] : []))).toEqual([
      "capacity_exhausted",
      "capacity_exhausted",
    ]);
    expect(world.host.snapshots.size).toBe(0);
  });
});

describe("sessions", () => {
  const open = (json: object, key?: string): Promise<Reply> =>
    world.call("POST", "/v1/sessions", {
      json: { template: "base", ...json },
      ...(key === undefined ? {} : { key }),
    });
  const idOf = (reply: Reply): string => (reply.body["sandbox"] as Sandbox).id;

  test("100 calls at once for one key make one sandbox, and two tenants get two", async () => {
    world.host.fault({ on: /^PUT/, kind: "delay", delayMs: 50 });
    const replies = await Promise.all(
      Array.from({ length: 100 }, () => open({ tenant: "acme", key: "chat-42" })),
    );
    expect(replies.filter(({ status }) => status === 201)).toHaveLength(1);
    expect(replies.filter(({ status }) => status === 200)).toHaveLength(99);
    expect(new Set(replies.map(idOf)).size).toBe(1);
    const other = await open({ tenant: "globex", key: "chat-42" });
    expect(other).toMatchObject({ status: 201, body: { created: true, sandbox: { persistent: true } } });
    expect(world.host.liveMachines()).toHaveLength(2);
  });

  test("is awake when it answers, the same after a restart, and new once it has ended", async () => {
    const first = await open({ tenant: "acme", key: "k" });
    await post(idOf(first), "hibernate");
    await world.restart();
    const again = await open({ tenant: "acme", key: "k" });
    expect(again).toMatchObject({
      status: 200,
      body: { created: false, sandbox: { id: idOf(first), state: "running", generation: 2 } },
    });
    await world.host.move(idOf(first), "hibernate", { silent: true });
    expect((await open({ tenant: "acme", key: "k" })).body).toMatchObject({ sandbox: { generation: 3 } });
    await world.call("DELETE", `/v1/sandboxes/${idOf(first)}`);
    const fresh = await Promise.all(Array.from({ length: 10 }, () => open({ tenant: "acme", key: "k" })));
    expect(new Set(fresh.map(idOf)).size).toBe(1);
    expect(fresh.map(idOf)).not.toContain(idOf(first));
    expect(world.host.liveMachines()).toHaveLength(1);
  });

  test("a failed create frees the key", async () => {
    world.host.fault({ on: /^PUT/, kind: "error", error: new CodedError("capacity_exhausted", "full") });
    expect((await open({ tenant: "acme", key: "k" })).status).toBe(429);
    expect((await open({ tenant: "acme", key: "k" })).status).toBe(201);
  });

  test("two servers agree on one sandbox", async () => {
    const first = world.server;
    await world.startSecond();
    const ask = async (url: string): Promise<string> => {
      const response = await fetch(`${url}/v1/sessions`, {
        method: "POST",
        headers: { authorization: `Bearer ${world.adminKey}`, "content-type": "application/json" },
        body: JSON.stringify({ template: "base", tenant: "acme", key: "k" }),
      });
      return ((await response.json()) as { sandbox: Sandbox }).sandbox.id;
    };
    const ids = await Promise.all(
      Array.from({ length: 20 }, (_, index) => ask(index % 2 === 0 ? first.url : world.url)),
    );
    expect(new Set(ids).size).toBe(1);
    expect(world.host.liveMachines()).toHaveLength(1);
  });

  test("needs a tenant and a key of at most 256 characters", async () => {
    expect(errorOf(await open({ key: "k" })).details).toMatchObject({ issues: [{ path: "tenant" }] });
    expect((await open({ tenant: "acme" })).status).toBe(400);
    expect((await open({ tenant: "acme", key: "x".repeat(257) })).status).toBe(400);
    const bound = await world.newKey(["sandbox:write"], "acme");
    expect(await open({ key: "k" }, bound)).toMatchObject({ status: 201 });
    expect((await open({ tenant: "globex", key: "k" }, bound)).status).toBe(403);
  });
});
