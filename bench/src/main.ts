import { writeFileSync } from "node:fs";
import { cpus, release, totalmem } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { ensureTemplates, Instance, templateCacheDir } from "@torpor/test";
import { BareRuntime } from "./bare-runtime.ts";
import { burstOfCreates } from "./burst.ts";
import { createOnHit, createOnMiss } from "./create.ts";
import { deadlineOvershoot, deadlineOvershootOf200 } from "./deadlines.ts";
import { crashStorm, createDestroyCycles } from "./endurance.ts";
import { e2bExec } from "./e2b.ts";
import { execRoundTrip } from "./exec.ts";
import { type Figure, renderTable } from "./figures.ts";
import { idleAwake, platformWork, waitingMember } from "./idle.ts";
import { agentQuestions, hostRecovery } from "./recovery.ts";
import { forkOfEight, pauseAndResume, sleepAndWake } from "./sleep.ts";
import { transferOneGib } from "./transfer.ts";

const TEMPLATE = "base";
const PARTS = [
  "hit",
  "miss",
  "hibernate",
  "wake",
  "pause",
  "fork",
  "exec",
  "e2b",
  "idle",
  "burst",
  "transfer",
  "platforms",
  "deadlines",
  "recovery",
] as const;
/** Take many minutes and are run when asked for. */
const LONG_PARTS = ["cycles", "storm"] as const;

const { values } = parseArgs({
  options: {
    rounds: { type: "string", default: "50" },
    out: { type: "string" },
    only: { type: "string", multiple: true, default: [...PARTS] },
  },
});
const rounds = Number(values.rounds);
const wanted = (part: (typeof PARTS)[number] | (typeof LONG_PARTS)[number]): boolean =>
  values.only.includes(part);
const figures: Figure[] = [];

/** Runs one part on an instance of its own and says that it does. */
async function part(
  name: string,
  options: { pool?: number; shells?: number; env?: Record<string, string> },
  measure: (instance: Instance) => Promise<Figure[]>,
): Promise<void> {
  process.stderr.write(`${name}...\n`);
  const instance = await Instance.start({ server: true, pool: 3, shells: 2, ...options });
  try {
    figures.push(...(await measure(instance)));
  } catch (error) {
    // The other parts' figures are worth having; the exit code says that one is missing.
    process.stderr.write(`${name}: ${String(error)}\n`);
    process.exitCode = 1;
  } finally {
    await instance.stop();
    await instance.remove();
  }
}

await ensureTemplates([TEMPLATE, "code-interpreter"], (line) => process.stderr.write(`${line}\n`));
const template = join(templateCacheDir(), "by-name", TEMPLATE);
{
  await using bare = await BareRuntime.open({
    rootfsDir: join(template, "rootfs"),
    goldenDir: join(template, "golden", "gvisor-systrap"),
  });
  if (wanted("hit"))
    await part("create on a pool hit", {}, (instance) => createOnHit(instance, TEMPLATE, bare, rounds));
  if (wanted("miss")) {
    await part("create on a miss", {}, (instance) =>
      createOnMiss(instance, TEMPLATE, "shell", bare, Math.min(rounds, 10)),
    );
    await part("create with nothing waiting", { pool: 0, shells: 0 }, (instance) =>
      createOnMiss(instance, TEMPLATE, "cold", bare, Math.min(rounds, 15)),
    );
  }
  // A turn at 400 MB takes twenty seconds.
  const few = Math.min(rounds, 10);
  if (wanted("hibernate") || wanted("wake")) {
    const sleeps = [
      { megabytes: 40, memory: "cold", waiting: true, targets: { hibernate: 1.3, wake: 0.6 } },
      { megabytes: 40, memory: "warm", waiting: true, targets: { hibernate: 1.3, wake: 0.6 } },
      { megabytes: 400, memory: "cold", waiting: true, targets: { hibernate: 1.3, wake: 1.3 } },
      { megabytes: 400, memory: "warm", waiting: true, targets: { hibernate: 1.3, wake: 1.3 } },
      { megabytes: 400, memory: "warm", waiting: true, targets: {}, filling: "typical" },
      { megabytes: 400, memory: "warm", waiting: false, targets: { wake: 1.3 } },
    ] as const;
    for (const turn of sleeps) {
      const sleep = { filling: "incompressible", ...turn } as const;
      const { megabytes, memory, filling, waiting } = sleep;
      await part(
        `sleep with ${megabytes} MB, ${filling}, memory ${memory}, ${waiting ? "an empty process waits" : "nothing waits"}`,
        waiting ? {} : { pool: 0, shells: 0 },
        (instance) => sleepAndWake(instance, bare, { template: TEMPLATE, rounds: few, ...sleep }),
      );
    }
  }
  if (wanted("pause"))
    await part("pause", {}, (instance) => pauseAndResume(instance, bare, TEMPLATE, rounds));
  if (wanted("fork"))
    for (const [name, env] of [
      ["the first for a while", { TORPOR_POOL_DEMAND_SECONDS: "1" }],
      ["again within a minute", {}],
    ] as const)
      await part(`fork, ${name}`, { env }, (instance) =>
        forkOfEight(instance, bare, { template: TEMPLATE, megabytes: 40, name, rounds: few }),
      );
}
if (wanted("e2b")) await part("E2B", {}, (instance) => e2bExec(instance, Math.ceil(rounds / 5)));
if (wanted("exec")) await part("exec", {}, (instance) => execRoundTrip(instance, Math.ceil(rounds / 5)));
if (wanted("idle"))
  await part("waiting", {}, async (instance) => [
    ...(await waitingMember(instance, TEMPLATE, 25)),
    // It waits with a warm notebook kernel: what a first cell would cost is paid in memory.
    ...(await waitingMember(instance, "code-interpreter")),
  ]);
if (wanted("burst")) await part("32 at once", {}, (instance) => burstOfCreates(instance, TEMPLATE));
if (wanted("transfer")) await part("1 GiB", {}, transferOneGib);
if (wanted("deadlines")) {
  process.stderr.write("200 deadlines...\n");
  figures.push(...(await deadlineOvershootOf200()));
  for (const serverLives of [true, false])
    await part(`deadlines, server ${serverLives ? "alive" : "dead"}`, {}, (instance) =>
      deadlineOvershoot(instance, serverLives),
    );
}
if (wanted("recovery"))
  await part("host recovery", {}, async (instance) => [
    ...(await hostRecovery(instance)),
    ...(await agentQuestions(instance)),
  ]);
if (wanted("cycles")) await part("500 cycles", { pool: 0, shells: 0 }, createDestroyCycles);
if (wanted("storm")) await part("storm", { pool: 2, shells: 1 }, crashStorm);
if (wanted("platforms")) {
  for (const platform of ["systrap", "ptrace"]) {
    // A golden snapshot belongs to one platform: these start without a pool, from one baked for them.
    await part(platform, { pool: 1, shells: 0, env: { TORPOR_PLATFORM: platform } }, async (instance) => {
      await instance.host.buildTemplate(TEMPLATE);
      return [...(await idleAwake(instance, platform)), ...(await platformWork(instance, platform))];
    });
  }
}
const machine = {
  cpus: cpus().length,
  model: cpus()[0]?.model,
  kernel: release(),
  memoryMib: Math.floor(totalmem() / 1048576),
  node: process.version,
  at: new Date().toISOString(),
};
process.stdout.write(
  `${machine.cpus} cores of ${machine.model}, Linux ${machine.kernel}, Node ${machine.node}\n\n${renderTable(figures)}\n`,
);
if (values.out !== undefined)
  writeFileSync(values.out, `${JSON.stringify({ machine, figures }, undefined, 2)}\n`);
