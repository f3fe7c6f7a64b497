import { expect, it } from "vitest";
import { NotFoundError } from "@torpor/sdk";
import { FakeServer, sendError, sendJson } from "./fake-server.ts";

const wire = {
  id: "wh_1",
  url: "https://example.com/hook",
  types: ["sandbox.destroyed"],
  description: "",
  tenant: null,
  enabled: true,
  disabled_because: null,
  created_at: "2026-11-29T16:00:00Z",
  pending: 2,
  failed: 1,
  last_delivered_at: null,
  last_error: "the answer was 500",
};

it("makes, lists, shows, changes and deletes webhooks", async () => {
  await using server = await FakeServer.start();
  const bodies: unknown[] = [];
  server
    .on("POST", "/v1/webhooks", async (call) => {
      bodies.push(await call.json());
      sendJson(call.response, 201, { ...wire, secret: "whsec_eA==" });
    })
    .on("GET", "/v1/webhooks", ({ response }) => sendJson(response, 200, { items: [wire] }))
    .on("GET", "/v1/webhooks/wh_1", ({ response }) => sendJson(response, 200, wire))
    .on("PATCH", "/v1/webhooks/wh_1", async (call) => {
      bodies.push(await call.json());
      sendJson(call.response, 200, { ...wire, enabled: false });
    })
    .on("DELETE", "/v1/webhooks/wh_1", ({ response }) => response.writeHead(204).end())
    .on("DELETE", "/v1/webhooks/wh_2", ({ response }) => sendError(response, 404, "not_found", "none"))
    .on("GET", "/v1/webhooks/wh_2", ({ response }) => sendError(response, 404, "not_found", "none"));
  const { webhooks } = server.client();
  const made = await webhooks.create({ url: wire.url, types: ["sandbox.destroyed"] });
  expect(made).toMatchObject({
    secret: "whsec_eA==",
    createdAt: new Date("2026-11-29T16:00:00Z"),
    pending: 2,
    failed: 1,
    lastError: "the answer was 500",
  });
  const { secret: _secret, ...shown } = made;
  expect([await webhooks.get("wh_1"), ...(await webhooks.list())]).toEqual([shown, shown]);
  expect(await webhooks.update("wh_1", { types: [], enabled: false })).toMatchObject({ enabled: false });
  expect(bodies).toEqual([
    { url: wire.url, types: ["sandbox.destroyed"] },
    { types: [], enabled: false },
  ]);
  expect([await webhooks.delete("wh_1"), await webhooks.delete("wh_2")]).toEqual([true, false]);
  await expect(webhooks.get("wh_2")).rejects.toBeInstanceOf(NotFoundError);
});
