import { existsSync, mkdirSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";

/** Limits of one machine, runtime overhead included. */
export interface CgroupLimits {
  /** Cores; fractions allowed. */
  cpu: number;
  memoryMib: number;
  /** Generous: the runtime's own threads count, and reaching it kills the machine. The user's limit is set inside. */
  pids: number;
}

export interface CgroupUsage {
  cpuMs: number;
  memoryBytes: number;
  memoryPeakBytes: number;
  /** Times the kernel ended something in this group for lack of memory. */
  oomKills: number;
}

type Controller = "cpu" | "cpuacct" | "freezer" | "memory" | "pids";

/** Where the controllers are mounted: one tree on v2, one a controller on v1; a hybrid machine has v1 ones. */
export interface CgroupMounts {
  version: 1 | 2;
  /** Mount directory by controller. On v2 all are the same. */
  directories: Partial<Record<Controller, string>>;
}

/**
 * Finds the cgroup controllers of this machine from the text of /proc/self/mountinfo. v1 mounts win, since a
 * controller that is mounted there is not available on v2. A machine without a controller runs without that limit.
 */
export function findCgroupMounts(
  mountinfo: string,
  controllersOf: (directory: string) => string[],
): CgroupMounts {
  const directories: Partial<Record<Controller, string>> = {};
  let unified: string | undefined;
  for (const line of mountinfo.split("\n")) {
    const [left, right] = line.split(" - ");
    const mountPoint = left?.split(" ")[4];
    const [type, , options] = right?.split(" ") ?? [];
    if (mountPoint === undefined) continue;
    if (type === "cgroup2") unified ??= mountPoint;
    if (type !== "cgroup") continue;
    for (const controller of ["cpu", "cpuacct", "freezer", "memory", "pids"] as const) {
      if (options?.split(",").includes(controller) === true) directories[controller] ??= mountPoint;
    }
  }
  if (Object.keys(directories).length > 0) return { version: 1, directories };
  if (unified !== undefined) {
    const available = controllersOf(unified);
    for (const controller of ["cpu", "memory", "pids"] as const) {
      if (available.includes(controller)) directories[controller] = unified;
    }
  }
  return { version: 2, directories };
}

/** The mounts of the machine this runs on. */
export function systemCgroupMounts(): CgroupMounts {
  return findCgroupMounts(readFileSync("/proc/self/mountinfo", "utf8"), (directory) =>
    readFileSync(join(directory, "cgroup.controllers"), "utf8").trim().split(/\s+/),
  );
}

/** The command, as a member of a cgroup from its first instruction on. */
export function joining(
  joinFiles: readonly string[],
  argv: readonly [string, ...string[]],
): readonly [string, ...string[]] {
  const join = 'while [ "$1" != -- ]; do echo 0 >"$1" || exit 1; shift; done; shift; exec "$@"';
  return joinFiles.length === 0 ? argv : ["sh", "-c", join, "sh", ...joinFiles, "--", ...argv];
}

/** The cgroups of one instance: a parent directory per controller and one child per machine. */
export class CgroupTree {
  readonly #mounts: CgroupMounts;
  readonly #name: string;

  constructor(mounts: CgroupMounts, name: string) {
    this.#mounts = mounts;
    this.#name = name;
  }

  /** Makes the parent directories. Idempotent. */
  open(): void {
    for (const mount of new Set(Object.values(this.#mounts.directories))) {
      mkdirSync(join(mount, this.#name), { recursive: true });
      if (this.#mounts.version === 2) {
        const wanted = Object.keys(this.#mounts.directories)
          .map((controller) => `+${controller}`)
          .join(" ");
        writeFileSync(join(mount, "cgroup.subtree_control"), wanted);
        writeFileSync(join(mount, this.#name, "cgroup.subtree_control"), wanted);
      }
    }
  }

  /** Removes the parents; machines must be gone. Idempotent. */
  close(): void {
    for (const mount of new Set(Object.values(this.#mounts.directories)))
      removeDirectory(join(mount, this.#name));
  }

  group(child: string): Cgroup {
    return new Cgroup(this.#mounts, join(this.#name, child));
  }

  /** Children in place, known or not. */
  children(): Set<string> {
    const names = new Set<string>();
    for (const mount of new Set(Object.values(this.#mounts.directories))) {
      const parent = join(mount, this.#name);
      if (!existsSync(parent)) continue;
      for (const entry of readdirSync(parent, { withFileTypes: true }))
        if (entry.isDirectory()) names.add(entry.name);
    }
    return names;
  }
}

/** A killed group is looked at every millisecond for so long: its memory goes in a few tens. */
const SHORT_WAITS = 100;

/** One machine's cgroup on every controller. */
export class Cgroup {
  readonly #version: 1 | 2;
  readonly #paths: Partial<Record<Controller, string>> = {};

  constructor(mounts: CgroupMounts, path: string) {
    this.#version = mounts.version;
    for (const [controller, mount] of Object.entries(mounts.directories)) {
      this.#paths[controller as Controller] = join(mount, path);
    }
  }

  #directories(): string[] {
    return [...new Set(Object.values(this.#paths))];
  }

  /** Makes the group and sets its limits. */
  create(limits: CgroupLimits): void {
    for (const directory of this.#directories()) mkdirSync(directory, { recursive: true });
    this.limit(limits);
  }

  /** Files into which a process writes its pid to join. */
  get joinFiles(): string[] {
    return this.#directories().map((directory) => join(directory, "cgroup.procs"));
  }

  /** Changes the limits of a living group; those of `known`, which hold already, are not written again. */
  limit({ cpu, memoryMib, pids }: CgroupLimits, known?: CgroupLimits): void {
    if (cpu !== known?.cpu) this.#limitCpu(cpu, known === undefined);
    if (memoryMib !== known?.memoryMib) {
      const file = this.#version === 2 ? "memory.max" : "memory.limit_in_bytes";
      this.#write("memory", file, String(memoryMib * 1024 * 1024));
    }
    if (pids !== known?.pids) this.#write("pids", "pids.max", String(pids));
  }

  #limitCpu(cpu: number, setPeriod: boolean): void {
    const periodUs = 100_000;
    const quotaUs = Math.max(1000, Math.round(cpu * periodUs));
    if (this.#version === 2) this.#write("cpu", "cpu.max", `${quotaUs} ${periodUs}`);
    else {
      if (setPeriod) this.#write("cpu", "cpu.cfs_period_us", String(periodUs));
      this.#write("cpu", "cpu.cfs_quota_us", String(quotaUs));
    }
  }

  /** Whatever else wants the CPU goes before it: a tenth of what others weigh. */
  yieldCpu(): void {
    if (this.#version === 2) this.#write("cpu", "cpu.weight", "10");
    else this.#write("cpu", "cpu.shares", "102");
  }

  /** What its memory is limited to is all: nothing of it goes to swap. Without effect where the kernel does not count swap. */
  withoutSwap(memoryMib: number): void {
    const [file, value] =
      this.#version === 2
        ? ["memory.swap.max", "0"]
        : ["memory.memsw.limit_in_bytes", String(memoryMib * 1024 * 1024)];
    if (existsSync(join(this.#paths.memory ?? "", file))) this.#write("memory", file, value);
  }

  /** Takes its CPU limit off for a while. Answers what puts it back, unless it was changed meanwhile. */
  liftCpuLimit(): () => void {
    const file = this.#version === 2 ? "cpu.max" : "cpu.cfs_quota_us";
    const unlimited = this.#version === 2 ? "max" : "-1";
    const read = (): string => readText(join(this.#paths.cpu ?? "", file)).trim();
    const before = read();
    if (before === "") return () => {}; // no such controller, or no group any more
    this.#write("cpu", file, unlimited);
    const lifted = read();
    return () => {
      if (read() === lifted) this.#write("cpu", file, before);
    };
  }

  /** Host pids in the group. */
  pids(): number[] {
    const pids = new Set<number>();
    for (const directory of this.#directories()) {
      for (const line of readText(join(directory, "cgroup.procs")).split("\n"))
        if (line !== "") pids.add(Number(line));
    }
    return [...pids];
  }

  /** Counters since the group was made; zeros for a controller this machine has not. */
  usage(): CgroupUsage {
    const memory = this.#paths.memory ?? "";
    if (this.#version === 2) {
      return {
        cpuMs: field(readText(join(this.#paths.cpu ?? "", "cpu.stat")), "usage_usec") / 1000,
        memoryBytes: Number(readText(join(memory, "memory.current"))),
        memoryPeakBytes: Number(readText(join(memory, "memory.peak"))),
        oomKills: field(readText(join(memory, "memory.events")), "oom_kill"),
      };
    }
    return {
      cpuMs: Number(readText(join(this.#paths.cpuacct ?? "", "cpuacct.usage"))) / 1e6,
      memoryBytes: Number(readText(join(memory, "memory.usage_in_bytes"))),
      memoryPeakBytes: Number(readText(join(memory, "memory.max_usage_in_bytes"))),
      oomKills: field(readText(join(memory, "memory.oom_control")), "oom_kill"),
    };
  }

  /** Pages of files in its memory that the kernel can let go of; zero on a machine without the controller. */
  cacheBytes(): number {
    const text = readText(join(this.#paths.memory ?? "", "memory.stat"));
    // What is shared memory is counted with the files, and is as much in use as any other.
    const files = field(text, this.#version === 2 ? "file" : "cache");
    return Math.max(0, files - field(text, "shmem"));
  }

  /**
   * Stops every process of the group where it stands; it then uses no CPU. All of them, not the sandbox process alone:
   * systrap's stubs wait for it by spinning. Answers when they have stopped.
   */
  async freeze(timeoutMs = 5000): Promise<void> {
    const deadline = performance.now() + timeoutMs;
    this.#setFrozen(true);
    while (!this.#isFrozen()) {
      if (performance.now() > deadline)
        throw new Error(`cgroup ${this.#directories().join(", ")} does not freeze`);
      await delay(1);
    }
  }

  /** Lets them go on. */
  thaw(): void {
    this.#setFrozen(false);
  }

  #setFrozen(frozen: boolean): void {
    if (this.#version === 2) this.#write("memory", "cgroup.freeze", frozen ? "1" : "0");
    else if (this.#paths.freezer !== undefined)
      this.#write("freezer", "freezer.state", frozen ? "FROZEN" : "THAWED");
    else for (const pid of this.pids()) signal(pid, frozen ? "SIGSTOP" : "SIGCONT"); // v1 without a freezer
  }

  #isFrozen(): boolean {
    if (this.#version === 2)
      return field(readText(join(this.#paths.memory ?? "", "cgroup.events")), "frozen") === 1;
    return (
      this.#paths.freezer === undefined ||
      readText(join(this.#paths.freezer, "freezer.state")).trim() === "FROZEN"
    );
  }

  /**
   * KILLs everything in the group, waits until it is empty and removes it. Idempotent. The first signals are out when this
   * returns its promise.
   *
   * @param onEmpty called as soon as its last process is gone, before the group is removed
   * @throws Error when something still lives after `timeoutMs` (default 10,000), naming the pids.
   */
  async destroy({
    onEmpty,
    timeoutMs = 10_000,
  }: { onEmpty?: () => void; timeoutMs?: number } = {}): Promise<void> {
    const deadline = performance.now() + timeoutMs;
    for (let tries = 0; ; tries += 1) {
      const pids = this.pids();
      if (pids.length === 0) break;
      if (performance.now() > deadline)
        throw new Error(`processes ${pids.join(", ")} outlive SIGKILL in ${this.#directories().join(", ")}`);
      for (const pid of pids) signal(pid, "SIGKILL");
      if (tries === 0) this.#hurry();
      this.#thawKilled();
      await delay(tries < SHORT_WAITS ? 1 : 20);
    }
    onEmpty?.();
    // A group whose last process has just been reaped may be busy for a moment.
    while (!this.#directories().every(removeDirectory)) {
      if (performance.now() > deadline)
        throw new Error(`cgroup ${this.#directories().join(", ")} cannot be removed`);
      await delay(5);
    }
  }

  /**
   * Dying takes CPU time too, for giving memory back: what is told to end goes before what computes beside it, and its own
   * limit no longer holds it up.
   */
  #hurry(): void {
    try {
      if (this.#version === 2) {
        this.#write("cpu", "cpu.max", "max");
        this.#write("cpu", "cpu.weight", "10000"); // the most there is, as below; 100 is the default
      } else {
        this.#write("cpu", "cpu.cfs_quota_us", "-1");
        this.#write("cpu", "cpu.shares", "262144"); // 1024 is the default
      }
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error; // gone already
    }
  }

  /** On v1 a frozen process dies only when it is thawed. */
  #thawKilled(): void {
    try {
      this.thaw();
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error; // the freezer's part of the group is gone already
    }
  }

  #write(controller: Controller, file: string, value: string): void {
    const directory = this.#paths[controller];
    if (directory !== undefined) writeFileSync(join(directory, file), value);
  }
}

function signal(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ESRCH") throw error;
  }
}

/** Whether the directory is gone afterwards. */
function removeDirectory(directory: string): boolean {
  try {
    rmdirSync(directory);
    return true;
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === "ENOENT") return true;
    if (code === "EBUSY" || code === "ENOTEMPTY") return false;
    throw error;
  }
}

/** Text of a cgroup file; empty when the group or the file does not exist. */
function readText(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === "ENOENT" || code === "ENODEV") return "";
    throw error;
  }
}

function field(text: string, name: string): number {
  const line = text.split("\n").find((candidate) => candidate.startsWith(`${name} `));
  return line === undefined ? 0 : Number(line.slice(name.length + 1));
}
