import { once } from "node:events";
import { describe, expect, it, vi } from "vitest";
import { ConnectionError, RateLimitError, TimeoutError, UnavailableError } from "@torpor/sdk";
import { parseRetryAfterMs, retryDelayMs } from "../src/retry-delay.ts";
import {
  execWire,
  FakeServer,
  fileEntryWire,
  SANDBOX_ID,
  sandboxWire,
  sendError,
  sendJson,
} from "./fake-server.ts";

const busy = { retryable: true, headers: { "retry-after": "0" } };

describe("what is sent again", () => {
  it("a create that meets 503, under the same idempotency key, after the time the server asked for", async () => {
    await using server = (await FakeServer.start()).withSandbox();
    const times: number[] = [];
    server.on("POST", "/v1/sandboxes", ({ response }) => {
      times.push(performance.now());
      if (times.length === 1)
        sendError(response, 503, "host_unavailable", "busy", {
          retryable: true,
          headers: { "retry-after": "1" },
        });
      else sendJson(response, 201, sandboxWire());
    });
    await server.client().sandboxes.create();
    const [first, second] = server.calls;
    expect(first?.headers["idempotency-key"]).toMatch(/^[0-9a-f]{32}$/);
    expect(second?.headers["idempotency-key"]).toBe(first?.headers["idempotency-key"]);
    expect((times[1] ?? 0) - (times[0] ?? 0)).toBeGreaterThanOrEqual(990);
  });

  it("a request whose connection was dropped before and in the middle of the answer", async () => {
    await using server = (await FakeServer.start()).withSandbox();
    let count = 0;
    server.on("GET", "/v1/sandboxes/{id}", ({ response }) => {
      count++;
      if (count === 1) {
        response.destroy();
        return;
      }
      const body = JSON.stringify(sandboxWire());
      if (count > 2) {
        response.end(body);
        return;
      }
      response.writeHead(200, { "content-length": body.length });
      response.write(body.slice(0, 20), () => response.destroy());
    });
    expect((await server.client().sandboxes.get(SANDBOX_ID)).id).toBe(SANDBOX_ID);
    expect(count).toBe(3);
  });

  it("an exec, whose key keeps it from running twice", async () => {
    await using server = (await FakeServer.start()).withSandbox();
    const executed = new Set<unknown>();
    let count = 0;
    server.on("POST", "/v1/sandboxes/{id}/exec", (call) => {
      executed.add(call.headers["idempotency-key"]);
      if (++count === 1) call.response.destroy();
      else sendJson(call.response, 200, execWire({ stdout: "once\n" }));
    });
    const sandbox = await server.client().sandboxes.create();
    expect((await sandbox.exec("echo once")).stdout).toBe("once\n");
    expect(count).toBe(2);
    expect(executed.size).toBe(1);
  });

  it("another exec has another key", async () => {
    await using server = (await FakeServer.start()).withSandbox();
    server.on("POST", "/v1/sandboxes/{id}/exec", ({ response }) => sendJson(response, 200, execWire()));
    const sandbox = await server.client().sandboxes.create();
    await sandbox.exec("true");
    await sandbox.exec("true");
    await sandbox.exec("true", { idempotencyKey: "mine" });
    const keys = server.callsTo("POST", "/exec").map((call) => call.headers["idempotency-key"]);
    expect(new Set(keys).size).toBe(3);
    expect(keys[2]).toBe("mine");
  });

  it("a write of bytes, but not of a stream, which is spent", async () => {
    await using server = (await FakeServer.start()).withSandbox();
    let count = 0;
    server.on("PUT", "/v1/sandboxes/{id}/fs", async (call) => {
      await call.text();
      if (++count % 2 === 1) sendError(call.response, 503, "guest_unavailable", "busy", busy);
      else sendJson(call.response, 200, fileEntryWire());
    });
    const { files } = await server.client().sandboxes.create();
    await files.write("/a", "text");
    expect(count).toBe(2);
    await expect(files.write("/a", new Blob(["text"]).stream())).rejects.toBeInstanceOf(UnavailableError);
    expect(count).toBe(3);
  });
});

describe("a connection that is refused", () => {
  it("is tried for longer than it takes to restart a server", async () => {
    const before = (await FakeServer.start()).withSandbox();
    const { port } = new URL(before.url);
    const client = before.client();
    await before[Symbol.asyncDispose]();
    const asked = client.sandboxes.create();
    // Longer than three ordinary retries take.
    await new Promise((resolve) => setTimeout(resolve, 1_600));
    await using after = (await FakeServer.start(Number(port))).withSandbox();
    expect((await asked).id).toBe(SANDBOX_ID);
    expect(after.callsTo("POST", "/sandboxes")).toHaveLength(1);
  });

  it("ends with the call's own limit, and is not tried again with maxRetries 0", async () => {
    const gone = await FakeServer.start();
    const client = gone.client();
    const once = gone.client({ maxRetries: 0 });
    await gone[Symbol.asyncDispose]();
    const startedAt = performance.now();
    await expect(once.sandboxes.get(SANDBOX_ID)).rejects.toBeInstanceOf(ConnectionError);
    await expect(client.sandboxes.get(SANDBOX_ID, { timeoutMs: 600 })).rejects.toBeInstanceOf(
      ConnectionError,
    );
    expect(performance.now() - startedAt).toBeLessThan(2_000);
  });
});

describe("when sending again stops", () => {
  it("after maxRetries", async () => {
    await using server = await FakeServer.start();
    server.on("GET", "/v1/sandboxes/{id}", ({ response }) =>
      sendError(response, 429, "rate_limited", "slow down", busy),
    );
    const client = server.client({ maxRetries: 2 });
    await expect(client.sandboxes.get(SANDBOX_ID)).rejects.toBeInstanceOf(RateLimitError);
    expect(server.calls).toHaveLength(3);
  });

  it("at once for an error that would come again", async () => {
    await using server = await FakeServer.start();
    server.on("GET", "/v1/sandboxes/{id}", ({ response }) => sendError(response, 500, "internal", "a bug"));
    await expect(server.client().sandboxes.get(SANDBOX_ID)).rejects.toMatchObject({ code: "internal" });
    expect(server.calls).toHaveLength(1);
  });

  it("at once when the server asks for more time than there is", async () => {
    await using server = await FakeServer.start();
    server.on("GET", "/v1/sandboxes/{id}", ({ response }) => {
      sendError(response, 429, "rate_limited", "slow down", {
        retryable: true,
        headers: { "retry-after": "30" },
      });
    });
    const start = performance.now();
    const call = server.client().sandboxes.get(SANDBOX_ID, { timeoutMs: 5_000 });
    await expect(call).rejects.toMatchObject({ code: "rate_limited", retryAfterMs: 30_000 });
    expect(performance.now() - start).toBeLessThan(2_000);
  });

  it("at the abort, with its reason, while it waits", async () => {
    await using server = await FakeServer.start();
    const controller = new AbortController();
    const reason = new Error("changed my mind");
    server.on("GET", "/v1/sandboxes/{id}", ({ response }) => {
      sendError(response, 503, "host_unavailable", "busy", {
        retryable: true,
        headers: { "retry-after": "20" },
      });
      response.on("close", () => setImmediate(() => controller.abort(reason)));
    });
    const call = server.client().sandboxes.get(SANDBOX_ID, { signal: controller.signal, timeoutMs: 0 });
    await expect(call).rejects.toBe(reason);
    expect(server.calls).toHaveLength(1);
  });

  it("leaves no timer that would keep the process: after an answer, a refusal, an abort in a wait", async () => {
    await using server = (await FakeServer.start()).withSandbox();
    const longTimers: number[] = [];
    const ended = new Set<unknown>();
    const { setTimeout: set, clearTimeout: clear } = globalThis;
    const timers = new Map<unknown, number>();
    vi.stubGlobal("setTimeout", (run: () => void, ms: number) => {
      const timer = set(run, ms);
      timers.set(timer, ms);
      return timer;
    });
    vi.stubGlobal("clearTimeout", (timer: Parameters<typeof clear>[0]) => {
      ended.add(timer);
      clear(timer);
    });
    try {
      const client = server.client({ timeoutMs: 77_000 });
      await client.sandboxes.get(SANDBOX_ID);
      await expect(client.sandboxes.get("unknown")).rejects.toMatchObject({ status: 404 });
      server.on("GET", "/v1/sandboxes/{id}", ({ response }) => {
        sendError(response, 503, "host_unavailable", "busy", {
          retryable: true,
          headers: { "retry-after": "33" },
        });
      });
      const controller = new AbortController();
      const call = client.sandboxes.get(SANDBOX_ID, { signal: controller.signal });
      await expect.poll(() => [...timers.values()].some((ms) => ms >= 33_000 && ms < 77_000)).toBe(true);
      controller.abort();
      await expect(call).rejects.toHaveProperty("name", "AbortError");
      for (const [timer, ms] of timers) if (ms >= 33_000 && !ended.has(timer)) longTimers.push(ms);
      expect([...timers.values()].filter((ms) => ms === 77_000)).toHaveLength(3);
      expect(longTimers).toEqual([]);
    } finally {
      vi.unstubAllGlobals();
    }
  });

  it("before anything is sent when the signal is aborted already", async () => {
    await using server = await FakeServer.start();
    const call = server.client().sandboxes.get(SANDBOX_ID, { signal: AbortSignal.abort("no") });
    await expect(call).rejects.toBe("no");
    expect(server.calls).toHaveLength(0);
  });

  it("at timeoutMs, in the headers and in the body", async () => {
    await using server = await FakeServer.start();
    const client = server.client({ timeoutMs: 60 });
    server.on("GET", "/v1/sandboxes/{id}", () => {});
    await expect(client.sandboxes.get(SANDBOX_ID)).rejects.toBeInstanceOf(TimeoutError);
    server.on("GET", "/v1/sandboxes/{id}", ({ response }) => void response.writeHead(200).write("{"));
    await expect(client.sandboxes.get(SANDBOX_ID)).rejects.toMatchObject({
      code: "timeout",
      retryable: true,
    });
    expect(server.calls).toHaveLength(2);
  });

  it.each([Number.NaN, -1])("a timeoutMs of %d is refused", async (timeoutMs) => {
    await using server = await FakeServer.start();
    await expect(server.client().sandboxes.get(SANDBOX_ID, { timeoutMs })).rejects.toThrow("timeoutMs");
    expect(server.calls).toHaveLength(0);
  });

  it("leaves no listener on a long-lived signal and closes the connection of an aborted call", async () => {
    await using server = (await FakeServer.start()).withSandbox();
    const { signal } = new AbortController();
    const added: string[] = [];
    const removed: string[] = [];
    const addEventListener = signal.addEventListener.bind(signal);
    const removeEventListener = signal.removeEventListener.bind(signal);
    signal.addEventListener = (...args: Parameters<typeof addEventListener>) => {
      added.push(args[0]);
      addEventListener(...args);
    };
    signal.removeEventListener = (...args: Parameters<typeof removeEventListener>) => {
      removed.push(args[0]);
      removeEventListener(...args);
    };
    for (let count = 0; count < 5; count++) await server.client().sandboxes.get(SANDBOX_ID, { signal });
    await expect(server.client().sandboxes.get("unknown", { signal })).rejects.toMatchObject({ status: 404 });
    expect(added.length).toBe(6);
    expect(removed.length).toBe(6);

    const controller = new AbortController();
    let closed: Promise<unknown> | undefined;
    server.on("GET", "/v1/sandboxes/{id}", ({ response }) => {
      closed = once(response, "close");
      controller.abort();
    });
    const call = server.client().sandboxes.get(SANDBOX_ID, { signal: controller.signal });
    await expect(call).rejects.toHaveProperty("name", "AbortError");
    await closed;
  });

  it("gives a dropped connection as ConnectionError", async () => {
    await using server = await FakeServer.start();
    server.on("GET", "/v1/sandboxes/{id}", ({ response }) => response.destroy());
    const call = server.client({ maxRetries: 1 }).sandboxes.get(SANDBOX_ID);
    await expect(call).rejects.toBeInstanceOf(ConnectionError);
    expect(server.calls).toHaveLength(2);
  });
});

describe("how long it waits", () => {
  it("doubles, jitters, stays below 5 s and never undercuts the server", () => {
    expect(retryDelayMs(0, null, () => 1)).toBe(200);
    expect(retryDelayMs(3, null, () => 1)).toBe(1600);
    expect(retryDelayMs(60, null, () => 1)).toBe(5000);
    expect(retryDelayMs(3, null, () => 0)).toBe(0);
    expect(retryDelayMs(0, 3000, () => 0)).toBe(3000);
    expect(retryDelayMs(5, 3000, () => 1)).toBe(3750);
  });

  it("reads Retry-After in both of its forms", () => {
    const now = Date.parse("2026-11-29T16:00:00Z");
    expect(parseRetryAfterMs("3", now)).toBe(3000);
    expect(parseRetryAfterMs("Sun, 29 Nov 2026 16:00:05 GMT", now)).toBe(5000);
    expect(parseRetryAfterMs("Sun, 29 Nov 2026 15:00:00 GMT", now)).toBe(0);
    expect(parseRetryAfterMs("soon", now)).toBeNull();
    expect(parseRetryAfterMs(null, now)).toBeNull();
  });
});
