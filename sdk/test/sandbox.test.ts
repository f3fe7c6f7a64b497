import { describe, expect, it } from "vitest";
import { InvalidRequestError, NotFoundError, Sandbox, SandboxEndedError } from "@torpor/sdk";
import {
  API_KEY,
  type Call,
  FakeServer,
  SANDBOX_ID,
  sandboxWire,
  sendError,
  sendJson,
} from "./fake-server.ts";

describe("create", () => {
  it("sends every option under its wire name and leaves the caller's own names alone", async () => {
    await using server = (await FakeServer.start()).withSandbox();
    let body: unknown;
    server.on("POST", "/v1/sandboxes", async (call) => {
      body = await call.json();
      sendJson(call.response, 201, sandboxWire());
    });
    await server.client().sandboxes.create({
      template: "base",
      ttlSeconds: 60,
      memoryMb: 512,
      diskMb: 1024,
      onExpire: "destroy",
      cpu: 0.5,
      network: "none",
      tenant: "acme",
      name: undefined,
      metadata: { userId: "7" },
      env: { someVar: "x" },
      timeoutMs: 5_000,
    });
    expect(body).toEqual({
      template: "base",
      ttl_seconds: 60,
      memory_mb: 512,
      disk_mb: 1024,
      on_expire: "destroy",
      cpu: 0.5,
      network: "none",
      tenant: "acme",
      metadata: { userId: "7" },
      env: { someVar: "x" },
    });
  });

  it("sends nothing of the connection, and a misspelt option for the server to refuse", async () => {
    await using server = (await FakeServer.start()).withSandbox();
    let body: unknown;
    server.on("POST", "/v1/sandboxes", async (call) => {
      body = await call.json();
      sendJson(call.response, 201, sandboxWire());
    });
    const options = { url: server.url, apiKey: API_KEY, maxRetries: 0, ttlSecond: 60 };
    await Sandbox.create(options);
    expect(body).toEqual({ ttl_second: 60 });
  });

  it.each([Number.NaN, Number.POSITIVE_INFINITY])(
    "refuses a ttlSeconds of %d by name",
    async (ttlSeconds) => {
      await using server = await FakeServer.start();
      const error = await server
        .client()
        .sandboxes.create({ ttlSeconds })
        .catch((caught: unknown) => caught);
      expect(error).toBeInstanceOf(InvalidRequestError);
      expect(error).toHaveProperty("issues.0.path", "ttl_seconds");
      expect(server.calls).toHaveLength(0);
    },
  );

  it("gives what the server knows, times as dates", async () => {
    await using server = (await FakeServer.start()).withSandbox();
    const { info } = await server.client().sandboxes.create();
    expect(info).toMatchObject({ state: "running", memoryMb: 1024, reason: null, endedAt: null });
    expect(info.expiresAt?.toISOString()).toBe("2026-11-29T16:05:00.000Z");
    expect(info.attestation?.steps[0]).toEqual({
      name: "entropy",
      outcome: "done",
      detail: null,
      durationUs: 120,
    });
  });

  it("undoes a create that was aborted half-way, without keeping the caller waiting", async () => {
    await using server = (await FakeServer.start()).withSandbox();
    const controller = new AbortController();
    const keys: unknown[] = [];
    let deleted: ((call: Call) => void) | undefined;
    const isDeleted = new Promise<Call>((resolve) => (deleted = resolve));
    server.on("POST", "/v1/sandboxes", (call) => {
      keys.push(call.headers["idempotency-key"]);
      if (keys.length === 1) controller.abort(new Error("user left"));
      else sendJson(call.response, 201, sandboxWire());
    });
    server.on("DELETE", "/v1/sandboxes/{id}", (call) => {
      sendJson(call.response, 200, sandboxWire({ state: "destroyed", reason: "user" }));
      deleted?.(call);
    });
    await expect(server.client().sandboxes.create({ signal: controller.signal })).rejects.toThrow(
      "user left",
    );
    await isDeleted;
    expect(keys[1]).toBe(keys[0]);
  });

  it("does not undo it when the caller has a key to ask again with", async () => {
    await using server = await FakeServer.start();
    server.on("POST", "/v1/sandboxes", () => {});
    const create = server.client().sandboxes.create({ idempotencyKey: "job-7", timeoutMs: 50 });
    await expect(create).rejects.toMatchObject({ code: "timeout" });
    await new Promise((resolve) => setTimeout(resolve, 100));
    expect(server.calls.map((call) => call.method)).toEqual(["POST"]);
  });
});

describe("get, refresh, list", () => {
  it("throws for a sandbox that is not there", async () => {
    await using server = await FakeServer.start();
    server.on("GET", "/v1/sandboxes/*", ({ response }) =>
      sendError(response, 404, "sandbox_not_found", "no such sandbox"),
    );
    await expect(server.client().sandboxes.get(SANDBOX_ID)).rejects.toBeInstanceOf(NotFoundError);
  });

  it.each(["", ".", ".."])("never asks for another resource when the id is %j", async (id) => {
    await using server = await FakeServer.start();
    await expect(server.client().sandboxes.get(id)).rejects.toBeInstanceOf(InvalidRequestError);
    expect(server.calls).toHaveLength(0);
  });

  it("encodes an id that is a path", async () => {
    await using server = await FakeServer.start();
    await expect(server.client().sandboxes.get("a/../../keys?x")).rejects.toMatchObject({ status: 404 });
    expect(server.calls[0]?.url).toBe("/v1/sandboxes/a%2F..%2F..%2Fkeys%3Fx");
  });

  it("refreshes what it knows", async () => {
    await using server = (await FakeServer.start()).withSandbox();
    const sandbox = await server.client().sandboxes.create();
    server.on("GET", "/v1/sandboxes/{id}", ({ response }) => {
      sendJson(response, 200, sandboxWire({ state: "destroyed", reason: "ttl_expired" }));
    });
    expect((await sandbox.refresh()).reason).toBe("ttl_expired");
    expect(sandbox.info.state).toBe("destroyed");
  });

  function pages(server: FakeServer): void {
    server.on("GET", "/v1/sandboxes", ({ query, response }) => {
      const at = Number(query.get("cursor") ?? 0);
      sendJson(response, 200, {
        items: [sandboxWire({ name: `n${at}` })],
        next_cursor: at < 2 ? String(at + 1) : null,
      });
    });
  }

  it("fetches a page only when the iteration gets there", async () => {
    await using server = await FakeServer.start();
    pages(server);
    const list = server
      .client()
      .sandboxes.list({ state: "running", metadata: { "a b": "c&d" }, pageSize: 1 });
    expect(server.calls).toHaveLength(0);
    const names: unknown[] = [];
    for await (const { info } of list) {
      names.push(info.name);
      if (names.length === 2) break;
    }
    expect(names).toEqual(["n0", "n1"]);
    expect(server.calls).toHaveLength(2);
    expect(Object.fromEntries(server.calls[1]?.query ?? [])).toEqual({
      state: "running",
      limit: "1",
      cursor: "1",
      "metadata.a b": "c&d",
    });
    expect((await list.toArray()).length).toBe(3);
  });

  it("gives single pages", async () => {
    await using server = await FakeServer.start();
    pages(server);
    const list = server.client().sandboxes.list();
    const first = await list.page();
    expect(first.items[0]).toBeInstanceOf(Sandbox);
    const last = await list.page("2");
    expect([first.nextCursor, last.nextCursor]).toEqual(["1", null]);
  });

  it("does not go round for ever when a cursor repeats", async () => {
    await using server = await FakeServer.start();
    server.on("GET", "/v1/sandboxes", ({ response }) =>
      sendJson(response, 200, { items: [], next_cursor: "same" }),
    );
    await expect(server.client().sandboxes.list().toArray()).rejects.toThrow("never end");
    expect(server.calls).toHaveLength(2);
  });
});

describe("setTtl and destroy", () => {
  it("sets the deadline", async () => {
    await using server = (await FakeServer.start()).withSandbox();
    const sandbox = await server.client().sandboxes.create();
    let body: unknown;
    server.on("PATCH", "/v1/sandboxes/{id}/lifecycle", async (call) => {
      body = await call.json();
      sendJson(call.response, 200, sandboxWire({ expires_at: "2026-11-29T17:00:00Z" }));
    });
    await sandbox.setTtl(3600);
    expect(body).toEqual({ ttl_seconds: 3600 });
    expect(sandbox.info.expiresAt?.getUTCHours()).toBe(17);
    await expect(sandbox.setTtl(Number.NaN)).rejects.toBeInstanceOf(InvalidRequestError);
  });

  it("destroys once; the second time answers false without asking", async () => {
    await using server = (await FakeServer.start()).withSandbox();
    const sandbox = await server.client().sandboxes.create();
    expect(await sandbox.destroy()).toBe(true);
    expect(await sandbox.destroy()).toBe(false);
    expect(server.callsTo("DELETE", SANDBOX_ID)).toHaveLength(1);
    expect(sandbox.info.state).toBe("destroyed");
  });

  it.each([
    ["it had ended by its TTL", 200, sandboxWire({ state: "destroyed", reason: "ttl_expired" })],
    ["it is unknown", 404, { error: { code: "sandbox_not_found", message: "no such sandbox" } }],
    ["it has ended and says so", 410, { error: { code: "sandbox_ended", message: "ended" } }],
  ])("answers false when %s", async (_what, status, body) => {
    await using server = (await FakeServer.start()).withSandbox();
    const sandbox = await server.client().sandboxes.create();
    server.on("DELETE", "/v1/sandboxes/{id}", ({ response }) => sendJson(response, status, body));
    expect(await sandbox.destroy()).toBe(false);
  });

  it("throws when it cannot tell, and tries again when asked again", async () => {
    await using server = (await FakeServer.start()).withSandbox();
    const sandbox = await server.client({ maxRetries: 0 }).sandboxes.create();
    server.on("DELETE", "/v1/sandboxes/{id}", ({ response }) =>
      sendError(response, 500, "internal", "a bug"),
    );
    await expect(sandbox.destroy()).rejects.toMatchObject({ code: "internal" });
    server.on("DELETE", "/v1/sandboxes/{id}", ({ response }) => {
      sendJson(response, 200, sandboxWire({ state: "destroyed", reason: "user" }));
    });
    expect(await sandbox.destroy()).toBe(true);
  });

  it("is destroyed at the end of the block, also when the block throws", async () => {
    await using server = (await FakeServer.start()).withSandbox();
    const work = async (): Promise<void> => {
      await using sandbox = await server.client().sandboxes.create();
      throw new Error(`work in ${sandbox.id} failed`);
    };
    await expect(work()).rejects.toThrow(`work in ${SANDBOX_ID} failed`);
    expect(server.callsTo("DELETE", SANDBOX_ID)).toHaveLength(1);
  });

  it("says why when work is asked of an ended sandbox", async () => {
    await using server = (await FakeServer.start()).withSandbox();
    const sandbox = await server.client().sandboxes.create();
    server.on("POST", "/v1/sandboxes/{id}/exec", ({ response }) => {
      sendError(response, 410, "sandbox_ended", "it ran out of time", { details: { reason: "ttl_expired" } });
    });
    const error = await sandbox.exec("true").catch((caught: unknown) => caught);
    expect(error).toBeInstanceOf(SandboxEndedError);
    expect(error).toHaveProperty("reason", "ttl_expired");
  });
});

it("gives logs and what a terminal needs", async () => {
  await using server = (await FakeServer.start()).withSandbox();
  server.on("GET", "/v1/sandboxes/{id}/logs", ({ response }) => void response.end("line\n"));
  const sandbox = await server.client().sandboxes.create();
  expect(await sandbox.logs()).toBe("line\n");
  const { url, headers } = await sandbox.terminal({ cols: 100, cmd: "top -b" });
  expect(url).toBe(
    `${server.url.replace("http", "ws")}/v1/sandboxes/${SANDBOX_ID}/pty?cols=100&rows=24&cmd=top+-b`,
  );
  expect(headers["authorization"]).toBe(`Bearer ${API_KEY}`);
});

it("keeps its connections for requests that follow each other, failed ones too", async () => {
  await using server = (await FakeServer.start()).withSandbox();
  const client = server.client();
  for (let count = 0; count < 5; count++) {
    await client.sandboxes.get(SANDBOX_ID);
    await client.sandboxes.get("other").catch(() => {});
  }
  // fetch itself opens a second when the first is not yet marked free.
  expect(server.connectionCount).toBeLessThanOrEqual(2);
});
