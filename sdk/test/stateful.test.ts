import { describe, expect, it } from "vitest";
import { ConflictError, NotFoundError, type Sandbox, TorporError } from "@torpor/sdk";
import {
  closedByClient,
  FakeServer,
  ndjson,
  SANDBOX_ID,
  sandboxWire,
  sendError,
  sendJson,
} from "./fake-server.ts";

const OTHER = "snp" + "a".repeat(23);

const snapshotWire = {
  id: OTHER,
  name: "n",
  sandbox_id: SANDBOX_ID,
  tenant: "acme",
  template: "base",
  size_bytes: 8192,
  generation: 2,
  created_at: "2026-11-29T16:00:00.000Z",
  retention_seconds: null,
};

describe("sleep and wake", () => {
  it("are one request each, and the info follows", async () => {
    await using server = (await FakeServer.start()).withSandbox();
    const states = { hibernate: "hibernated", wake: "running", pause: "paused", resume: "running" } as const;
    for (const [verb, state] of Object.entries(states)) {
      server.on("POST", `/v1/sandboxes/{id}/${verb}`, ({ response }) =>
        sendJson(
          response,
          200,
          sandboxWire({
            state,
            image: state === "hibernated" ? { size_bytes: 7, created_at: "2026-11-29T16:00:00.000Z" } : null,
          }),
        ),
      );
    }
    const sandbox = await server.client().sandboxes.create();
    expect(await sandbox.hibernate()).toMatchObject({
      state: "hibernated",
      image: { sizeBytes: 7, createdAt: new Date("2026-11-29T16:00:00.000Z") },
    });
    expect(sandbox.info.state).toBe("hibernated");
    expect((await sandbox.wake()).state).toBe("running");
    expect((await sandbox.pause()).state).toBe("paused");
    expect((await sandbox.resume()).state).toBe("running");
  });

  it("a refusal for the state it is in is a ConflictError", async () => {
    await using server = (await FakeServer.start()).withSandbox();
    server.on("POST", "/v1/sandboxes/{id}/resume", ({ response }) =>
      sendError(response, 409, "wrong_state", "it is hibernated", { details: { state: "hibernated" } }),
    );
    const sandbox = await server.client().sandboxes.create();
    const refused = await sandbox.resume().catch((error: unknown) => error);
    expect(refused).toBeInstanceOf(ConflictError);
    expect(refused).toMatchObject({ code: "wrong_state", details: { state: "hibernated" } });
  });
});

it("create, session and clocks send what they are given, null too", async () => {
  await using server = (await FakeServer.start()).withSandbox();
  const bodies: unknown[] = [];
  const keep = async (call: { json(): Promise<unknown> }): Promise<void> =>
    void bodies.push(await call.json());
  server
    .on("POST", "/v1/sessions", async (call) => {
      await keep(call);
      sendJson(call.response, 200, { sandbox: sandboxWire({ tenant: "acme" }), created: false });
    })
    .on("PATCH", "/v1/sandboxes/{id}/lifecycle", async (call) => {
      await keep(call);
      sendJson(call.response, 200, sandboxWire({ auto_wake: false }));
    })
    .on("POST", "/v1/sandboxes/{id}/promote", async (call) => {
      await keep(call);
      sendJson(call.response, 200, sandboxWire({ persistent: true }));
    })
    .on("PATCH", "/v1/sandboxes/{id}/network", async (call) => {
      await keep(call);
      const network = { egress: "none", allow: ["a.example"], deny: [] };
      sendJson(call.response, 200, sandboxWire({ network }));
    })
    .on("POST", "/v1/sandboxes/{id}/hibernate", async (call) => {
      await keep(call);
      const image = { size_bytes: 5, created_at: "2026-11-29T16:00:00.000Z", memory: false };
      sendJson(call.response, 200, sandboxWire({ state: "hibernated", image }));
    })
    .on("GET", "/v1/sandboxes/{id}/lifecycle", ({ response }) =>
      sendJson(response, 200, {
        id: SANDBOX_ID,
        state: "running",
        reason: null,
        persistent: true,
        auto_wake: true,
        hibernate_memory: true,
        clocks: {
          ttl: { seconds: null, at: null, on_expire: "destroy" },
          idle: { seconds: 300, at: null, on_idle: "hibernate" },
          retention: { seconds: null, at: null },
          max_lifetime: { seconds: null, at: null },
        },
        last_activity_at: "2026-11-29T16:00:00.000Z",
        last_activity: { kind: "exec", what: "x1" },
        holds: [{ kind: "exec", what: "x1", since: "2026-11-29T16:00:00.000Z" }],
        reaped_because: null,
      }),
    );
  const { sandboxes } = server.client();
  const sandbox = await sandboxes.session({ tenant: "acme", key: "chat-42", idleTimeoutSeconds: 60 });
  expect([sandbox.info.tenant, sandbox.isNew, (await sandboxes.create()).isNew]).toEqual([
    "acme",
    false,
    true,
  ]);
  expect((await sandbox.setLifecycle({ ttlSeconds: null, autoWake: false })).autoWake).toBe(false);
  expect((await sandbox.promote({ persistent: true, reason: "r" })).persistent).toBe(true);
  expect((await sandbox.setNetwork({ allow: ["a.example"] })).network).toEqual({
    egress: "none",
    allow: ["a.example"],
    deny: [],
  });
  await sandbox.setNetwork("none");
  expect((await sandbox.hibernate({ memory: false })).image).toMatchObject({ memory: false });
  expect(bodies).toEqual([
    { tenant: "acme", key: "chat-42", idle_timeout_seconds: 60 },
    { ttl_seconds: null, auto_wake: false },
    { persistent: true, reason: "r" },
    { network: { allow: ["a.example"] } },
    { network: "none" },
    { memory: false },
  ]);
  expect(await sandbox.lifecycle()).toMatchObject({
    idle: { seconds: 300, at: null, onIdle: "hibernate" },
    lastActivity: { kind: "exec", what: "x1" },
    maxLifetime: { seconds: null, at: null },
    holds: [{ kind: "exec", since: new Date("2026-11-29T16:00:00.000Z") }],
  });
});

it("snapshots are taken, listed, read and deleted", async () => {
  await using server = (await FakeServer.start()).withSandbox();
  let isThere = true;
  server
    .on("POST", "/v1/sandboxes/{id}/snapshots", async (call) => {
      expect(await call.json()).toEqual({ name: "n" });
      sendJson(call.response, 201, snapshotWire);
    })
    .on("GET", "/v1/snapshots", ({ response, query }) => {
      expect(query.get("sandbox_id")).toBe(SANDBOX_ID);
      sendJson(response, 200, { items: [snapshotWire], next_cursor: null });
    })
    .on("GET", "/v1/snapshots/*", ({ response }) =>
      sendError(response, 404, "snapshot_not_found", "there is no snapshot"),
    )
    .on("DELETE", "/v1/snapshots/*", ({ response }) => {
      if (isThere) sendJson(response, 200, { deleted: true });
      else sendError(response, 404, "snapshot_not_found", "there is no snapshot");
      isThere = false;
    });
  const client = server.client();
  const sandbox = await client.sandboxes.create();
  const snapshot = await sandbox.snapshot({ name: "n" });
  expect(snapshot).toMatchObject({ id: OTHER, sandboxId: SANDBOX_ID, sizeBytes: 8192 });
  expect(await client.snapshots.list({ sandboxId: sandbox.id }).toArray()).toEqual([snapshot]);
  await expect(client.snapshots.get(OTHER)).rejects.toBeInstanceOf(NotFoundError);
  expect(await client.snapshots.delete(OTHER)).toBe(true);
  expect(await client.snapshots.delete(OTHER)).toBe(false);
});

describe("fork and explore", () => {
  const idOf = (index: number): string => `sfork${String(index).padStart(21, "0")}`;

  async function forking(
    count: number,
    failures = 0,
  ): Promise<AsyncDisposable & { server: FakeServer; destroyed: string[] }> {
    const server = (await FakeServer.start()).withSandbox();
    const destroyed: string[] = [];
    server.on("POST", "/v1/sandboxes/{id}/fork", async ({ response }) => {
      const made = Array.from({ length: count - failures }, (_, index) => ({
        sandbox: sandboxWire({ id: idOf(index) }),
      }));
      const failed = Array.from({ length: failures }, () => ({
        error: { code: "capacity_exhausted", message: "the host is full" },
      }));
      sendJson(response, 201, { children: [...failed, ...made] });
    });
    for (let index = 0; index < count; index += 1) {
      server.on("DELETE", `/v1/sandboxes/${idOf(index)}`, ({ response }) => {
        destroyed.push(idOf(index));
        sendJson(response, 200, sandboxWire({ id: idOf(index), state: "destroyed", reason: "user" }));
      });
    }
    return { server, destroyed, [Symbol.asyncDispose]: () => server[Symbol.asyncDispose]() };
  }

  it("gives the children that were made and the errors of the others, or throws when there is none", async () => {
    await using fake = await forking(3, 1);
    const sandbox = await fake.server.client().sandboxes.create();
    const { children, failures } = await sandbox.fork({ count: 3 });
    expect(children.map(({ id }) => id)).toEqual([idOf(0), idOf(1)]);
    expect(failures).toMatchObject([{ code: "capacity_exhausted" }]);
    await using none = await forking(2, 2);
    const other = await none.server.client().sandboxes.create();
    await expect(other.fork({ count: 2 })).rejects.toMatchObject({ code: "capacity_exhausted" });
  });

  it("keeps the best attempt and destroys the rest, failed ones too", async () => {
    await using fake = await forking(5);
    const { server, destroyed } = fake;
    const sandbox = await server.client().sandboxes.create();
    const seen = new Map<string, string>();
    const best = await sandbox.explore(["a", "bbb", "x", "bbc", "n"], async (child: Sandbox, candidate) => {
      seen.set(candidate, child.id);
      if (candidate === "x") throw new Error("this way is closed");
      return candidate === "n" ? Number.NaN : candidate.length;
    });
    expect(best).toMatchObject({ candidate: "bbb", index: 1, score: 3, scores: [1, 3, null, 3, null] });
    expect(best.failures).toHaveLength(2);
    expect(best.winner.id).toBe(seen.get("bbb"));
    expect(destroyed.sort()).toEqual([0, 2, 3, 4].map(idOf));
  });

  it("an attempt that returns anything but a finite number failed, and does not win", async () => {
    await using fake = await forking(7);
    const sandbox = await fake.server.client().sandboxes.create();
    const returned: unknown[] = [undefined, "9", { score: 9 }, null, Infinity, 9n, 2];
    // Attempts in plain JavaScript are checked by nothing else.
    const best = await sandbox.explore(returned, async (_, candidate) => candidate as number);
    expect(best).toMatchObject({ index: 6, score: 2, scores: [null, null, null, null, null, null, 2] });
    expect(best.failures.map(String).sort()).toEqual(
      ["undefined", "string", "object", "null", "Infinity", "bigint"]
        .map(
          (found, index) =>
            `TypeError: the attempt of candidate ${index} returned ${found}; return the score, a finite number, or throw`,
        )
        .sort(),
    );
  });

  it("leaves nothing when no attempt came to a score, or the search is aborted", async () => {
    await using fake = await forking(2);
    const { server, destroyed } = fake;
    const sandbox = await server.client().sandboxes.create();
    const hopeless = sandbox.explore([1, 2], async () => {
      throw new Error("no");
    });
    await expect(hopeless).rejects.toBeInstanceOf(TorporError);
    expect(destroyed).toHaveLength(2);
    const abort = new AbortController();
    const aborted = sandbox.explore(
      [1, 2],
      async () => {
        abort.abort();
        return 1;
      },
      { signal: abort.signal },
    );
    await expect(aborted).rejects.toThrow(/abort/i);
    expect(destroyed).toHaveLength(4);
    await expect(sandbox.explore([], async () => 1)).rejects.toMatchObject({ code: "invalid_request" });
  });
});

describe("code", () => {
  it("gives output as it comes and what it came to at the end", async () => {
    await using server = (await FakeServer.start()).withSandbox();
    server.on("POST", "/v1/sandboxes/{id}/code", async (call) => {
      expect(await call.json()).toEqual({ code: "1+2", context_id: "c1", timeout_seconds: 9 });
      const line = ndjson(call.response);
      line({ type: "stdout", text: "a", timestamp: 1 });
      line({ type: "keepalive" });
      line({ type: "stderr", text: "b", timestamp: 1 });
      line({ type: "result", png: "iVBO", is_main_result: false });
      line({ type: "result", text: "3", is_main_result: true });
      line({ type: "error", name: "ValueError", value: "no", traceback: "tb" });
      line({ type: "something_new" });
      line({ type: "number_of_executions", execution_count: 7 });
      call.response.end();
    });
    const sandbox = await server.client().sandboxes.create();
    const seen: unknown[] = [];
    const execution = await sandbox.runCode("1+2", {
      context: "c1",
      timeoutSeconds: 9,
      onStdout: (text) => seen.push(text),
      onStderr: (text) => seen.push(text),
      onResult: (result) => seen.push(result),
    });
    expect(seen).toEqual(["a", "b", { png: "iVBO", isMainResult: false }, { text: "3", isMainResult: true }]);
    expect(execution).toMatchObject({
      stdout: "a",
      stderr: "b",
      text: "3",
      error: { name: "ValueError", value: "no", traceback: "tb" },
      executionCount: 7,
    });
  });

  it("a callback that throws, like an abort, cuts the connection, which interrupts it", async () => {
    await using server = (await FakeServer.start()).withSandbox();
    server.on("POST", "/v1/sandboxes/{id}/code", ({ response }) =>
      ndjson(response)({ type: "stdout", text: "a", timestamp: 1 }),
    );
    const sandbox = await server.client().sandboxes.create();
    const run = sandbox.runCode("hang", {
      onStdout: () => {
        throw new Error("enough");
      },
    });
    await expect(run).rejects.toThrow("enough");
    const [call] = server.callsTo("POST", "/code");
    if (call !== undefined) await closedByClient(call);
  });

  it("contexts are listed, made, restarted and ended", async () => {
    await using server = (await FakeServer.start()).withSandbox();
    const wire = { id: "c1", language: "python", cwd: "/" };
    server
      .on("GET", "/v1/sandboxes/{id}/code/contexts", ({ response }) =>
        sendJson(response, 200, { items: [wire] }),
      )
      .on("POST", "/v1/sandboxes/{id}/code/contexts", ({ response }) => sendJson(response, 201, wire))
      .on("POST", "/v1/sandboxes/{id}/code/contexts/c1/restart", ({ response }) =>
        sendJson(response, 200, { restarted: true }),
      )
      .on("DELETE", "/v1/sandboxes/{id}/code/contexts/*", ({ response }) =>
        sendError(response, 404, "not_found", "there is no context"),
      );
    const { contexts } = await server.client().sandboxes.create();
    expect(await contexts.list()).toEqual([wire]);
    const made = await contexts.create({ language: "python" });
    await contexts.restart(made);
    expect(await contexts.delete(made)).toBe(false);
  });
});

it("the state comes in our names, times as dates", async () => {
  await using server = (await FakeServer.start()).withSandbox();
  server.on("GET", "/v1/sandboxes/{id}/state", ({ response, query }) => {
    expect(query.get("wake")).toBe("true");
    sendJson(response, 200, {
      sandbox_id: SANDBOX_ID,
      taken_at: "2026-11-29T16:00:00.000Z",
      files: { changed_count: 1, sample: [{ path: "/a", size: 1, modified_at: "2026-11-29T16:00:00.000Z" }] },
    });
  });
  const sandbox = await server.client().sandboxes.create();
  const at = new Date("2026-11-29T16:00:00.000Z");
  expect(await sandbox.state({ wake: true })).toEqual({
    sandboxId: SANDBOX_ID,
    takenAt: at,
    files: { changedCount: 1, sample: [{ path: "/a", size: 1, modifiedAt: at }] },
  });
});
