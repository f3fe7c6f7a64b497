import { createServer, type Server } from "node:http";
import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { pipeline, Readable } from "node:stream";
import { createGunzip, gzipSync } from "node:zlib";
import { afterAll, beforeAll, expect, test } from "vitest";
import { silentLog } from "@torpor/base";
import { BuildSandbox } from "../../src/e2b/template/build-sandbox.ts";
import type { ExecTarget } from "../../src/guest/exec.ts";
import { HostClient } from "../../src/host/host-client.ts";

let server: Server;
let sandbox: BuildSandbox;
let received = 0;
beforeAll(async () => {
  server = createServer((incoming, outgoing) => {
    incoming.on("data", (chunk: Buffer) => (received += chunk.length));
    incoming.on("error", () => {});
    incoming.on("end", () => outgoing.writeHead(200).end("{}"));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const client = new HostClient({
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    token: "t",
  });
  const target = { host: { client }, record: { id: "s" } } as unknown as ExecTarget;
  sandbox = new BuildSandbox(target, new AbortController().signal, silentLog);
});
afterAll(() => {
  server.closeAllConnections();
  server.close();
});

function gunzipped(bytes: Buffer): Readable {
  const tar = createGunzip();
  tar.on("error", () => {});
  pipeline(Readable.from([bytes]), tar, () => {});
  return tar;
}

test("a build whose archive is broken gzip fails and says so", async () => {
  const whole = gzipSync(Buffer.alloc(1_000_000, "tar"));
  await sandbox.unpack("/tmp/x", gunzipped(whole));
  expect(received).toBe(1_000_000);
  const head = Buffer.concat([Buffer.from([0x1f, 0x8b]), Buffer.alloc(100, 0xff)]);
  for (const broken of [head, whole.subarray(0, whole.length / 2)])
    await expect(sandbox.unpack("/tmp/x", gunzipped(broken))).rejects.toThrow(
      /unpacking failed: the uploaded archive could not be read: it is broken gzip/,
    );
});

test("so does one whose archive had failed before it was read", async () => {
  const late = gunzipped(Buffer.from("no gzip"));
  await new Promise<void>((resolve) => void late.once("close", resolve));
  await expect(sandbox.unpack("/tmp/x", late)).rejects.toThrow(/broken gzip/);
});
