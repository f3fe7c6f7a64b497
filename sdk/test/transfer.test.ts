import { execFile } from "node:child_process";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { expect, it } from "vitest";
import { FakeServer, fileEntryWire, sendJson } from "./fake-server.ts";

const MIB = 1024 * 1024;
/** TORPOR_TEST_TRANSFER_MIB=1024 for the full size; the memory used does not depend on it. */
const sizeBytes = Number(process.env["TORPOR_TEST_TRANSFER_MIB"] ?? 256) * MIB;

it("moves a big file up and down with flat memory", { timeout: 120_000 }, async () => {
  await using server = (await FakeServer.start()).withSandbox();
  let uploaded = 0;
  server.on("PUT", "/v1/sandboxes/{id}/fs", async ({ request, response }) => {
    uploaded = 0;
    for await (const chunk of request) uploaded += (chunk as Buffer).length;
    sendJson(response, 200, fileEntryWire({ size: uploaded }));
  });
  server.on("GET", "/v1/sandboxes/{id}/fs", async ({ response, query }) => {
    const total = Number((query.get("path") ?? "").split("?")[1]);
    const chunk = Buffer.alloc(256 * 1024);
    response.writeHead(200, { "content-length": total });
    for (let sent = 0; sent < total; sent += chunk.length) {
      if (!response.write(chunk)) await new Promise<void>((resolve) => response.once("drain", resolve));
    }
    response.end();
  });
  const program = fileURLToPath(new URL("transfer-program.ts", import.meta.url));
  const argv = ["--import", "tsx", "--conditions=source", program, server.url, String(sizeBytes)];
  const { stdout } = await promisify(execFile)(process.execPath, argv);
  const { received, growthBytes, upMs, downMs } = JSON.parse(stdout) as Record<string, number>;
  const mib = (bytes: number | undefined): string => `${((bytes ?? 0) / MIB).toFixed(0)} MiB`;
  console.log(
    `${mib(sizeBytes)}: up ${upMs?.toFixed(0)} ms, down ${downMs?.toFixed(0)} ms, RSS grew by ${mib(growthBytes)}`,
  );
  expect(uploaded).toBe(sizeBytes);
  expect(received).toBe(sizeBytes);
  expect(growthBytes).toBeLessThan(96 * MIB);
});
