import { afterAll, beforeAll, expect, test } from "vitest";
import { Scope, silentLog } from "@torpor/base";
import { apiKeyPrefix, hashApiKey, newApiKey } from "../src/auth/authenticator.ts";
import { type RunningServer, startServer } from "../src/start-server.ts";
import { openDatabase } from "../src/store/open-database.ts";
import { FakeHost } from "./fake-host.ts";
import { startPostgres } from "./postgres.ts";

// Two servers, one PostgreSQL, one host. The last test takes the database away for good.
let scope: Scope;
let host: FakeHost;
let postgres: Awaited<ReturnType<typeof startPostgres>>;
const servers: RunningServer[] = [];
const key = newApiKey();

beforeAll(async () => {
  scope = new Scope();
  host = await FakeHost.start();
  scope.defer(() => host.close());
  postgres = await startPostgres();
  scope.defer(() => postgres[Symbol.asyncDispose]());
  for (let index = 0; index < 2; index += 1) {
    const database = await openDatabase({ kind: "postgres", url: postgres.url });
    scope.defer(() => database.close());
    const server = await startServer({
      database,
      host: { url: host.url, token: host.token },
      log: silentLog,
    });
    scope.defer(() => server.close());
    servers.push(server);
  }
  await servers[0]?.keyStore.insert({
    id: "key_1",
    account: "default",
    name: "n",
    prefix: apiKeyPrefix(key),
    hash: hashApiKey(key),
    tenant: null,
    scopes: ["admin"],
    createdAt: Date.now(),
    expiresAt: null,
  });
}, 60_000);
afterAll(async () => {
  await scope.close();
}, 30_000);

async function ask(
  server: number,
  method: string,
  path: string,
  json?: unknown,
  headers: Record<string, string> = {},
  apiKey = key,
): Promise<{ status: number; body: Record<string, unknown>; text: string }> {
  const response = await fetch(`${servers[server]?.url}${path}`, {
    method,
    headers: { authorization: `Bearer ${apiKey}`, "content-type": "application/json", ...headers },
    ...(json === undefined ? {} : { body: JSON.stringify(json) }),
  });
  const text = await response.text();
  return { status: response.status, text, body: JSON.parse(text) as Record<string, unknown> };
}

test("a sandbox made through one is used and ended through the other", async () => {
  const made = await ask(0, "POST", "/v1/sandboxes", { template: "base", metadata: { "a'b": 'c"d' } });
  const id = String(made.body["id"]);
  expect(await ask(1, "POST", `/v1/sandboxes/${id}/exec`, { cmd: "echo over there" })).toMatchObject({
    status: 200,
    body: { stdout: "over there\n" },
  });
  expect(
    (await ask(1, "GET", `/v1/sandboxes?${new URLSearchParams({ "metadata.a'b": 'c"d' }).toString()}`)).body[
      "items"
    ],
  ).toHaveLength(1);
  const replies = await Promise.all([
    ask(0, "DELETE", `/v1/sandboxes/${id}`),
    ask(1, "DELETE", `/v1/sandboxes/${id}`),
  ]);
  for (const reply of replies)
    expect(reply).toMatchObject({ status: 200, body: { state: "destroyed", reason: "user" } });
});

test("one Idempotency-Key sent to both at once makes one sandbox, and both tell it", async () => {
  host.fault({ on: /^PUT/, kind: "delay", delayMs: 500 });
  const before = host.liveMachines().length;
  const replies = await Promise.all(
    [0, 1, 0, 1].map((server) =>
      ask(server, "POST", "/v1/sandboxes", { template: "base" }, { "idempotency-key": "both" }),
    ),
  );
  expect(new Set(replies.map(({ status, text }) => `${status} ${text}`)).size).toBe(1);
  expect(replies[0]?.status).toBe(201);
  expect(host.liveMachines()).toHaveLength(before + 1);
});

test("a create under way on one is let alone by the other's reconciliation", async () => {
  host.fault({ on: /^PUT/, kind: "delay", delayMs: 500 });
  const asked = ask(0, "POST", "/v1/sandboxes", { template: "base" });
  await new Promise((resolve) => setTimeout(resolve, 100));
  servers[1]?.watch.reconcileSoon();
  expect(await asked).toMatchObject({ status: 201, body: { state: "running" } });
});

test("a key revoked on one stops on the other at once", async () => {
  const made = await ask(0, "POST", "/v1/keys", { name: "short-lived" });
  const short = String(made.body["key"]);
  expect((await ask(1, "GET", "/v1/sandboxes", undefined, {}, short)).status).toBe(200);
  await ask(0, "DELETE", `/v1/keys/${String(made.body["id"])}`);
  expect((await ask(1, "GET", "/v1/sandboxes", undefined, {}, short)).status).toBe(401);
});

test("without the database requests answer 503, nothing is taken for gone and no machine is touched", async () => {
  const live = host.liveMachines();
  expect(live.length).toBeGreaterThan(0);
  await postgres[Symbol.asyncDispose]();
  const from = host.requests.length;
  for (const server of [0, 1]) {
    servers[server]?.watch.reconcileSoon();
    expect(await ask(server, "GET", "/v1/sandboxes")).toMatchObject({
      status: 503,
      body: { error: { code: "store_unavailable", retryable: true } },
    });
    expect(await ask(server, "POST", "/v1/sandboxes", { template: "base" })).toMatchObject({
      status: 503,
      body: { error: { code: "store_unavailable" } },
    });
    expect(await ask(server, "GET", "/healthz")).toMatchObject({
      status: 503,
      body: { store: { ok: false }, host: { ok: true } },
    });
  }
  expect(host.liveMachines()).toEqual(live);
  expect(host.requests.slice(from).filter((line) => /^(PUT|DELETE)/.test(line))).toEqual([]);
});
