import { rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, it } from "vitest";
import { capturedCli } from "./captured-cli.ts";
import { FakeApi } from "./fake-api.ts";

let api: FakeApi;
beforeEach(async () => {
  api = await FakeApi.start();
});
afterEach(async () => {
  await api[Symbol.asyncDispose]();
});

const cli = (...args: string[]) => capturedCli(args, api.env);
const key = {
  id: "key_1",
  name: "acme",
  prefix: "tp_abcdef",
  account: "default",
  tenant: "acme",
  scopes: ["sandbox:exec"],
  created_at: "2026-11-29T16:00:00.000Z",
  expires_at: "2026-12-29T16:00:00.000Z",
  last_used_at: null,
  revoked_at: null,
};

it("key create takes a time such as 30d, needs no name, and prints the key alone", async () => {
  api.scripted.set("POST /v1/keys", { ...key, key: "tp_the_whole_key" });
  const made = await cli("key", "create", "--tenant", "acme", "--scope", "sandbox:exec", "--expires", "30d");
  expect(made).toEqual({
    exitCode: 0,
    stdout: "tp_the_whole_key\n",
    stderr:
      "id key_1, account default, tenant acme, scopes sandbox:exec, expires 2026-12-29T16:00:00.000Z; this is the only time the key is shown\n",
  });
  expect(api.sent.get("POST /v1/keys")).toEqual({
    name: "acme",
    tenant: "acme",
    scopes: ["sandbox:exec"],
    expires_in_seconds: 2_592_000,
  });
  for (const [text, seconds] of [
    ["90m", 5_400],
    ["12h", 43_200],
    ["45", 45],
    ["0.5h", 1_800],
  ] as const) {
    await cli("key", "create", "n", "--expires", text);
    expect(api.sent.get("POST /v1/keys")).toEqual({ name: "n", expires_in_seconds: seconds });
  }
  for (const bad of ["soon", "30y", "", "-1d", "0.3s"])
    expect(await cli("key", "create", "n", "--expires", bad)).toMatchObject({ exitCode: 2 });
});

it("key create warns when --tenant names an account other than the key's own", async () => {
  const quota = {};
  const account = (id: string) => ({
    id,
    created_at: key.created_at,
    limits: quota,
    tenant_limits: quota,
    usage: quota,
  });
  api.scripted.set("POST /v1/keys", { ...key, key: "tp_the_whole_key" });
  api.scripted.set("GET /v1/account", account("default"));
  const warned = async (...args: string[]): Promise<boolean> => {
    const made = await cli("key", "create", ...args);
    expect(made).toMatchObject({ exitCode: 0, stdout: "tp_the_whole_key\n" });
    return made.stderr.includes("say --account");
  };
  expect(await warned("--tenant", "acme")).toBe(false);
  api.scripted.set("GET /v1/accounts/acme", account("acme"));
  api.scripted.set("GET /v1/accounts/default", account("default"));
  expect(await warned("--tenant", "acme")).toBe(true);
  expect(await warned("--tenant", "default")).toBe(false);
  expect(await warned("--tenant", "acme", "--account", "acme")).toBe(false);
});

it("key ls --account asks for that account's keys and shows whose they are", async () => {
  api.scripted.set("GET /v1/keys", { items: [{ ...key, account: "others" }] });
  const listed = await cli("key", "ls", "--account", "others");
  expect(listed.stdout).toMatch(/ID .*ACCOUNT .*TENANT[^]*key_1 .*others .*acme/);
  expect(api.queries.get("GET /v1/keys")).toBe("?account=others");
  expect((await cli("key", "ls")).stdout).not.toContain("ACCOUNT");
  expect(api.queries.get("GET /v1/keys")).toBe("");
});

it("key show tells what is known, and never a key", async () => {
  api.scripted.set("GET /v1/keys/key_1", key);
  expect((await cli("key", "show", "key_1")).stdout).toMatch(
    /tp_abcdef\.\.\. .*default .*acme .*2026-12-29 16:00/,
  );
  expect(JSON.parse((await cli("key", "show", "key_1", "--json")).stdout)).toEqual(key);
});

it("a key comes from the environment or a file, and no option takes one", async () => {
  api.scripted.set("GET /v1/keys/key_1", key);
  const file = join(tmpdir(), `torpor-key-${process.pid}`);
  writeFileSync(file, `${api.env["TORPOR_API_KEY"]}\n`, { mode: 0o600 });
  try {
    const env = { ...api.env, TORPOR_API_KEY: "tp_wrong" };
    const args = ["key", "show", "key_1", "--api-key-file", file];
    expect(await capturedCli(args, env)).toMatchObject({ exitCode: 0 });
  } finally {
    rmSync(file);
  }
  expect(await cli("key", "ls", "--api-key", "tp_x")).toMatchObject({ exitCode: 2 });
});
