import { answeredList } from "./answered-list.ts";
import type { CallOptions } from "./call-options.ts";
import type { Transport } from "./transport.ts";
import type { SandboxSampleWire } from "./wire.ts";

/** What a sandbox used at one moment, as its host sees it. */
export interface SandboxSample {
  at: Date;
  /** Since the sample before; 100: all the CPU it may have. */
  cpuUsedPercent: number;
  /** Without what can be let go of; its runtime's own, 20 to 40 MiB, is in it. */
  memoryUsedBytes: number;
  /** Pages of files, which can be let go of. */
  memoryCacheBytes: number;
  /** What its changes to the file system take on the host. */
  diskUsedBytes: number;
}

export interface MetricsOptions extends CallOptions {
  /** Default: the oldest there is. */
  from?: Date | undefined;
  /** Default: now. */
  to?: Date | undefined;
}

/** Samples of one sandbox, oldest first. `root` is the path of its resource. Its public face is on Sandbox. */
export async function sandboxMetrics(
  transport: Transport,
  root: string,
  { from, to, signal, timeoutMs }: MetricsOptions,
): Promise<SandboxSample[]> {
  const answer = await transport.json({
    method: "GET",
    path: `${root}/metrics`,
    query: { from: from?.toISOString(), to: to?.toISOString() },
    signal,
    timeoutMs,
  });
  return answeredList<SandboxSampleWire>(answer, "samples").map((wire) => ({
    at: new Date(wire.at),
    cpuUsedPercent: wire.cpu_used_percent,
    memoryUsedBytes: wire.memory_used_bytes,
    memoryCacheBytes: wire.memory_cache_bytes,
    diskUsedBytes: wire.disk_used_bytes,
  }));
}
