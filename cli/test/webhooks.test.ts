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
const hook = {
  id: "wh_1",
  url: "https://example.com/hook",
  types: ["sandbox.destroyed", "sandbox.failed"],
  description: "",
  tenant: null,
  enabled: false,
  disabled_because: "it answered 410",
  created_at: "2026-11-29T16:00:00.000Z",
  pending: 0,
  failed: 3,
  last_delivered_at: "2026-11-29T17:00:00.000Z",
  last_error: null,
};

it("webhook create prints the secret alone, and takes types with or without their first word", async () => {
  api.scripted.set("POST /v1/webhooks", { ...hook, secret: "whsec_abc" });
  const made = await cli("webhook", "create", hook.url, "--type", "destroyed,sandbox.failed");
  expect(made.stdout).toBe("whsec_abc\n");
  expect(made.stderr).toContain("id wh_1, tenant all of the account, events destroyed,failed;");
  expect(api.sent.get("POST /v1/webhooks")).toEqual({ url: hook.url, types: hook.types });
  expect(await cli("webhook", "create", hook.url, "--type", "exploded")).toMatchObject({ exitCode: 2 });
});

it("webhook show and ls say how it fares, and why it is disabled", async () => {
  api.scripted.set("GET /v1/webhooks/wh_1", hook).set("GET /v1/webhooks", { items: [hook] });
  const shown = (await cli("webhook", "show", "wh_1")).stdout;
  expect(shown).toMatch(/destroyed,failed[\s\S]*disabled: it answered 410[\s\S]*given up +3/);
  expect((await cli("webhook", "ls")).stdout).toMatch(
    /^ID[\s\S]*\nwh_1 +https:\/\/example.com\/hook +destroyed/,
  );
  expect(JSON.parse((await cli("webhook", "ls", "--json")).stdout)).toEqual({ items: [hook] });
  api.scripted.set("GET /v1/webhooks", { items: [] });
  expect((await cli("webhooks", "ls")).stdout).toBe("No webhooks.\n");
});

it("webhook update sends what is named and no more", async () => {
  api.scripted.set("PATCH /v1/webhooks/wh_1", hook);
  const sent = async (...flags: string[]): Promise<unknown> => {
    expect((await cli("webhook", "update", "wh_1", ...flags)).exitCode).toBe(0);
    return api.sent.get("PATCH /v1/webhooks/wh_1");
  };
  expect(await sent("--enable")).toEqual({ enabled: true });
  expect(await sent("--disable", "--to", "https://x.test/")).toEqual({
    enabled: false,
    url: "https://x.test/",
  });
  expect(await sent("--type", "all")).toEqual({ types: [] });
  expect(await sent("--type", "destroyed")).toEqual({ types: ["sandbox.destroyed"] });
  for (const flags of [[], ["--enable", "--disable"]])
    expect(await cli("webhook", "update", "wh_1", ...flags)).toMatchObject({ exitCode: 2 });
});

it("webhook rm deletes, and says which was not there", async () => {
  api.scripted.set("DELETE /v1/webhooks/wh_1", {});
  expect((await cli("webhook", "rm", "wh_1")).stdout).toBe("wh_1\n");
  const failed = await cli("webhook", "rm", "wh_2");
  expect(failed.exitCode).toBe(1);
  expect(failed.stderr).toContain("wh_2");
});
