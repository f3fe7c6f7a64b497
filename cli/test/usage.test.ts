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
const sums = {
  seconds: { running: 3_600, paused: 0, hibernated: 7_200 },
  vcpu_seconds: 3_600,
  memory_gib_seconds: 7_200,
  disk_gib_seconds: 0,
  image_gib_seconds: 0,
  cpu_seconds: 360,
  memory_peak_bytes: 1,
  network_in_bytes: 2,
  network_out_bytes: 3,
  idle_seconds: 600,
  currency: "EUR",
  cost: 1.25,
  saved_by_sleeping: 2.5,
  wasted_by_idling: 0.5,
  uncertain_seconds: 0,
};
const prices = { currency: "EUR", vcpu_hour: 1, memory_gib_hour: 2, disk_gib_month: 3, image_gib_month: 4 };
const usage = {
  from: "2026-11-01T00:00:00.000Z",
  to: "2026-11-30T00:00:00.000Z",
  prices,
  items: [{ tenant: "acme", day: "2026-11-02", ...sums }],
  total: { ...sums, uncertain_seconds: 12 },
};
const budget = {
  tenant: null,
  amount: 10,
  period: "month",
  spent: 9,
  state: "warned",
  renews_at: "2026-12-01T00:00:00.000Z",
};

it("usage adds up by what is asked for, and shows hours, costs, what was saved and wasted, and what is missing", async () => {
  api.scripted.set("GET /v1/usage", usage);
  const shown = await cli("usage", "--by", "tenant,day", "--from", "2026-11-01", "--tenant", "acme");
  expect(shown.stdout).toMatch(/TENANT +DAY +AWAKE h .*COST +SAVED +WASTED/);
  expect(shown.stdout).toMatch(
    /acme +2026-11-02 +1\.0000 +2\.0000 +1\.0000 +2\.0000 +0\.1000 +1\.2500 +EUR +2\.5000 +0\.5000/,
  );
  expect(shown.stdout).toMatch(/^total /m);
  expect(shown.stdout).toMatch(/12 s are not in here/);
  expect(JSON.parse((await cli("usage", "--json")).stdout)).toEqual(usage);
});

it.each([
  [["usage", "--by", "colour"], /knows account, tenant/],
  [["usage", "--from", "yesterday"], /must be a time/],
  [["budget", "set", "much"], /number of at least 0/],
  [["budget", "set", "1", "--period", "year"], /day, month/],
  [["price", "set"], /at least one price/],
])("%j is refused, saying why", async (args, message) => {
  const answer = await cli(...args);
  expect(answer.exitCode).toBe(2);
  expect(answer.stderr).toMatch(message);
});

it("budgets are set, listed and taken off, the account's and a tenant's", async () => {
  api.scripted.set("PUT /v1/account/budget", budget).set("GET /v1/budgets", { items: [budget] });
  expect((await cli("budget", "set", "10")).stdout).toMatch(/\(account\) +10 +month +9\.0000 +warned/);
  expect(api.sent.get("PUT /v1/account/budget")).toEqual({ amount: 10, period: "month" });
  api.scripted.set("PUT /v1/tenants/acme/budget", { ...budget, tenant: "acme" });
  await cli("budget", "set", "2.5", "--tenant", "acme", "--period", "day");
  expect(api.sent.get("PUT /v1/tenants/acme/budget")).toEqual({ amount: 2.5, period: "day" });
  expect(JSON.parse((await cli("budget", "ls", "--json")).stdout)).toEqual({ items: [budget] });
});

it("price set changes what is named and leaves the rest", async () => {
  api.scripted.set("GET /v1/prices", prices).set("PUT /v1/prices", { ...prices, vcpu_hour: 9 });
  expect((await cli("price", "set", "--vcpu-hour", "9")).exitCode).toBe(0);
  expect(api.sent.get("PUT /v1/prices")).toEqual({ ...prices, vcpu_hour: 9 });
  expect((await cli("price", "show")).stdout).toMatch(/EUR +FOR\n1 +a core held/);
});

it("metrics shows what a sandbox uses over time", async () => {
  const id = `s${"m".repeat(25)}`;
  const items = [
    {
      at: "2026-11-30T12:00:00.000Z",
      cpu_used_percent: 12.34,
      memory_used_bytes: 3 * 1024 ** 2,
      memory_cache_bytes: 0,
      disk_used_bytes: 2048,
    },
  ];
  api.scripted.set(`GET /v1/sandboxes/${id}`, { id });
  api.scripted.set(`GET /v1/sandboxes/${id}/metrics`, { items });
  const { stdout } = await cli("metrics", id, "--from", "2026-11-30");
  expect(stdout).toMatch(/AT +CPU +MEMORY +CACHE +DISK/);
  expect(stdout).toMatch(/2026-11-30T12:00:00\.000Z +12\.3% +3\.0 MiB +0 B +2\.0 KiB/);
  expect(JSON.parse((await cli("metrics", id, "--json")).stdout)).toEqual({ items });
});
