import { type Machine, newSandboxId } from "@torpor/protocol";
import { Sandbox } from "@torpor/sdk";
import type { Instance } from "@torpor/test";
import type { BareRuntime } from "./bare-runtime.ts";
import { type Figure, summarize } from "./figures.ts";
import { poolAtRest } from "./waiting.ts";

/** Rounds that are not counted: a server that has just been started is not what users meet. */
const WARM_UP_ROUNDS = 12;

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
  for (let round = -WARM_UP_ROUNDS; round < rounds; round++) {
    await poolAtRest(instance, template);
    const startedAt = performance.now();
    const sandbox = await Sandbox.create({ url: instance.url, apiKey: instance.apiKey, template });
    const createdAt = performance.now();
    const { stdout } = await sandbox.exec("echo hi");
    const doneAt = performance.now();
    if (stdout.trim() !== "hi") throw new Error(`exec printed ${JSON.stringify(stdout)}`);
    await sandbox.destroy();
    const coldMs = await bare.coldEcho();
    if (round < 0) continue; // server and host have compiled what they run often
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
    const tookMs = await (source === "shell"
      ? missWithShell(instance, template)
      : missWithNothing(instance, template));
    const bareMs = await bare.restoreAndPing();
    if (round < 0) continue;
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

/** A disk of another size than the pool's is always made from nothing. */
async function missWithNothing(instance: Instance, template: string): Promise<number> {
  const { machine, tookMs } = await timedCreate(instance, { template, disk_mb: 2048 });
  await instance.host.end(machine.id);
  if (machine.source !== "cold") throw new Error(`the machine came from ${machine.source}, not cold`);
  return tookMs;
}

/** One more than are ready, one after the other: the last goes into a waiting process. */
async function missWithShell(instance: Instance, template: string): Promise<number> {
  await poolAtRest(instance, template);
  const { pool } = await instance.host.health();
  const ready = pool.find((candidate) => candidate.template === template)?.ready ?? 0;
  const made: Awaited<ReturnType<typeof timedCreate>>[] = [];
  for (let count = 0; count <= ready; count++)
    made.push(await timedCreate(instance, { template, disk_mb: 4096 }));
  await Promise.all(made.map(({ machine }) => instance.host.end(machine.id)));
  const miss = made.at(-1);
  if (miss?.machine.source !== "shell")
    throw new Error(`the machine came from ${miss?.machine.source}, not from an empty process`);
  return miss.tookMs;
}

async function timedCreate(
  instance: Instance,
  spec: { template: string; disk_mb: number },
): Promise<{ machine: Machine; tookMs: number }> {
  const startedAt = performance.now();
  const machine = await instance.host.create({ ...spec, memory_mb: 1024 }, newSandboxId());
  return { machine, tookMs: performance.now() - startedAt };
}
