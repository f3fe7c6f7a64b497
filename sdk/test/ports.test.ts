import { expect, it } from "vitest";
import { UnavailableError } from "@torpor/sdk";
import { FakeServer, sendError, sendJson } from "./fake-server.ts";

const ID = `s${"a".repeat(25)}`;
const url = {
  id: "url_1",
  sandbox_id: ID,
  port: 3000,
  host: `3000-${ID}.localhost:7070`,
  auto_wake: false,
  created_at: "2026-11-29T16:00:00Z",
  expires_at: "2026-11-29T17:00:00Z",
  revoked_at: null,
};

it("publishes a port, lists and revokes its URLs, and gives the owner's own way to it", async () => {
  await using server = await FakeServer.start();
  let asked: unknown;
  server
    .on("GET", `/v1/sandboxes/${ID}`, ({ response }) => sendJson(response, 200, { id: ID }))
    .on("POST", `/v1/sandboxes/${ID}/ports/3000/url`, async (call) => {
      asked = await call.json();
      sendJson(call.response, 201, { ...url, url: "http://x/?torpor_token=tpv_1", token: "tpv_1" });
    })
    .on("GET", `/v1/sandboxes/${ID}/urls`, ({ response }) => sendJson(response, 200, { items: [url] }))
    .on("DELETE", `/v1/sandboxes/${ID}/urls/url_1`, ({ response }) => sendJson(response, 200, url))
    .on("DELETE", `/v1/sandboxes/${ID}/urls/url_2`, ({ response }) =>
      sendError(response, 404, "not_found", "none"),
    );
  const sandbox = await server.client().sandboxes.get(ID);
  const made = await sandbox.previewUrl(3000, { expiresInSeconds: 60, autoWake: true });
  expect(asked).toEqual({ expires_in_seconds: 60, auto_wake: true });
  expect(made).toMatchObject({ id: "url_1", token: "tpv_1", expiresAt: new Date(url.expires_at) });
  const [listed] = await sandbox.ports.list();
  expect(listed).toMatchObject({ host: url.host, autoWake: false, revokedAt: null });
  expect([await sandbox.ports.revoke("url_1"), await sandbox.ports.revoke("url_2")]).toEqual([true, false]);
  const { url: address, headers } = await sandbox.ports.request(3000, "api?q=1");
  expect(address).toBe(`${server.url}/v1/sandboxes/${ID}/ports/3000/api?q=1`);
  expect(headers["authorization"]).toMatch(/^Bearer /);
});

it("a port nothing listens on is unavailable", async () => {
  await using server = await FakeServer.start();
  server
    .on("GET", `/v1/sandboxes/${ID}`, ({ response }) => sendJson(response, 200, { id: ID }))
    .on("GET", `/v1/sandboxes/${ID}/urls`, ({ response }) =>
      sendError(response, 502, "port_not_open", "closed"),
    );
  const sandbox = await server.client({ maxRetries: 0 }).sandboxes.get(ID);
  await expect(sandbox.ports.list()).rejects.toBeInstanceOf(UnavailableError);
});
