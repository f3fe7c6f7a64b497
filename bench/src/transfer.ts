import { readFileSync } from "node:fs";
import { Sandbox } from "@torpor/sdk";
import type { Instance } from "@torpor/test";
import type { Figure } from "./figures.ts";

const GIB = 1024 ** 3;
const CHUNK = Buffer.alloc(256 * 1024, "torpor");

/** 1 GiB up and down through the SDK: how much server and host grow meanwhile. */
export async function transferOneGib(instance: Instance): Promise<Figure[]> {
  await using sandbox = await Sandbox.create({
    url: instance.url,
    apiKey: instance.apiKey,
    template: "base",
    memoryMb: 2048,
    cpu: 2,
  });
  // Once small, so that what is loaded and compiled on first use is not counted.
  await sandbox.files.write("/tmp/small", "x".repeat(1024 * 1024));
  await sandbox.files.read("/tmp/small");
  const before = { server: rssMib(instance.serverPid), host: rssMib(instance.hostPid) };
  const peak = { ...before };
  const watch = setInterval(() => {
    peak.server = Math.max(peak.server, rssMib(instance.serverPid));
    peak.host = Math.max(peak.host, rssMib(instance.hostPid));
  }, 50);
  try {
    const upAt = performance.now();
    await sandbox.files.write("/tmp/big", oneGib(), { timeoutMs: 600_000 });
    const downAt = performance.now();
    let bytes = 0;
    for await (const chunk of await sandbox.files.readStream("/tmp/big", { timeoutMs: 600_000 }))
      bytes += chunk.length;
    const doneAt = performance.now();
    if (bytes !== GIB) throw new Error(`${bytes} bytes came back of ${GIB}`);
    return [
      { name: "1 GiB up", value: 1024 / ((downAt - upAt) / 1000), unit: "MiB/s" },
      { name: "1 GiB down", value: 1024 / ((doneAt - downAt) / 1000), unit: "MiB/s" },
      { name: "  server RSS grew by", value: peak.server - before.server, unit: "MiB", most: 64 },
      { name: "  host RSS grew by", value: peak.host - before.host, unit: "MiB", most: 64 },
    ];
  } finally {
    clearInterval(watch);
  }
}

async function* oneGib(): AsyncGenerator<Uint8Array> {
  for (let sent = 0; sent < GIB; sent += CHUNK.length) yield CHUNK;
}

function rssMib(pid: number): number {
  return Number(/^VmRSS:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1]) / 1024;
}
