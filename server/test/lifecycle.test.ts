import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { CodedError } from "@torpor/protocol";
import { TenantScope } from "../src/auth/tenant-scope.ts";
import { idempotencySlot } from "../src/store/idempotency-store.ts";
import { errorOf, eventually, World } from "./world.ts";

let world: World;
beforeEach(async () => {
  world = await World.start();
});
afterEach(async () => {
  await world[Symbol.asyncDispose]();
});

const scope = TenantScope.fromVerifiedKey({ keyId: "k", account: "default", tenant: null });

/** What a create leaves in the store that carried an idempotency key. */
async function keyed(id: string): Promise<void> {
  const slot = idempotencySlot(scope, "POST /v1/sandboxes", `key-${id}`);
  await world.server.idempotencyStore.claim(slot, "hash", "gone", Date.now(), id);
}

/** A record in `creating` whose server died: nothing in this process works on it. */
async function halfDone(id: string, createdAt = Date.now()): Promise<void> {
  await world.server.sandboxStore.insert(scope, {
    id,
    tenant: "default",
    name: null,
    template: "base",
    metadata: {},
    cpu: 1,
    memoryMb: 1024,
    diskMb: 4096,
    network: "internet",
    host: "host-1",
    createdAt,
    expiresAt: createdAt + 60_000,
    onExpire: "destroy",
    persistent: false,
    idleTimeoutSeconds: null,
    onIdle: "hibernate",
    retentionSeconds: null,
    autoWake: true,
    hibernateMemory: true,
  });
}

async function stateOf(id: string): Promise<string> {
  const { state, reason } = (await world.call("GET", `/v1/sandboxes/${id}`)).body;
  return `${String(state)} ${String(reason)}`;
}

describe("a create", () => {
  test("that the host refuses leaves a destroyed record with create_failed and no machine", async () => {
    world.host.fault({
      on: /^PUT/,
      kind: "error",
      error: new CodedError("capacity_exhausted", "no memory left"),
    });
    const reply = await world.call("POST", "/v1/sandboxes", { json: { template: "base" } });
    expect(reply).toMatchObject({
      status: 429,
      body: { error: { code: "capacity_exhausted", message: "no memory left", retryable: true } },
    });
    expect(reply.headers.get("retry-after")).toBe("1");
    expect((await world.call("GET", "/v1/sandboxes?state=all")).body).toMatchObject({
      items: [{ state: "destroyed", reason: "create_failed" }],
    });
    expect(world.host.liveMachines()).toEqual([]);
  });

  test("whose answer the host loses is undone once the host can be asked", async () => {
    world.host.fault({ on: /^PUT/, kind: "drop-after", times: 2 });
    const reply = await world.call("POST", "/v1/sandboxes", { json: { template: "base" } });
    // Either the second try found the machine, or it was undone: never a machine without a usable record.
    if (reply.status === 503) {
      world.server.watch.reconcileSoon();
      await eventually(() => world.host.liveMachines().length === 0);
      await eventually(
        async () =>
          ((await world.call("GET", "/v1/sandboxes?state=all")).body["items"] as { state: string }[])[0]
            ?.state === "destroyed",
      );
    } else expect(reply.status).toBe(201);
  });

  test("whose client leaves is undone, for nobody knows its id", async () => {
    world.host.fault({ on: /^PUT/, kind: "delay", delayMs: 300 });
    const leave = new AbortController();
    const asked = world.call("POST", "/v1/sandboxes", { json: { template: "base" }, signal: leave.signal });
    await eventually(() => world.host.requests.some((line) => line.startsWith("PUT")));
    leave.abort();
    await expect(asked).rejects.toThrow();
    await eventually(async () => {
      const { items } = (await world.call("GET", "/v1/sandboxes?state=destroyed")).body as {
        items: { reason: string }[];
      };
      return items[0]?.reason === "abandoned";
    });
    expect(world.host.liveMachines()).toEqual([]);
  });

  test("whose client leaves with an Idempotency-Key stays, and the same request finds it", async () => {
    world.host.fault({ on: /^PUT/, kind: "delay", delayMs: 300 });
    const leave = new AbortController();
    const headers = { "idempotency-key": "stay" };
    const asked = world.call("POST", "/v1/sandboxes", {
      json: { template: "base" },
      headers,
      signal: leave.signal,
    });
    await eventually(() => world.host.requests.some((line) => line.startsWith("PUT")));
    leave.abort();
    await expect(asked).rejects.toThrow();
    const again = await world.call("POST", "/v1/sandboxes", { json: { template: "base" }, headers });
    expect(again.status).toBe(201);
    expect(world.host.liveMachines()).toEqual([again.body["id"]]);
  });

  test("is pre-empted by a delete: it answers 410 and no machine is left", async () => {
    world.host.fault({ on: /^PUT/, kind: "delay", delayMs: 300 });
    const asked = world.call("POST", "/v1/sandboxes", { json: { template: "base" } });
    let id = "";
    await eventually(async () => {
      const { items } = (await world.call("GET", "/v1/sandboxes?state=creating")).body as {
        items: { id: string }[];
      };
      id = items[0]?.id ?? "";
      return id !== "";
    });
    expect(await world.exec(id, { cmd: "true" })).toMatchObject({
      status: 409,
      body: { error: { code: "conflict" } },
    });
    expect((await world.call("DELETE", `/v1/sandboxes/${id}`)).status).toBe(200);
    expect(await asked).toMatchObject({ status: 410, body: { error: { code: "sandbox_ended" } } });
    expect(world.host.liveMachines()).toEqual([]);
  });

  test("while the host is away answers 503 and leaves nothing", async () => {
    await world.host.goAway();
    const reply = await world.call("POST", "/v1/sandboxes", { json: { template: "base" } });
    expect(reply).toMatchObject({
      status: 503,
      body: { error: { code: "host_unavailable", retryable: true } },
    });
    expect(await world.call("GET", "/healthz")).toMatchObject({
      status: 503,
      body: { status: "degraded", host: { ok: false }, store: { ok: true } },
    });
    await world.host.listen();
    await eventually(
      async () =>
        ((await world.call("GET", "/v1/sandboxes?state=all")).body["items"] as { state: string }[]).every(
          ({ state }) => state === "destroyed",
        ),
      10_000,
    );
  });

  test("32 at once are all usable", async () => {
    const sandboxes = await Promise.all(Array.from({ length: 32 }, () => world.sandbox()));
    const results = await Promise.all(sandboxes.map(({ id }) => world.exec(id, { cmd: `echo ${id}` })));
    expect(results.map(({ body }) => body["stdout"])).toEqual(sandboxes.map(({ id }) => `${id}\n`));
  });
});

describe("a delete", () => {
  test("asked for many times at once ends the machine once and answers all alike", async () => {
    const { id } = await world.sandbox();
    world.host.fault({ on: /^DELETE/, kind: "delay", delayMs: 100 });
    const replies = await Promise.all(
      Array.from({ length: 8 }, () => world.call("DELETE", `/v1/sandboxes/${id}`)),
    );
    expect(new Set(replies.map(({ text }) => text)).size).toBe(1);
    expect(world.host.requests.filter((line) => line.startsWith("DELETE"))).toHaveLength(1);
  });

  test("while the host is away answers 503, stays destroying and is finished when the host is back", async () => {
    const { id } = await world.sandbox();
    await world.host.goAway();
    expect((await world.call("DELETE", `/v1/sandboxes/${id}`)).status).toBe(503);
    expect(await stateOf(id)).toBe("destroying user");
    expect((await world.exec(id, { cmd: "true" })).status).toBe(410);
    await world.host.listen();
    await eventually(async () => (await stateOf(id)) === "destroyed user", 10_000);
    expect(world.host.liveMachines()).toEqual([]);
  });

  test("of a sandbox whose time was up a moment before tells why it really ended", async () => {
    const { id } = await world.sandbox();
    world.host.end(id, "ttl_expired", { silent: true });
    expect((await world.call("DELETE", `/v1/sandboxes/${id}`)).body).toMatchObject({
      state: "destroyed",
      reason: "ttl_expired",
    });
  });
});

describe("a deadline", () => {
  test("is counted from now and held by host and record before the answer", async () => {
    const { id } = await world.sandbox({ template: "base", ttl_seconds: 60 });
    const before = Date.now();
    const reply = await world.call("PATCH", `/v1/sandboxes/${id}/lifecycle`, { json: { ttl_seconds: 1000 } });
    const expiresAt = Date.parse(String(reply.body["expires_at"]));
    expect(expiresAt - before).toBeGreaterThanOrEqual(1_000_000);
    expect(expiresAt - before).toBeLessThan(1_005_000);
    expect(world.host.machines.get(id)?.machine.deadline_unix_ms).toBe(expiresAt);
    expect((await world.call("GET", `/v1/sandboxes/${id}/lifecycle`)).body).toMatchObject({
      id,
      state: "running",
      clocks: { ttl: { seconds: 1000, at: reply.body["expires_at"] }, idle: { seconds: null, at: null } },
      holds: [],
      reaped_because: null,
    });
  });

  test("that the host does not take leaves the record as it was", async () => {
    const { id, expires_at } = await world.sandbox();
    world.host.fault({ on: /^PATCH/, kind: "error", error: new CodedError("internal", "journal is full") });
    expect(
      (await world.call("PATCH", `/v1/sandboxes/${id}/lifecycle`, { json: { ttl_seconds: 1000 } })).status,
    ).toBe(500);
    expect((await world.call("GET", `/v1/sandboxes/${id}`)).body["expires_at"]).toBe(expires_at);
    expect(
      await world.call("PATCH", `/v1/sandboxes/${id}/lifecycle`, { json: { ttl_seconds: 0 } }),
    ).toMatchObject({ status: 400 });
  });

  test("of an ended sandbox is 410", async () => {
    const { id } = await world.sandbox();
    await world.call("DELETE", `/v1/sandboxes/${id}`);
    expect(
      (await world.call("PATCH", `/v1/sandboxes/${id}/lifecycle`, { json: { ttl_seconds: 1000 } })).status,
    ).toBe(410);
  });
});

describe("the host's word", () => {
  test("that a machine has ended reaches the record with its reason", async () => {
    const { id } = await world.sandbox();
    world.host.end(id, "ttl_expired");
    await eventually(async () => (await stateOf(id)) === "destroyed ttl_expired");
    expect((await world.exec(id, { cmd: "true" })).body).toMatchObject({
      error: { code: "sandbox_ended", details: { reason: "ttl_expired" } },
    });
  });

  test("that a machine has failed reaches the record: no more work, and a destroy keeps the reason", async () => {
    const { id } = await world.sandbox();
    world.host.fail(id, "oom");
    await eventually(async () => (await stateOf(id)) === "failed oom");
    expect((await world.exec(id, { cmd: "true" })).body).toMatchObject({
      error: { code: "sandbox_ended", details: { reason: "oom" } },
    });
    world.server.watch.reconcileSoon();
    await world.restart();
    expect(await stateOf(id)).toBe("failed oom");
    expect((await world.call("DELETE", `/v1/sandboxes/${id}`)).status).toBe(200);
    expect(await stateOf(id)).toBe("destroyed oom");
  });

  test("that a machine which slept was woken and failed is caught up with too", async () => {
    const { id } = await world.sandbox();
    await world.host.move(id, "hibernate");
    await eventually(async () => (await stateOf(id)) === "hibernated null");
    await world.restart();
    world.host.fail(id, "runtime_crashed", { silent: true });
    await world.restart();
    await eventually(async () => (await stateOf(id)) === "failed runtime_crashed");
    world.host.end(id, "runtime_crashed");
    await eventually(async () => (await stateOf(id)) === "destroyed runtime_crashed");
  });

  test("is caught up with after the server was away", async () => {
    const first = await world.sandbox();
    const second = await world.sandbox();
    await world.restart();
    world.host.end(first.id, "ttl_expired", { silent: true });
    world.host.forget(second.id);
    await halfDone(`s${"b".repeat(25)}`, Date.now() - 60_000);
    await world.restart();
    await eventually(async () => (await stateOf(first.id)) === "destroyed ttl_expired");
    await eventually(async () => (await stateOf(second.id)) === "destroyed host_lost");
  });

  test("that has lost everything says nothing: records stay until their own end or their owner's", async () => {
    const kept = await world.sandbox({ template: "base", persistent: true, tenant: "acme" });
    const ended = await world.sandbox();
    world.host.forget(kept.id);
    world.host.forget(ended.id);
    const record = await world.server.sandboxStore.find(scope, ended.id);
    if (record === undefined) throw new Error("no record");
    await world.server.sandboxStore.note(record, { expiresAt: Date.now() - 61_000 });
    await world.restart();
    await eventually(async () => (await stateOf(ended.id)) === "destroyed ttl_expired");
    expect(await stateOf(kept.id)).toBe("running null");
    expect((await world.call("DELETE", `/v1/sandboxes/${kept.id}`)).body).toMatchObject({
      state: "destroyed",
      reason: "user",
    });
  });

  test("is left alone by a store that knows nothing of it", async () => {
    const id = `s${"q".repeat(25)}`;
    world.host.addMachine(id, new Date(Date.now() - 60_000).toISOString());
    const from = world.host.requests.length;
    world.server.watch.reconcileSoon();
    await eventually(
      () => world.host.requests.slice(from).filter((line) => line === "GET /v1/machines").length >= 1,
    );
    await world.restart();
    await eventually(() => world.server.watch.connected);
    expect(world.host.liveMachines()).toEqual([id]);
  });

  test("and one broken record do not stop the others, and its machine is not taken for an orphan", async () => {
    const broken = await world.sandbox();
    const other = await world.sandbox();
    await world.server.database.db
      .updateTable("sandboxes")
      .set({ metadata: "{torn" })
      .where("id", "=", broken.id)
      .execute();
    expect(errorOf(await world.call("GET", `/v1/sandboxes/${broken.id}`))).toMatchObject({
      code: "internal",
    });
    world.host.end(broken.id, "oom");
    world.host.end(other.id, "oom");
    await eventually(async () => (await stateOf(other.id)) === "destroyed oom");
    const third = await world.sandbox();
    await world.restart();
    world.host.end(third.id, "idle", { silent: true });
    world.server.watch.reconcileSoon();
    await eventually(async () => (await stateOf(third.id)) === "destroyed idle");
  });

  test("that fails means nothing: no record changes while its list cannot be read", async () => {
    const { id } = await world.sandbox();
    await world.restart();
    world.host.fault({
      on: /^GET \/v1\/machines$/,
      kind: "error",
      error: new CodedError("internal", "journal broken"),
      times: 3,
    });
    world.server.watch.reconcileSoon();
    await eventually(
      () => world.host.requests.filter((line) => line === "GET /v1/machines").length >= 4,
      10_000,
    );
    expect(await stateOf(id)).toBe("running null");
    expect((await world.exec(id, { cmd: "echo alive" })).body["stdout"]).toBe("alive\n");
  });
});

describe("after a crash in mid-create", () => {
  test("a machine that was made is adopted when its create carried a key, by which its caller comes back", async () => {
    const id = `s${"c".repeat(25)}`;
    await halfDone(id);
    await keyed(id);
    world.host.addMachine(id);
    await world.restart();
    await eventually(async () => (await stateOf(id)) === "running null");
    expect((await world.exec(id, { cmd: "echo ok" })).body["stdout"]).toBe("ok\n");
  });

  test("a machine whose id nobody can learn is undone, after the newborn grace and not before", async () => {
    const young = `s${"g".repeat(25)}`;
    const old = `s${"h".repeat(25)}`;
    await halfDone(young, Date.now() + 60_000);
    await halfDone(old, Date.now() - 60_000);
    world.host.addMachine(young);
    world.host.addMachine(old);
    await world.restart();
    await eventually(async () => (await stateOf(old)) === "destroyed abandoned");
    expect(await stateOf(young)).toBe("creating null");
  });

  test("a create without a machine is undone after the newborn grace and not before", async () => {
    const young = `s${"d".repeat(25)}`;
    const old = `s${"f".repeat(25)}`;
    await halfDone(young, Date.now() + 60_000);
    await halfDone(old, Date.now() - 60_000);
    await world.restart();
    await eventually(async () => (await stateOf(old)) === "destroyed create_failed");
    expect(await stateOf(young)).toBe("creating null");
  });

  test("a delete that was under way is finished", async () => {
    const { id } = await world.sandbox();
    const record = await world.server.sandboxStore.find(scope, id);
    if (record === undefined) throw new Error("no record");
    await world.server.sandboxStore.advance(record, "destroying", { reason: "user" });
    await world.restart();
    await eventually(async () => (await stateOf(id)) === "destroyed user");
    expect(world.host.liveMachines()).toEqual([]);
  });

  test("a machine that no record knows is removed once it is no newborn", async () => {
    const old = `s${"g".repeat(25)}`;
    const young = `s${"h".repeat(25)}`;
    await world.sandbox();
    world.host.addMachine(old, new Date(Date.now() - 60_000).toISOString());
    world.host.addMachine(young, new Date(Date.now() + 60_000).toISOString());
    world.server.watch.reconcileSoon();
    await eventually(() => !world.host.liveMachines().includes(old));
    expect(world.host.liveMachines()).toContain(young);
  });

  test("the same create with its Idempotency-Key gets the sandbox that was made, once", async () => {
    const headers = { "idempotency-key": "crash" };
    world.host.fault({ on: /^PUT/, kind: "hang" });
    const lost = world
      .call("POST", "/v1/sandboxes", { json: { template: "base" }, headers })
      .catch(() => undefined);
    let id = "";
    await eventually(async () => {
      const { items } = (await world.call("GET", "/v1/sandboxes?state=creating")).body as {
        items: { id: string }[];
      };
      id = items[0]?.id ?? "";
      return id !== "";
    });
    // The host made it, and the server dies before it hears so.
    world.host.addMachine(id);
    const abandoned = world.server;
    await abandoned.watch.close();
    await world.startSecond();
    const again = await world.call("POST", "/v1/sandboxes", { json: { template: "base" }, headers });
    expect(again).toMatchObject({ status: 201, body: { id, state: "running" } });
    expect(again.headers.get("idempotency-replayed")).toBe("true");
    expect(world.host.liveMachines()).toEqual([id]);
    world.host.releaseHanging();
    await lost;
    await abandoned.close().catch(() => {});
  });
});

describe("the absolute end", () => {
  test("goes to the host with the create, bounds every TTL, and is shown", async () => {
    await using short = await World.start({ maxLifetimeSeconds: 100 });
    const { id, expires_at } = await short.sandbox();
    const { maxLifetimeAt, createdAt } = (await short.server.sandboxStore.find(scope, id)) ?? {};
    expect(maxLifetimeAt).toBe(Number(createdAt) + 100_000);
    expect(short.host.machines.get(id)?.spec.max_lifetime_unix_ms).toBe(maxLifetimeAt);
    // The default of 300 s is more than any may live.
    expect(Date.parse(String(expires_at))).toBe(maxLifetimeAt);
    const { body } = await short.call("GET", `/v1/sandboxes/${id}/lifecycle`);
    expect(body).toMatchObject({
      clocks: { max_lifetime: { at: expires_at } },
      last_activity: { kind: "create" },
    });
    for (const reply of [
      await short.call("PATCH", `/v1/sandboxes/${id}/lifecycle`, { json: { ttl_seconds: 101 } }),
      await short.call("POST", "/v1/sandboxes", { json: { template: "base", ttl_seconds: 101 } }),
    ]) {
      expect(reply.status).toBe(400);
      expect(errorOf(reply).message).toContain("ttl_seconds is 101");
    }
    const extended = await short.call("PATCH", `/v1/sandboxes/${id}/lifecycle`, {
      json: { ttl_seconds: 90 },
    });
    expect(extended.status).toBe(200);
  });
});

test("what holds a sandbox awake is told by the commands' ids, and asking counts as nothing", async () => {
  const { id } = await world.sandbox();
  const started = await world.exec(id, { cmd: "sleep 60", background: true });
  const { body } = await world.call("GET", `/v1/sandboxes/${id}/lifecycle`);
  expect(body["holds"]).toMatchObject([{ kind: "exec", what: started.body["exec_id"] }]);
  expect((body["clocks"] as { idle: { at: unknown } }).idle.at).toBeNull();
});

test("ended sandboxes and their reasons stay readable, page by page and by filter", async () => {
  const made = [];
  for (let index = 0; index < 5; index += 1)
    made.push(
      await world.sandbox({
        template: "base",
        metadata: { index: String(index), "odd key.'\"": "v" },
        tenant: index % 2 === 0 ? "even" : "odd",
      }),
    );
  await world.call("DELETE", `/v1/sandboxes/${made[0]?.id}`);
  const seen: string[] = [];
  let cursor: string | null = null;
  do {
    const reply = await world.call(
      "GET",
      `/v1/sandboxes?limit=2&state=all${cursor === null ? "" : `&cursor=${cursor}`}`,
    );
    const page = reply.body as unknown as { items: { id: string }[]; next_cursor: string | null };
    seen.push(...page.items.map(({ id }) => id));
    cursor = page.next_cursor;
  } while (cursor !== null);
  expect(seen.sort()).toEqual(made.map(({ id }) => id).sort());
  const ids = async (query: string): Promise<number> =>
    ((await world.call("GET", `/v1/sandboxes?${query}`)).body["items"] as unknown[]).length;
  expect(await ids("tenant=even")).toBe(2);
  expect(await ids("tenant=even&state=all")).toBe(3);
  expect(await ids("metadata.index=3")).toBe(1);
  expect(await ids(`${new URLSearchParams({ "metadata.odd key.'\"": "v" })}`)).toBe(4);
  expect(await ids("metadata.index=3&metadata.odd=1")).toBe(0);
  expect(await ids("state=destroyed,destroying")).toBe(1);
  expect(errorOf(await world.call("GET", `/v1/sandboxes/${"z".repeat(26)}`)).code).toBe("sandbox_not_found");
});
