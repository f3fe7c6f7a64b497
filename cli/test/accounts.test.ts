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
const quota = <Value>(value: Value) => ({
  sandboxes: value,
  sandboxes_awake: value,
  cpu: value,
  memory_mb: value,
  disk_mb: value,
  image_bytes: value,
  creates_per_minute: value,
});
const acme = {
  id: "acme",
  created_at: "2026-11-29T16:00:00.000Z",
  limits: { max_lifetime_seconds: 3_600, ...quota(null), cpu: 8 },
  tenant_limits: { ...quota(null), sandboxes: 5 },
  usage: { ...quota(0), sandboxes: 7, sandboxes_awake: 2 },
};

it("account create and set-limits send the limits that are named and no others", async () => {
  api.scripted.set("POST /v1/accounts", acme).set("PATCH /v1/accounts/acme", acme);
  expect((await cli("account", "create", "acme", "--max-lifetime", "3600")).stdout).toBe("acme\n");
  expect(api.sent.get("POST /v1/accounts")).toEqual({
    id: "acme",
    limits: { max_lifetime_seconds: 3_600 },
    tenant_limits: {},
  });
  await cli("account", "create", "acme");
  expect(api.sent.get("POST /v1/accounts")).toEqual({ id: "acme", limits: {}, tenant_limits: {} });
  expect((await cli("account", "set-limits", "acme", "--max-lifetime", "none")).exitCode).toBe(0);
  expect(api.sent.get("PATCH /v1/accounts/acme")).toEqual({
    limits: { max_lifetime_seconds: null },
    tenant_limits: {},
  });
  await cli(
    "account",
    "set-limits",
    "acme",
    "--max-awake",
    "10",
    "--tenant-max-memory",
    "none",
    "--max-cpu",
    "2.5",
  );
  expect(api.sent.get("PATCH /v1/accounts/acme")).toEqual({
    limits: { sandboxes_awake: 10, cpu: 2.5 },
    tenant_limits: { memory_mb: null },
  });
  expect(await cli("account", "set-limits", "acme")).toMatchObject({ exitCode: 2 });
  expect(await cli("account", "set-limits", "acme", "--max-lifetime", "soon")).toMatchObject({ exitCode: 2 });
});

it("account show tells limits and what there is, of one's own when none is named", async () => {
  api.scripted.set("GET /v1/account", acme).set("GET /v1/accounts/acme", acme);
  const own = await cli("account", "show");
  expect(own.stdout).toMatch(
    /awake or asleep +7 +none +5\b[\s\S]*awake +2 +none[\s\S]*cores[^\n]* 0 +8[\s\S]* 3600\b/,
  );
  expect((await cli("account", "show", "acme")).stdout).toBe(own.stdout);
  expect(JSON.parse((await cli("account", "show", "--json")).stdout)).toEqual(acme);
  expect((await cli("account", "show", "other")).exitCode).toBe(1);
});

it("account ls lists them all", async () => {
  api.scripted.set("GET /v1/accounts", { items: [acme], next_cursor: null });
  expect((await cli("account", "ls")).stdout).toMatch(/^ID[\s\S]*\nacme +7 +2 +3600 /);
});

it("account tenant tells a tenant's share", async () => {
  api.scripted.set("GET /v1/tenants/t1", {
    tenant: "t1",
    limits: { ...quota(null), cpu: 2 },
    usage: quota(1),
  });
  expect((await cli("account", "tenant", "t1")).stdout).toMatch(
    /^TENANT t1 +NOW +LIMIT[\s\S]*cores[^\n]* 1 +2\n/,
  );
});
