import { existsSync, readdirSync, readFileSync, readlinkSync } from "node:fs";
import { basename, join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { Sandbox } from "@torpor/sdk";
import { type Instance, templateCacheDir } from "@torpor/test";
import type { Figure } from "./figures.ts";
import { poolAtRest } from "./waiting.ts";

const WATCH_MS = 5000;
/** USER_HZ, fixed by the kernel's ABI on all platforms Torpor runs on. */
const TICKS_PER_SECOND = 100;

/** Processor and memory of what waits in the pool. */
export async function waitingMember(
  instance: Instance,
  template: string,
  mostMib?: number,
): Promise<Figure[]> {
  await poolAtRest(instance, template);
  await delay(1000);
  const slots = readdirSync(join(instance.stateDir, "host", "machines"));
  // Frozen members only: an empty process that waits for an image is not.
  const members = slots
    .filter((slot) => isFrozen(instance, slot) && standsOn(instance, slot, template))
    .map(processesOf(instance));
  if (members.length === 0) throw new Error("no paused machine was found");
  const before = members.map(cpuTicks);
  await delay(WATCH_MS);
  const used = members.map((pids, index) => cpuTicks(pids) - (before[index] ?? 0));
  return [
    {
      name: `waiting copy of ${template}: CPU`,
      value: (100 * Math.max(...used)) / TICKS_PER_SECOND / (WATCH_MS / 1000),
      unit: "% of a core",
      most: 0,
      against: `${members.length} members, ${WATCH_MS / 1000} s`,
    },
    {
      name: `waiting copy of ${template}: Pss`,
      value: Math.max(...members.map(pssMib)),
      unit: "MiB",
      ...(mostMib === undefined ? {} : { most: mostMib }),
      against: "largest; sandbox, gofer and stubs",
    },
  ];
}

/** Processor of one sandbox that is awake and does nothing. */
export async function idleAwake(instance: Instance, platform: string): Promise<Figure[]> {
  await using sandbox = await Sandbox.create({
    url: instance.url,
    apiKey: instance.apiKey,
    template: "base",
  });
  await sandbox.exec("true");
  await delay(2000);
  const usage = (): number => cpuMs(instance, sandbox.id);
  const before = usage();
  await delay(WATCH_MS);
  return [
    {
      name: `idle awake sandbox, ${platform}: CPU`,
      value: (100 * (usage() - before)) / WATCH_MS,
      unit: "% of a core",
    },
  ];
}

/** What a platform costs where it differs: starting programs, system calls, plain computing. */
export async function platformWork(instance: Instance, platform: string): Promise<Figure[]> {
  await using sandbox = await Sandbox.create({
    url: instance.url,
    apiKey: instance.apiKey,
    template: "base",
    cpu: 2,
    ttlSeconds: 600,
  });
  const seconds = async (command: string): Promise<number> => {
    const script = `s=$(date +%s%N); ${command}; e=$(date +%s%N); echo $((e-s))`;
    const { stdout, stderr } = await sandbox.exec(["/bin/sh", "-c", script], { timeoutSeconds: 300 });
    const value = Number(stdout.trim().split("\n").at(-1)) / 1e9;
    if (!Number.isFinite(value)) throw new Error(`no time came back: ${stdout} ${stderr}`);
    return value;
  };
  const calls = 20_000;
  const spawns = 40;
  return [
    {
      name: `starting a program, ${platform}`,
      value:
        (1000 * (await seconds(`i=0; while [ $i -lt ${spawns} ]; do /bin/true; i=$((i+1)); done`))) / spawns,
      unit: "ms",
    },
    {
      name: `one system call, ${platform}`,
      value:
        (1e6 * (await seconds(`dd if=/dev/zero of=/dev/null bs=1 count=${calls} 2>/dev/null`))) / (2 * calls),
      unit: "us",
    },
    {
      name: `computing, ${platform}: Python loop of 3 million`,
      value: await seconds("python3 -c 'sum(i*i for i in range(3000000))'"),
      unit: "s",
    },
  ];
}

/** Every process of a machine's cgroup, on v1 or v2. */
function processesOf(instance: Instance): (slot: string) => number[] {
  return (slot) =>
    readFileSync(join(cgroupDirectory(instance, "memory"), slot, "cgroup.procs"), "utf8")
      .split("\n")
      .filter(Boolean)
      .map(Number);
}

function cgroupDirectory(instance: Instance, controller: string): string {
  const v1 = join("/sys/fs/cgroup", controller, instance.names.cgroup);
  try {
    readdirSync(v1);
    return v1;
  } catch {
    return join("/sys/fs/cgroup", instance.names.cgroup);
  }
}

/** Processor that the processes of a sandbox have used, milliseconds. */
export function cpuMs(instance: Instance, sandboxId: string): number {
  return Number(readFileSync(cpuFile(instance, sandboxId), "utf8").trim()) / 1e6;
}

/** The same of one process. */
export function processCpuMs(pid: number): number {
  return (1000 * cpuTicks([pid])) / TICKS_PER_SECOND;
}

function cpuFile(instance: Instance, sandboxId: string): string {
  const slot = readdirSync(join(instance.stateDir, "host", "machines")).find(
    (name) => slotOf(instance, sandboxId) === name,
  );
  return join(cgroupDirectory(instance, "cpuacct"), slot ?? "", "cpuacct.usage");
}

/** The slot of a sandbox, from the host's log line of its creation. */
function slotOf(instance: Instance, sandboxId: string): string | undefined {
  for (const line of instance.log("host").split("\n")) {
    if (!line.includes(sandboxId) || !line.includes('"machine.create"')) continue;
    return String((JSON.parse(line) as { slot: number }).slot);
  }
  return undefined;
}

function stat(pid: number): string[] {
  const text = readFileSync(`/proc/${pid}/stat`, "utf8");
  return text.slice(text.lastIndexOf(")") + 2).split(" ");
}

/** Whether the machine in a slot was made from the template, by the packed root its bundle names. */
function standsOn(instance: Instance, slot: string, template: string): boolean {
  const hash = basename(readlinkSync(join(templateCacheDir(), "by-name", template)));
  return readFileSync(join(instance.stateDir, "host", "machines", slot, "config.json"), "utf8").includes(
    hash,
  );
}

function isFrozen(instance: Instance, slot: string): boolean {
  const v1 = join("/sys/fs/cgroup/freezer", instance.names.cgroup, slot, "freezer.state");
  if (existsSync(v1)) return readFileSync(v1, "utf8").trim() === "FROZEN";
  return /^frozen 1$/m.test(
    readFileSync(join(cgroupDirectory(instance, "memory"), slot, "cgroup.events"), "utf8"),
  );
}

function cpuTicks(pids: readonly number[]): number {
  return pids.reduce((sum, pid) => sum + Number(stat(pid)[11]) + Number(stat(pid)[12]), 0);
}

/**
 * Pss of a machine. Several of systrap's stub processes share one address space, which each of them would report whole:
 * those with the very same map are counted once.
 */
function pssMib(pids: readonly number[]): number {
  const byMap = new Map(pids.map((pid) => [readFileSync(`/proc/${pid}/maps`, "utf8"), pid]));
  return [...byMap.values()].reduce(
    (sum, pid) =>
      sum + Number(/^Pss:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/smaps_rollup`, "utf8"))?.[1] ?? 0) / 1024,
    0,
  );
}
