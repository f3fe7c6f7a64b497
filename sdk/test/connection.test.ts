import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { inspect } from "node:util";
import { afterEach, describe, expect, it, vi } from "vitest";
import {
  AuthenticationError,
  ConfigurationError,
  ConnectionError,
  Sandbox,
  Torpor,
  TorporError,
} from "@torpor/sdk";
import { API_KEY, FakeServer, SANDBOX_ID, sandboxWire, sendError, sendJson } from "./fake-server.ts";

afterEach(() => vi.unstubAllEnvs());

function clearEnvironment(): void {
  for (const name of ["TORPOR_URL", "TORPOR_API_KEY", "TORPOR_API_KEY_FILE", "TORPOR_STATE_DIR"])
    vi.stubEnv(name, "");
}

describe("where the server is and which key is used", () => {
  it("takes the options before the environment", async () => {
    await using server = (await FakeServer.start()).withSandbox();
    vi.stubEnv("TORPOR_URL", "http://127.0.0.1:1");
    vi.stubEnv("TORPOR_API_KEY", "tp_other");
    await Sandbox.create({ url: server.url, apiKey: API_KEY });
    expect(server.calls[0]?.headers.authorization).toBe(`Bearer ${API_KEY}`);
  });

  it("takes the environment for the statics", async () => {
    await using server = (await FakeServer.start()).withSandbox();
    clearEnvironment();
    vi.stubEnv("TORPOR_URL", `${server.url}/`);
    vi.stubEnv("TORPOR_API_KEY", API_KEY);
    const sandbox = await Sandbox.create();
    expect(sandbox.id).toBe(SANDBOX_ID);
    expect(server.calls[0]?.url).toBe("/v1/sandboxes");
    expect(server.calls[0]?.headers["user-agent"]).toMatch(/^torpor-sdk-js\//);
  });

  it("reads a key file, at the first request and again when it was missing", async () => {
    await using server = (await FakeServer.start()).withSandbox();
    clearEnvironment();
    const folder = await mkdtemp(join(tmpdir(), "torpor-sdk-"));
    try {
      const file = join(folder, "api-key");
      vi.stubEnv("TORPOR_API_KEY_FILE", file);
      const client = new Torpor({ url: server.url });
      const missing = await client.sandboxes.create().catch((error: unknown) => error);
      expect(missing).toBeInstanceOf(ConfigurationError);
      expect(String(missing)).toContain(file);
      expect(String(missing)).toContain("TORPOR_API_KEY");
      expect(server.calls).toHaveLength(0);
      await writeFile(file, `${API_KEY}\n`);
      await client.sandboxes.create();
      expect(server.calls[0]?.headers.authorization).toBe(`Bearer ${API_KEY}`);
    } finally {
      await rm(folder, { recursive: true });
    }
  });

  it("finds the instance of TORPOR_STATE_DIR and its key, and guesses no port when it has no record", async () => {
    await using server = (await FakeServer.start()).withSandbox();
    clearEnvironment();
    const stateDir = await mkdtemp(join(tmpdir(), "torpor-sdk-"));
    try {
      vi.stubEnv("TORPOR_STATE_DIR", stateDir);
      await writeFile(join(stateDir, "api-key"), `${API_KEY}\n`);
      expect(() => new Torpor()).toThrow(ConfigurationError);
      expect(() => new Torpor()).toThrow(
        `TORPOR_STATE_DIR is ${stateDir}, but where its instance serves is not known: ${stateDir}/run/server.json cannot be read (no such file)`,
      );
      await mkdir(join(stateDir, "run"));
      const record = join(stateDir, "run", "server.json");
      for (const spoilt of ["", "{}", "[1]", "null", '{"url":7}']) {
        await writeFile(record, spoilt);
        expect(() => new Torpor()).toThrow(/TORPOR_STATE_DIR.*set TORPOR_URL and TORPOR_API_KEY_FILE/);
      }
      await writeFile(record, JSON.stringify({ pid: 1, start_time: 1, url: server.url }));
      expect((await Sandbox.create()).id).toBe(SANDBOX_ID);
      expect(server.calls[0]?.headers.authorization).toBe(`Bearer ${API_KEY}`);
      // One that serves a network names an address of that; to another URL the key does not go.
      await writeFile(record, JSON.stringify({ url: "http://192.0.2.1:7070" }));
      const sent: string[] = [];
      const fetch: typeof globalThis.fetch = async (input, init) => {
        const request = new Request(input, init);
        sent.push(`${request.url} ${request.headers.get("authorization")}`);
        return Response.json(sandboxWire());
      };
      await new Torpor({ fetch }).sandboxes.get(SANDBOX_ID);
      expect(sent).toEqual([`http://192.0.2.1:7070/v1/sandboxes/${SANDBOX_ID} Bearer ${API_KEY}`]);
      const elsewhere = new Torpor({ fetch, url: "http://192.0.2.2" });
      await expect(elsewhere.sandboxes.get(SANDBOX_ID)).rejects.toBeInstanceOf(ConfigurationError);
    } finally {
      await rm(stateDir, { recursive: true });
    }
  });

  it("never takes the local instance's key for a server elsewhere", async () => {
    clearEnvironment();
    const client = new Torpor({
      url: "http://torpor.invalid",
      fetch: () => Promise.reject(new Error("was called")),
    });
    const error = await client.sandboxes.create().catch((caught: unknown) => caught);
    expect(error).toBeInstanceOf(ConfigurationError);
    expect(String(error)).toMatch(/apiKey.*TORPOR_API_KEY/);
  });

  it.each([
    ["no URL", { url: "127.0.0.1:7070" }],
    ["another scheme", { url: "ftp://host" }],
    ["credentials in the URL", { url: "http://user:secret@host" }],
    ["a key with a line break", { apiKey: "tp_a\nb" }],
    ["an empty key", { apiKey: "" }],
  ])("refuses %s at once", (_what, options) => {
    expect(() => new Torpor(options)).toThrow(ConfigurationError);
  });

  it("keeps a path in the URL", async () => {
    await using server = await FakeServer.start();
    server.on("GET", "/torpor/v1/sandboxes/{id}", ({ response }) => sendJson(response, 200, sandboxWire()));
    await server.client({ url: `${server.url}/torpor/` }).sandboxes.get(SANDBOX_ID);
  });

  it("shows no key when a client or an error is printed", async () => {
    await using server = await FakeServer.start();
    server.on("GET", "/v1/sandboxes/{id}", ({ response }) =>
      sendError(response, 401, "unauthenticated", "unknown key"),
    );
    const client = server.client();
    const error = await client.sandboxes.get(SANDBOX_ID).catch((caught: unknown) => caught);
    expect(error).toBeInstanceOf(AuthenticationError);
    expect(inspect(client, { depth: 10, showHidden: true }) + inspect(error, { depth: 10 })).not.toContain(
      API_KEY,
    );
  });
});

describe("a server that cannot be reached or is something else", () => {
  it("says what to do when nothing listens", async () => {
    const server = await FakeServer.start();
    const client = server.client({ maxRetries: 0 });
    await server[Symbol.asyncDispose]();
    const error = await client.sandboxes.get(SANDBOX_ID).catch((caught: unknown) => caught);
    expect(error).toBeInstanceOf(ConnectionError);
    expect(String(error)).toMatch(/ECONNREFUSED.*torpor up/);
  });

  it("does not follow redirects, which would take the key along", async () => {
    await using server = await FakeServer.start();
    server.on("GET", "/v1/sandboxes/{id}", ({ response }) => {
      response.writeHead(308, { location: "https://elsewhere.invalid/" }).end();
    });
    const error = await server
      .client()
      .sandboxes.get(SANDBOX_ID)
      .catch((caught: unknown) => caught);
    expect(error).toMatchObject({ code: "http_308", status: 308 });
    expect(String(error)).toContain("https://elsewhere.invalid/");
  });

  it.each([
    ["a page", "<html>Bad gateway</html>"],
    ["half an envelope", '{"error":{"code":"inter'],
    ["nothing", ""],
    ["an envelope of another shape", '{"error":"oops"}'],
    ["two megabytes", "x".repeat(2_000_000)],
  ])("quotes an error answer that is %s", async (_what, body) => {
    await using server = await FakeServer.start();
    server.on("GET", "/v1/sandboxes/{id}", ({ response }) => response.writeHead(500).end(body));
    const error = await server
      .client()
      .sandboxes.get(SANDBOX_ID)
      .catch((caught: unknown) => caught);
    expect(error).toBeInstanceOf(TorporError);
    expect(error).toMatchObject({ code: "http_500", status: 500, requestId: "req-1", retryable: false });
    expect(String(error).length).toBeLessThan(600);
  });

  it("says so when a good answer is no JSON", async () => {
    await using server = await FakeServer.start();
    server.on("GET", "/v1/sandboxes/{id}", ({ response }) =>
      response.writeHead(200).end("<html>Welcome</html>"),
    );
    const error = await server
      .client()
      .sandboxes.get(SANDBOX_ID)
      .catch((caught: unknown) => caught);
    expect(error).toMatchObject({ code: "invalid_response" });
  });
});
