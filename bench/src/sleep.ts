import { readdirSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { run } from "@torpor/base";
import { Sandbox, Torpor } from "@torpor/sdk";
import type { Instance } from "@torpor/test";
import type { BareRuntime } from "./bare-runtime.ts";
import { type Figure, summarize } from "./figures.ts";
import { poolAtRest } from "./waiting.ts";

/** Children of a fork, and bare restores beside each other. */
const CHILDREN = 8;

/** What fills a sandbox's memory: noise, or what an interpreter's heap is made of. Says when it is done, and stays. */
const FILLERS = {
  incompressible: "import os; block = os.urandom(SIZE)",
  typical:
    "block = []\nwhile len(block) * 250 < SIZE: block.append({'name': f'row {len(block)}', 'at': len(block)})",
} as const;

export type Filling = keyof typeof FILLERS;

/** A sandbox whose memory holds so much beside what the template's own does. */
async function filled(
  instance: Instance,
  template: string,
  megabytes: number,
  filling: Filling,
): Promise<Sandbox> {
  const sandbox = await Sandbox.create({
    url: instance.url,
    apiKey: instance.apiKey,
    template,
    memoryMb: 1024,
    ttlSeconds: 1800,
  });
  const program = `${FILLERS[filling].replace("SIZE", String(megabytes * 1_000_000))}\nopen('/tmp/filled', 'w')\nimport time\ntime.sleep(1e6)\n`;
  await sandbox.files.write("/tmp/fill.py", program);
  const { exitCode, stderr } = await sandbox.exec(
    "setsid python3 /tmp/fill.py > /tmp/fill.log 2>&1 < /dev/null & for i in $(seq 600); do test -e /tmp/filled && exit; sleep 0.1; done; cat /tmp/fill.log >&2; exit 1",
    { timeoutSeconds: 90 },
  );
  if (exitCode !== 0) throw new Error(`the memory could not be filled: ${stderr}`);
  return sandbox;
}

async function timed(act: () => Promise<unknown>): Promise<number> {
  const startedAt = performance.now();
  await act();
  return performance.now() - startedAt;
}

/** Longer than a virtual machine waits before it hands memory that is free to its own host (2 s, mm/page_reporting.c of Linux). */
const REST_MS = 3_000;

/**
 * What is at hand when a sandbox is put to sleep or woken. `cold`: nobody has used or freed memory for three seconds, as where
 * a sandbox is put to sleep for being idle; on a virtual machine that hands back what is free, whoever uses it next waits
 * for it several times as long as the work on it takes. `warm`: as much as it needs was freed just now.
 */
export type MemoryState = "cold" | "warm";

/** Has both sides find the same before each act. */
async function settle(memory: MemoryState, megabytes: number): Promise<void> {
  await delay(REST_MS);
  if (memory === "warm") await run(["python3", "-c", `bytearray(${2 * megabytes * 1_000_000})`]);
}

/** The one image of an instance that has one sandbox asleep, or one snapshot. */
function onlyImage(instance: Instance): string {
  const directory = join(instance.stateDir, "host", "images");
  const [id, ...others] = readdirSync(directory).filter((name) => !name.startsWith("."));
  if (id === undefined || others.length > 0)
    throw new Error(`${others.length} images too many in ${directory}`);
  return join(directory, id, "data");
}

export interface SleepTargets {
  hibernate?: number;
  wake?: number;
}

/**
 * hibernate and wake through the SDK, against `runsc checkpoint` and `runsc restore` of the very same image by hand, turn
 * by turn. `waiting`: whether empty processes wait, as they do by default.
 */
export async function sleepAndWake(
  instance: Instance,
  bare: BareRuntime,
  {
    template,
    megabytes,
    filling,
    memory,
    waiting,
    targets,
    rounds,
  }: {
    template: string;
    megabytes: number;
    filling: Filling;
    memory: MemoryState;
    waiting: boolean;
    targets: SleepTargets;
    rounds: number;
  },
): Promise<Figure[]> {
  await using sandbox = await filled(instance, template, megabytes, filling);
  const readings = {
    hibernate: [] as number[],
    wake: [] as number[],
    checkpoint: [] as number[],
    durable: [] as number[],
    restore: [] as number[],
  };
  let imageBytes = 0;
  for (let round = -1; round < rounds; round++) {
    if (waiting) await poolAtRest(instance, template);
    await settle(memory, megabytes);
    const hibernateMs = await timed(() => sandbox.hibernate());
    imageBytes = sandbox.info.image?.sizeBytes ?? 0;
    if (waiting) await poolAtRest(instance, template); // nothing is to be tidied up any more
    await settle(memory, megabytes);
    const machine = await bare.restore(onlyImage(instance));
    await settle(memory, megabytes);
    const { checkpointMs, durableMs } = await machine.checkpoint();
    await machine.remove();
    await settle(memory, megabytes);
    const wakeMs = await timed(() => sandbox.wake());
    if (round < 0) continue; // server and host have compiled what they run
    readings.hibernate.push(hibernateMs);
    readings.wake.push(wakeMs);
    readings.checkpoint.push(checkpointMs);
    readings.durable.push(durableMs);
    readings.restore.push(machine.restoreMs);
  }
  const hibernate = summarize(readings.hibernate).p50;
  const wake = summarize(readings.wake).p50;
  const checkpoint = summarize(readings.checkpoint).p50;
  const durable = summarize(readings.durable).p50;
  const restore = summarize(readings.restore).p50;
  const what = `${megabytes} MB, ${filling}, memory ${memory}`;
  const source = waiting ? "an empty process waits" : "nothing waits";
  return [
    {
      name: `bare \`runsc checkpoint\` to the end of its sandbox, ${what}, p50`,
      value: checkpoint,
      unit: "ms",
      against: `image of ${Math.round(imageBytes / 1e6)} MB`,
    },
    { name: `hibernate, ${what}, p50`, value: hibernate, unit: "ms" },
    {
      name: "  ratio to bare checkpoint",
      value: hibernate / checkpoint,
      unit: "x",
      ...most(targets.hibernate),
      against: `runsc checkpoint, n=${rounds}`,
    },
    { name: "bare `runsc checkpoint` and `sync` of its files, p50", value: durable, unit: "ms" },
    { name: "  ratio to bare checkpoint made durable", value: hibernate / durable, unit: "x" },
    { name: `bare \`runsc restore\` to first answer, ${what}, p50`, value: restore, unit: "ms" },
    { name: `wake, ${what} (${source}), p50`, value: wake, unit: "ms" },
    {
      name: "  ratio to bare restore",
      value: wake / restore,
      unit: "x",
      ...most(targets.wake),
      against: `runsc restore, n=${rounds}`,
    },
  ];
}

/** pause and resume through the SDK, against a bare restore of the template's golden image. */
export async function pauseAndResume(
  instance: Instance,
  bare: BareRuntime,
  template: string,
  rounds: number,
): Promise<Figure[]> {
  await using sandbox = await filled(instance, template, 40, "incompressible");
  const readings = { pause: [] as number[], resume: [] as number[], restore: [] as number[] };
  for (let round = -5; round < rounds; round++) {
    const pauseMs = await timed(() => sandbox.pause());
    const resumeMs = await timed(() => sandbox.resume());
    if (round < 0) continue;
    readings.pause.push(pauseMs);
    readings.resume.push(resumeMs);
    if (round % 5 === 0) readings.restore.push(await bare.restoreAndPing());
  }
  const [pause, resume, restore] = [readings.pause, readings.resume, readings.restore].map(summarize);
  const ratio = (verb: string, ms: number | undefined): Figure[] => [
    { name: `${verb}, p50`, value: ms ?? Number.NaN, unit: "ms" },
    {
      name: "  ratio to bare restore",
      value: (ms ?? Number.NaN) / (restore?.p50 ?? Number.NaN),
      unit: "x",
      most: 0.05,
      against: `runsc restore, n=${restore?.count}`,
    },
  ];
  return [...ratio("pause", pause?.p50), ...ratio("resume", resume?.p50)];
}

/**
 * A fork of 8 through the SDK, against 8 bare restores of the same image beside each other, all with memory cold.
 *
 * @param name which one it is: how many empty processes wait depends on what was asked for before
 */
export async function forkOfEight(
  instance: Instance,
  bare: BareRuntime,
  {
    template,
    megabytes,
    name,
    rounds,
  }: { template: string; megabytes: number; name: string; rounds: number },
): Promise<Figure[]> {
  await using parent = await filled(instance, template, megabytes, "incompressible");
  const { snapshots } = new Torpor({ url: instance.url, apiKey: instance.apiKey });
  const forks: number[] = [];
  const restores: number[] = [];
  const atRest = async (): Promise<void> => {
    await poolAtRest(instance, template);
    await settle("cold", megabytes);
  };
  for (let round = -1; round < rounds; round++) {
    await atRest();
    const startedAt = performance.now();
    const { children, failures } = await parent.fork({ count: CHILDREN });
    const forkMs = performance.now() - startedAt;
    await Promise.all(children.map((child) => child.destroy()));
    if (failures.length > 0) throw failures[0];
    const snapshot = await parent.snapshot();
    await atRest();
    const restoreMs = await bare.restoreTogether(onlyImage(instance), CHILDREN);
    await snapshots.delete(snapshot.id);
    if (round < 0) continue;
    forks.push(forkMs);
    restores.push(restoreMs);
  }
  const [fork, restore] = [summarize(forks), summarize(restores)];
  return [
    {
      name: `${CHILDREN} bare \`runsc restore\` together, ${megabytes} MB, p50`,
      value: restore.p50,
      unit: "ms",
    },
    { name: `fork of ${CHILDREN}, ${megabytes} MB, ${name}, p50`, value: fork.p50, unit: "ms" },
    {
      name: "  ratio to bare restores",
      value: fork.p50 / restore.p50,
      unit: "x",
      most: 1.3,
      against: `runsc restore, n=${restore.count}`,
    },
  ];
}

/** The target of a figure that has one. */
function most(target: number | undefined): { most?: number } {
  return target === undefined ? {} : { most: target };
}
