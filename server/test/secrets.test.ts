import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { CodedError } from "@torpor/protocol";
import { afterEach, beforeEach, expect, test } from "vitest";
import { Scope } from "@torpor/base";
import { FakeHost } from "./fake-host.ts";
import { startServerProcess } from "./server-process.ts";
import { World } from "./world.ts";

/** Starting TypeScript sources takes seconds on a machine that is busy with other suites. */
const SLOW_MS = 120_000;
const VALUE = 'correct-horse"battery\nstaple';
const FORMS = [VALUE, JSON.stringify(VALUE).slice(1, -1), "correct-horse"];
const secrets = { TOKEN: VALUE };

let scope: Scope;
beforeEach(() => {
  scope = new Scope();
});
afterEach(async () => {
  await scope.close();
});

function filesBelow(directory: string): string[] {
  return readdirSync(directory, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name));
}

test(
  "neither secrets nor API keys stand in any file, log line, answer, event or command line of a server's run",
  async () => {
    const host = await FakeHost.start();
    scope.defer(() => host.close());
    const stateDir = mkdtempSync(join(tmpdir(), "torpor-state-"));
    scope.defer(() => rmSync(stateDir, { recursive: true, force: true }));
    const server = await startServerProcess(scope, host, stateDir, { TORPOR_LOG_LEVEL: "debug" });
    const bootstrap = readFileSync(join(stateDir, "api-key"), "utf8").trim();
    const answers: string[] = [];
    const ask = async (
      method: string,
      path: string,
      json?: unknown,
      { key = bootstrap, ...headers }: { key?: string; "idempotency-key"?: string } = {},
    ): Promise<{ status: number; body: Record<string, unknown> }> => {
      const response = await fetch(`${server.url}${path}`, {
        method,
        headers: { authorization: `Bearer ${key}`, "content-type": "application/json", ...headers },
        ...(json === undefined ? {} : { body: typeof json === "string" ? json : JSON.stringify(json) }),
      });
      const text = await response.text();
      answers.push(text, JSON.stringify([...response.headers]));
      const isJson = response.headers.get("content-type") === "application/json" && text !== "";
      return { status: response.status, body: isJson ? (JSON.parse(text) as Record<string, unknown>) : {} };
    };
    // The one answer that shows a key is not among those that are searched.
    const made = await fetch(`${server.url}/v1/keys`, {
      method: "POST",
      headers: { authorization: `Bearer ${bootstrap}`, "content-type": "application/json" },
      body: JSON.stringify({ name: "ours", tenant: "acme" }),
    });
    const { key, id: keyId } = (await made.json()) as { key: string; id: string };

    const create = { template: "base", secrets };
    const { body, status } = await ask("POST", "/v1/sandboxes", create, { key });
    expect(status).toBe(201);
    const id = String(body["id"]);
    expect(host.machines.get(id)?.spec.secrets).toEqual(secrets);
    const keyed = { key, "idempotency-key": "once" };
    expect((await ask("POST", "/v1/sandboxes", create, keyed)).status).toBe(201);
    expect((await ask("POST", "/v1/sandboxes", create, keyed)).status).toBe(201);
    expect((await ask("POST", "/v1/sessions", { ...create, key: "chat" }, { key })).status).toBe(201);
    expect((await ask("POST", `/v1/sandboxes/${id}/fork`, { secrets }, { key })).status).toBe(201);
    await ask("POST", `/v1/sandboxes/${id}/snapshots`, {}, { key });
    for (const verb of ["hibernate", "wake"]) await ask("POST", `/v1/sandboxes/${id}/${verb}`, {}, { key });
    for (const path of ["", "/lifecycle", "/state", "/logs", "/events?follow=false", "/processes"])
      await ask("GET", `/v1/sandboxes/${id}${path}`, undefined, { key });
    for (const path of ["/v1/sandboxes", "/v1/snapshots", "/v1/events?follow=false&after=oldest", "/v1/keys"])
      await ask("GET", path);
    await ask("GET", `/v1/keys/${keyId}`);

    // Refusals name fields, never values; and what a host says when it fails is gone through.
    for (const bad of [
      { template: "base", secrets: VALUE },
      { template: "base", secrets: { "not a name": VALUE } },
      { template: "base", secrets: { TOKEN: [VALUE] } },
      { template: "base", secrets: { TOKEN: `${VALUE}\0` } },
      {
        template: "base",
        secrets: Object.fromEntries(Array.from({ length: 65 }, (_, n) => [`S${n}`, VALUE])),
      },
      `{"template": "base", "secrets": {"TOKEN": ${JSON.stringify(VALUE)}`,
    ])
      expect((await ask("POST", "/v1/sandboxes", bad, { key })).status).toBe(400);
    host.fault({
      on: /^PUT /,
      kind: "error",
      error: new CodedError("internal", `setenv TOKEN=${VALUE} failed`, { details: { said: VALUE } }),
    });
    const failed = await ask("POST", "/v1/sandboxes", create, { key });
    expect(failed).toMatchObject({
      status: 500,
      body: { error: { message: "setenv TOKEN=[redacted] failed" } },
    });
    await ask("GET", "/v1/sandboxes", undefined, { key: `tp_${"x".repeat(40)}` });
    await ask("GET", `/v1/sandboxes/${key}`); // a key where an id belongs
    await ask("DELETE", `/v1/keys/${keyId}`);
    await ask("GET", "/v1/sandboxes", undefined, { key });

    const log = server.stderr();
    expect(log).toContain('"op":"POST /v1/sandboxes"');
    const told = {
      log,
      answers: answers.filter((text) => !text.includes(`there is no sandbox ${key}`)).join("\n"),
    };
    for (const [where, text] of Object.entries(told))
      for (const secret of [...FORMS, key, bootstrap]) expect(text, where).not.toContain(secret);
    for (const file of filesBelow(stateDir)) {
      const bytes = readFileSync(file);
      for (const secret of [...FORMS, key, bootstrap])
        if (!(file.endsWith("/api-key") && secret === bootstrap))
          expect(bytes.includes(secret), `${file} holds a secret`).toBe(false);
    }
    const commandLine = readFileSync(`/proc/${server.pid}/cmdline`, "utf8");
    expect(commandLine).not.toMatch(/tp_|correct-horse/);
  },
  SLOW_MS,
);

test("secrets reach the sandbox's environment, over env, also those of a fork over the parent's", async () => {
  await using world = await World.start();
  const { id } = await world.sandbox({ template: "base", env: { TOKEN: "plain", A: "1" }, secrets });
  const env = await world.exec(id, { cmd: ["sh", "-c", 'printf "%s|%s" "$TOKEN" "$A"'] });
  expect(env.body["stdout"]).toBe(`${VALUE}|1`);
  const forked = await world.call("POST", `/v1/sandboxes/${id}/fork`, {
    json: { secrets: { TOKEN: "theirs" } },
  });
  const [child] = forked.body["children"] as { sandbox: { id: string } }[];
  expect(world.host.machines.get(child?.sandbox.id ?? "")?.spec).toMatchObject({
    secrets: { TOKEN: "theirs" },
    from_snapshot: expect.any(String),
  });
});
