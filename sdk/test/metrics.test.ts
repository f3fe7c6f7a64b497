import { expect, it } from "vitest";
import { FakeServer, sendJson } from "./fake-server.ts";

const ID = `s${"a".repeat(25)}`;

it("gives what a sandbox used from one time to another", async () => {
  await using server = await FakeServer.start();
  const asked: (string | undefined)[] = [];
  const sample = {
    at: "2026-11-30T12:00:00.000Z",
    cpu_used_percent: 12.5,
    memory_used_bytes: 1,
    memory_cache_bytes: 2,
    disk_used_bytes: 3,
  };
  server
    .on("GET", `/v1/sandboxes/${ID}`, ({ response }) => sendJson(response, 200, { id: ID }))
    .on("GET", `/v1/sandboxes/${ID}/metrics`, ({ request, response }) => {
      asked.push(request.url);
      sendJson(response, 200, { items: [sample] });
    });
  const sandbox = await server.client().sandboxes.get(ID);
  const at = new Date(sample.at);
  expect(await sandbox.metrics()).toEqual([
    { at, cpuUsedPercent: 12.5, memoryUsedBytes: 1, memoryCacheBytes: 2, diskUsedBytes: 3 },
  ]);
  await sandbox.metrics({ from: at });
  expect(asked).toEqual([
    `/v1/sandboxes/${ID}/metrics`,
    `/v1/sandboxes/${ID}/metrics?from=2026-11-30T12%3A00%3A00.000Z`,
  ]);
});
