import { newSandboxId } from "@torpor/protocol";
import { Sandbox } from "@torpor/sdk";
import type { Instance } from "@torpor/test";
import type { BareRuntime } from "./bare-runtime.ts";
import { type Figure, summarize } from "./figures.ts";
import { poolFull } from "./waiting.ts";

/** Create to first output through the SDK on a pool hit, against a cold `runsc run` of echo, turn by turn. */
export async function createOnHit(
  instance: Instance,
  template: string,
  bare: BareRuntime,
  rounds: number,
): Promise<Figure[]> {
  const ours: number[] = [];
  const creates: number[] = [];
  const cold: number[] = [];
  for (let round = -2; round < rounds; round++) {
    await poolFull(instance, template);
    const startedAt = performance.now();
    const sandbox = await Sandbox.create({ url: instance.url, apiKey: instance.apiKey, template });
    const createdAt = performance.now();
    const { stdout } = await sandbox.exec("echo hi");
    const doneAt = performance.now();
    if (stdout.trim() !== "hi") throw new Error(`exec printed ${JSON.stringify(stdout)}`);
    await sandbox.destroy();
    const coldMs = await bare.coldEcho();
    if (round < 0) continue; // both warm
    creates.push(createdAt - startedAt);
    ours.push(doneAt - startedAt);
    cold.push(coldMs);
  }
  const [hit, create, echo] = [summarize(ours), summarize(creates), summarize(cold)];
  return [
    { name: "cold `runsc run` of echo, p50", value: echo.p50, unit: "ms" },
    { name: "create, pool hit, p50", value: create.p50, unit: "ms" },
    { name: "create to first output, pool hit, p50", value: hit.p50, unit: "ms" },
    { name: "create to first output, pool hit, p99", value: hit.p99, unit: "ms" },
    {
      name: "  ratio of p50 to cold `runsc run`",
      value: hit.p50 / echo.p50,
      unit: "x",
      most: 0.15,
      against: `runsc run, n=${echo.count}`,
    },
    {
      name: "  ratio of p99 to p50",
      value: hit.p99 / hit.p50,
      unit: "x",
      most: 2,
      against: `n=${hit.count}`,
    },
  ];
}

/**
 * A miss: the host is asked for a machine while nothing is ready, against a bare `runsc restore` of the same image until
 * its first answer. `source` says whether an empty process waited (`shell`) or none (`cold`).
 */
export async function createOnMiss(
  instance: Instance,
  template: string,
  source: "shell" | "cold",
  bare: BareRuntime,
  rounds: number,
): Promise<Figure[]> {
  const ours: number[] = [];
  const theirs: number[] = [];
  for (let round = -1; round < rounds; round++) {
    // Another disk size than the pool's is always made from nothing; for `shell` the pool keeps no ready ones.
    const spec = { template, disk_mb: source === "cold" ? 2048 : 4096, memory_mb: 1024 };
    if (source === "shell") await shellReady(instance, template);
    const id = newSandboxId();
    const startedAt = performance.now();
    const machine = await instance.host.create(spec, id);
    const tookMs = performance.now() - startedAt;
    await instance.host.end(id);
    const bareMs = await bare.restoreAndPing();
    if (round < 0) continue;
    if (machine.source !== source) throw new Error(`the machine came from ${machine.source}, not ${source}`);
    ours.push(tookMs);
    theirs.push(bareMs);
  }
  const [miss, restore] = [summarize(ours), summarize(theirs)];
  const what = source === "shell" ? "an empty process waits" : "nothing waits";
  return [
    { name: `bare \`runsc restore\` to first answer, p50`, value: restore.p50, unit: "ms" },
    { name: `create, pool miss (${what}), p50`, value: miss.p50, unit: "ms" },
    {
      name: "  ratio to bare restore",
      value: miss.p50 / restore.p50,
      unit: "x",
      most: 1.3,
      against: `runsc restore, n=${restore.count}`,
    },
  ];
}

async function shellReady(instance: Instance, template: string): Promise<void> {
  await poolFull(instance, template);
  // Use up what is ready: those creates are not counted.
  const { pool } = await instance.host.health();
  const ready = pool.find((candidate) => candidate.template === template)?.ready ?? 0;
  const machines = await Promise.all(
    Array.from({ length: ready }, () => instance.host.create({ template, memory_mb: 1024 })),
  );
  void Promise.all(machines.map((machine) => instance.host.end(machine.id)));
}
