import { readFileSync, statSync, writeFileSync } from "node:fs";
import { mkdir, open, readFile, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { ProcessError, run } from "@torpor/base";
import { CodedError } from "@torpor/protocol";
import { type CgroupTree, type CgroupUsage, joining } from "../../cgroup.ts";
import { isAlive, processIdentity } from "../../process-identity.ts";
import { sync } from "../../sync.ts";
import type {
  CheckpointOptions,
  Driver,
  DriverInfo,
  MachineHandle,
  MachineLimits,
  MachinePlace,
  MachineRoot,
  Occupancy,
  RootSurroundings,
  Traffic,
} from "../driver.ts";
import { writeBundle } from "./bundle.ts";
import { DiskImages } from "./disk-image.ts";
import { mendState } from "./mend-state.ts";
import { Checkpoints, MACHINE_PREFIX } from "./checkpoints.ts";
import { PrimedCommand } from "./primed-command.ts";
import { type Platform, type RunscBuild } from "./runsc.ts";
import { readTraffic } from "./traffic.ts";

/** Memory of sentry and gofer beside the guest's own, measured at 20-50 MiB; the rest is head room for page tables. */
const MEMORY_OVERHEAD_MIB = 128;
/** The writable layer, in the machine's directory. */
const DISK_FILE = "disk.ext4";
/** In the machine's directory: where a restore that was started ahead waits, and what it then finds its image by. */
const PRIMED_GATE = "restore.gate";
const PRIMED_IMAGE = "restore.image";
const RESTORE_TIMEOUT_MS = 60_000;
/** Threads of sentry, gofer and systrap's stubs: a fork bomb inside must meet the inner limit long before this one. */
const PIDS_LIMIT = 8192;

/** The build of which it is known that it writes an image's memory in one go; later ones write it at several places at once. */
const SEQUENTIAL_BUILD = "20240729";

/** The same tree gives the same image but for the time it was made, which nothing reads: snapshots stand on it. */
const FIXED_UUID = ["-U", "00000000-0000-4000-8000-000000000000"];

/** The script that starts runsc in a place of its own: beside this file's source, whether it runs from src or from dist. */
export const LAUNCHER_PATH = fileURLToPath(new URL("../../../src/driver/gvisor/launch.sh", import.meta.url));

export interface GvisorDriverOptions {
  runsc: RunscBuild;
  platform: Platform;
  cgroups: CgroupTree;
  /** Holds one blank disk image per size. */
  cacheDir: string;
  /** Of this driver alone: holds what its commands need that are started ahead. Emptied by it. */
  spareDir: string;
  /** Whether /proc/sys/net must be hidden from runsc (see launch.sh). */
  hideNetSysctls: boolean;
}

/** Runs machines with gVisor's runsc. One runtime state directory a machine, so that removing it removes all. */
export class GvisorDriver implements Driver {
  readonly info: DriverInfo;
  readonly #options: GvisorDriverOptions;
  readonly #disks: DiskImages;
  /** By slot. */
  readonly #primed = new Map<number, PrimedCommand>();
  readonly #checkpoints: Checkpoints;
  /** Limits in force, by slot; of an adopted machine they are not known. */
  readonly #limits = new Map<number, MachineLimits>();

  constructor(options: GvisorDriverOptions) {
    this.#options = options;
    this.#disks = new DiskImages(options.cacheDir);
    this.#checkpoints = new Checkpoints(options.spareDir, options.runsc.path, this.#machineFlags());
    const { version } = options.runsc;
    this.info = {
      name: "gvisor",
      version,
      acceleration: options.platform,
      growingFiles: version.includes(SEQUENTIAL_BUILD) ? ["pages.img"] : [],
    };
  }

  async packRoot(
    rootfsDir: string,
    imagePath: string,
    signal?: AbortSignal,
    within?: RootSurroundings,
  ): Promise<MachineRoot> {
    const unfinished = `${imagePath}.unfinished`;
    try {
      // The subset of EROFS that the sentry reads: no inline data, long inodes, no compression.
      const pack = [
        "mkfs.erofs",
        "--quiet",
        "-Enoinline_data,force-inode-extended",
        ...FIXED_UUID,
        unfinished,
        rootfsDir,
      ] as const;
      await run(
        within === undefined
          ? pack
          : joining(within.joinFiles, ["nsenter", `--mount=/proc/${within.mountsOf}/ns/mnt`, "--", ...pack]),
        withSignal({ timeoutMs: 600_000, maxOutputBytes: 64 * 1024 }, signal),
      );
      await sync(unfinished);
      await rename(unfinished, imagePath);
    } catch (error) {
      await rm(unfinished, { force: true });
      const why = error instanceof Error ? error.message : String(error);
      throw new CodedError(
        "internal",
        `could not pack the root filesystem ${rootfsDir}: ${why}; mkfs.erofs is in the package erofs-utils`,
        { cause: error },
      );
    }
    return { imagePath };
  }

  async boot(
    root: MachineRoot,
    place: MachinePlace,
    limits: MachineLimits,
    signal?: AbortSignal,
  ): Promise<MachineHandle> {
    return this.#start("boot", ["run", "-detach"], root, place, limits, signal);
  }

  async prepare(
    root: MachineRoot,
    place: MachinePlace,
    limits: MachineLimits,
    signal?: AbortSignal,
  ): Promise<MachineHandle> {
    return this.#start("prepare", ["create"], root, place, limits, signal);
  }

  async start(
    root: MachineRoot,
    place: MachinePlace,
    limits: MachineLimits,
    imageDir: string,
    signal?: AbortSignal,
  ): Promise<MachineHandle> {
    const command = ["restore", "-detach", "-image-path", imageDir];
    return this.#start(`restore ${imageDir} into`, command, root, place, limits, signal);
  }

  async #start(
    verb: string,
    command: readonly string[],
    root: MachineRoot,
    place: MachinePlace,
    limits: MachineLimits,
    signal: AbortSignal | undefined,
  ): Promise<MachineHandle> {
    const { directory } = place;
    const cgroup = this.#options.cgroups.group(String(place.slot));
    try {
      await Promise.all([
        mkdir(join(directory, "runsc")),
        mkdir(join(directory, "overlay")),
        mkdir(join(directory, "root")),
      ]);
      await Promise.all([
        writeBundle({
          directory,
          rootImagePath: root.imagePath,
          emptyDir: join(directory, "root"),
          overlayDir: join(directory, "overlay"),
          netns: place.netns,
        }),
        this.#disks.create(place.diskMib, join(directory, DISK_FILE)),
      ]);
      cgroup.create(this.#cgroupLimits(limits));
      this.#limits.set(place.slot, limits);
      const pidFile = join(directory, "pid");
      const id = machineId(place);
      await this.#launch(
        place,
        { disk: true, join: cgroup.joinFiles },
        [...command, "-bundle", directory, "-pid-file", pidFile, id],
        signal,
      );
      const process = processIdentity(Number(await readFile(pidFile, "utf8")));
      if (process === undefined)
        throw new Error(
          `the sandbox process ended as soon as it had started: ${await this.#consoleTail(place)}`,
        );
      for (const pid of cgroup.pids()) spareRuntime(pid);
      return { place, process };
    } catch (error) {
      await this.kill(place);
      throw startFailure(verb, place, error);
    }
  }

  async prime({ place }: MachineHandle): Promise<void> {
    const { joinFiles } = this.#options.cgroups.group(String(place.slot));
    const imageDir = join(place.directory, PRIMED_IMAGE);
    const primed = await PrimedCommand.start(join(place.directory, PRIMED_GATE), (flags, signal, timeoutMs) =>
      this.#launch(
        place,
        { disk: false, join: joinFiles },
        [...flags, ...restoreCommand(place, imageDir)],
        signal,
        timeoutMs,
      ),
    );
    this.#primed.set(place.slot, primed);
  }

  async restore(prepared: MachineHandle, imageDir: string, signal?: AbortSignal): Promise<void> {
    const { place } = prepared;
    const primed = this.#primed.get(place.slot);
    this.#primed.delete(place.slot);
    try {
      await (primed === undefined || primed.isSpent
        ? this.#launch(place, { disk: false, join: [] }, restoreCommand(place, imageDir), signal)
        : primed.run(
            { [join(place.directory, PRIMED_IMAGE)]: imageDir },
            { timeoutMs: RESTORE_TIMEOUT_MS, signal },
          ));
    } catch (error) {
      throw startFailure(`restore ${imageDir} into`, place, error);
    }
  }

  pause({ place }: MachineHandle): Promise<void> {
    return this.#options.cgroups.group(String(place.slot)).freeze();
  }

  resume({ place }: MachineHandle): void {
    this.#options.cgroups.group(String(place.slot)).thaw();
  }

  async checkpoint(
    { place }: MachineHandle,
    imageDir: string,
    { signal, onCopied = () => {} }: CheckpointOptions = {},
  ): Promise<void> {
    const cgroup = this.#options.cgroups.group(String(place.slot));
    try {
      await mkdir(imageDir, { recursive: true });
      const limited = cgroup.liftCpuLimit();
      const fromMs = Date.now();
      const writing = this.#checkpoints.write({ stateDir: stateDir(place), imageDir, signal });
      await writing.finally(limited);
      const between = { fromMs, toMs: Date.now() };
      // Where monotonic time cannot be held it goes on, which the guest finds and attests.
      await Promise.all([onCopied(), mendState(join(imageDir, "checkpoint.img"), between)]);
    } catch (error) {
      await rm(imageDir, { recursive: true, force: true });
      // The build takes a connection that was never made for one to be reset (Endpoint.beforeSave), and fails over it.
      if (error instanceof ProcessError && error.stderr.includes("resetConnectionLocked"))
        throw new CodedError(
          "guest_unavailable",
          "a program inside is connecting to an address outside that does not answer, and gVisor cannot write a machine meanwhile; try again when the attempt has ended, which takes two minutes at most, or end that program",
          { cause: error },
        );
      throw startFailure("checkpoint", place, error);
    }
  }

  /** Keeps what the next checkpoint needs started ahead, until {@link GvisorDriver.close}. */
  keepReady(): void {
    this.#checkpoints.keepSpare();
  }

  /** Lets go of what it keeps of its own; machines run on. */
  close(): Promise<void> {
    return this.#checkpoints.close();
  }

  limit({ place: { slot } }: MachineHandle, limits: MachineLimits): void {
    const known = this.#limits.get(slot);
    const wanted = this.#cgroupLimits(limits);
    this.#options.cgroups.group(String(slot)).limit(wanted, known && this.#cgroupLimits(known));
    this.#limits.set(slot, limits);
  }

  stop({ slot }: MachinePlace): Promise<void> {
    return this.#options.cgroups.group(String(slot)).destroy();
  }

  async kill(place: MachinePlace, onDead: () => void = () => {}): Promise<void> {
    this.#primed.delete(place.slot);
    this.#limits.delete(place.slot);
    await this.#options.cgroups.group(String(place.slot)).destroy({ onEmpty: onDead });
    for (const name of ["runsc", "root", "overlay", DISK_FILE, "config.json", "pid"]) {
      await rm(join(place.directory, name), { recursive: true, force: true });
    }
  }

  adopt(machine: MachineHandle): boolean {
    return isAlive(machine.process);
  }

  stats({ place }: MachineHandle): CgroupUsage {
    return this.#options.cgroups.group(String(place.slot)).usage();
  }

  occupancy({ place }: MachineHandle): Occupancy {
    const disk = statSync(join(place.directory, DISK_FILE), { throwIfNoEntry: false });
    return {
      cacheBytes: this.#options.cgroups.group(String(place.slot)).cacheBytes(),
      diskBytes: (disk?.blocks ?? 0) * 512, // POSIX leaves the unit open; on Linux it is this
    };
  }

  traffic({ process }: MachineHandle): Traffic {
    return readTraffic(process.pid);
  }

  #cgroupLimits({ cpu, memoryMib }: MachineLimits): { cpu: number; memoryMib: number; pids: number } {
    return { cpu, memoryMib: memoryMib + MEMORY_OVERHEAD_MIB, pids: PIDS_LIMIT };
  }

  #flags(place: MachinePlace): string[] {
    return [
      `--root=${stateDir(place)}`,
      ...this.#machineFlags(),
      `--panic-log=${join(place.directory, "panic.log")}`,
    ];
  }

  /** Those that are the same for every machine. */
  #machineFlags(): string[] {
    return [
      `--platform=${this.#options.platform}`,
      "--network=sandbox",
      // The sentry opens no file of the host by itself, so it runs as nobody, in an empty root, without a capability.
      "--directfs=false",
      "--ignore-cgroups",
      // Without it an external connection in any state makes a checkpoint fail.
      "--net-disconnect-ok=true",
    ];
  }

  /** Runs one runsc command in a mount namespace of its own; standard output and error go to the machine's console. */
  async #launch(
    place: MachinePlace,
    own: { disk: boolean; join: readonly string[] },
    command: readonly string[],
    signal: AbortSignal | undefined,
    timeoutMs = RESTORE_TIMEOUT_MS,
  ): Promise<void> {
    const disk = own.disk ? [join(place.directory, DISK_FILE), join(place.directory, "overlay")] : ["-", "-"];
    const consoleLog = await open(join(place.directory, "console.log"), "a", 0o600);
    try {
      await run(
        [
          "unshare",
          "--mount",
          "--propagation",
          "private",
          "--",
          "/bin/sh",
          LAUNCHER_PATH,
          this.#options.hideNetSysctls ? "hide" : "show",
          ...disk,
          ...own.join,
          "--",
          this.#options.runsc.path,
          ...this.#flags(place),
          ...command,
        ],
        withSignal({ timeoutMs, outputFd: consoleLog.fd }, signal),
      );
    } catch (error) {
      if (error instanceof ProcessError)
        throw new Error(`${error.message}: ${await this.#consoleTail(place)}`, { cause: error });
      throw error;
    } finally {
      await consoleLog.close();
    }
  }

  async #consoleTail(place: MachinePlace): Promise<string> {
    const text = await readFile(join(place.directory, "console.log"), "utf8").catch(() => "");
    return text.trim().split("\n").slice(-5).join("\n");
  }
}

/** Whether the namespace `netns` shows the file that old runsc builds take as the mark of the root namespace. */
export async function netSysctlsMustHide(netns: string): Promise<boolean> {
  return run(["ip", "netns", "exec", netns, "test", "-e", "/proc/sys/net/core/rmem_default"]).then(
    () => true,
    () => false,
  );
}

/**
 * Takes the launcher's mark off sentry and gofer, so that the kernel ends a process of the guest that uses too much
 * memory and not the whole machine: guest memory is a shared file, and the sentry is often the largest process that
 * maps it. The others are systrap's stubs, which have no name; those made later inherit the mark.
 */
function spareRuntime(pid: number): void {
  try {
    if (readFileSync(`/proc/${pid}/cmdline`, "utf8").startsWith("runsc-"))
      writeFileSync(`/proc/${pid}/oom_score_adj`, "0");
  } catch (error) {
    if (!["ENOENT", "ESRCH"].includes((error as NodeJS.ErrnoException).code ?? "")) throw error;
  }
}

function restoreCommand(place: MachinePlace, imageDir: string): string[] {
  return ["restore", "-detach", "-bundle", place.directory, "-image-path", imageDir, machineId(place)];
}

function machineId(place: MachinePlace): string {
  return `${MACHINE_PREFIX}${place.slot}`;
}

function stateDir(place: MachinePlace): string {
  return join(place.directory, "runsc");
}

function withSignal<T extends object>(
  options: T,
  signal: AbortSignal | undefined,
): T & { signal?: AbortSignal } {
  return signal === undefined ? options : { ...options, signal };
}

function startFailure(verb: string, place: MachinePlace, cause: unknown): CodedError {
  const why = cause instanceof Error ? cause.message : String(cause);
  return new CodedError("internal", `could not ${verb} the gVisor machine in slot ${place.slot}: ${why}`, {
    cause,
  });
}
