import { mkdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { CgroupUsage } from "../../src/cgroup.ts";
import type {
  CheckpointOptions,
  Driver,
  DriverInfo,
  MachineHandle,
  MachineLimits,
  MachinePlace,
  MachineRoot,
  Occupancy,
  Traffic,
} from "../../src/driver/driver.ts";
import { FakeGuest, type InitBehaviour } from "./fake-guest.ts";

export interface FakeMachine {
  handle: MachineHandle;
  /** There once an image is restored or a root booted. */
  guest: FakeGuest | undefined;
  paused: boolean;
  alive: boolean;
  limits: MachineLimits;
  oomKills: number;
  cpuMs: number;
  traffic: Traffic;
  /** What it remembers: goes into an image and comes back out of it. */
  memory: string;
}

/** Steps at which a test can make the driver fail or wait. */
export type DriverStep =
  | "prepare"
  | "prime"
  | "restore"
  | "limit"
  | "pause"
  | "resume"
  | "checkpoint"
  | "stop"
  | "kill";

/** The one file of a fake image. */
export const IMAGE_FILE = "pages.img";

/** Runs no machines but keeps the books a runtime would, and a guest agent on a loopback address for each. */
export class FakeDriver implements Driver {
  /** What a machine has used before it is anybody's, milliseconds. */
  bootCpuMs = 0;
  readonly info: DriverInfo = {
    name: "gvisor",
    version: "fake",
    acceleration: "systrap",
    growingFiles: [IMAGE_FILE],
  };
  /** Machines in place by slot, dead ones too: until `kill` they are a leak. */
  readonly machines = new Map<number, FakeMachine>();
  /** Every slot a guest was ever restored in, in order. */
  readonly restored: number[] = [];
  kills = 0;
  initBehaviour: InitBehaviour = "attests";
  /** Commands that the guests say run inside. */
  runningExecs: string[] = [];
  /** Whether restored guests come up open, as none ever should. */
  restoresUnlocked = false;
  #nextPid = 5_000_000; // above the kernel's largest, so that no real process is ever meant
  readonly #failures = new Map<DriverStep, { left: number; error: Error }>();
  readonly #holds = new Map<DriverStep, Promise<void>>();

  async packRoot(_rootfsDir: string, imagePath: string): Promise<MachineRoot> {
    return { imagePath };
  }

  /** Makes a step fail the next `times` times. */
  fail(step: DriverStep, times = 1, error = new Error(`the fake driver fails to ${step}`)): void {
    this.#failures.set(step, { left: times, error });
  }

  /** Makes a step wait; the answer lets everything go on. */
  hold(step: DriverStep): () => void {
    let release = (): void => {};
    this.#holds.set(step, new Promise((resolve) => (release = resolve)));
    return () => {
      this.#holds.delete(step);
      release();
    };
  }

  /** Ends a machine's process, as a crash does. */
  async crash(slot: number, panic?: string): Promise<void> {
    const machine = this.machine(slot);
    machine.alive = false;
    if (panic !== undefined) await writeFile(join(machine.handle.place.directory, "panic.log"), panic);
    await machine.guest?.close();
  }

  machine(slot: number): FakeMachine {
    const machine = this.machines.get(slot);
    if (machine === undefined) throw new Error(`the fake driver has no machine in slot ${slot}`);
    return machine;
  }

  async boot(root: MachineRoot, place: MachinePlace, limits: MachineLimits): Promise<MachineHandle> {
    const handle = await this.prepare(root, place, limits);
    await this.restore(handle, root.imagePath);
    return handle;
  }

  async prepare(
    _root: MachineRoot,
    place: MachinePlace,
    limits: MachineLimits,
    signal?: AbortSignal,
  ): Promise<MachineHandle> {
    await this.#step("prepare", signal);
    const handle = { place, process: { pid: this.#nextPid++, startTime: place.slot } };
    this.machines.set(place.slot, {
      handle,
      guest: undefined,
      paused: false,
      alive: true,
      limits,
      oomKills: 0,
      cpuMs: this.bootCpuMs,
      traffic: { inBytes: 0, outBytes: 0 },
      memory: "",
    });
    return handle;
  }

  async prime(): Promise<void> {
    await this.#step("prime");
  }

  async restore({ place }: MachineHandle, imageDir: string, signal?: AbortSignal): Promise<void> {
    await this.#step("restore", signal);
    this.restored.push(place.slot);
    const machine = this.machine(place.slot);
    let files = "";
    if (imageDir !== "") {
      const image = JSON.parse(await readFile(join(imageDir, IMAGE_FILE), "utf8")) as {
        memory: string;
        files: string;
      };
      machine.memory = image.memory;
      files = image.files;
    }
    machine.guest = await FakeGuest.listen(
      place.address,
      () => this.initBehaviour,
      () => this.runningExecs,
      !this.restoresUnlocked,
    );
    machine.guest.files = files;
  }

  async start(
    root: MachineRoot,
    place: MachinePlace,
    limits: MachineLimits,
    imageDir: string,
    signal?: AbortSignal,
  ): Promise<MachineHandle> {
    const handle = await this.prepare(root, place, limits, signal);
    await this.restore(handle, imageDir, signal);
    return handle;
  }

  async pause({ place }: MachineHandle): Promise<void> {
    await this.#step("pause");
    const machine = this.machines.get(place.slot); // one adopted from a journal is not in the books
    if (machine !== undefined) machine.paused = true;
  }

  resume({ place }: MachineHandle): void {
    this.#failIfAsked("resume");
    const machine = this.machines.get(place.slot);
    if (machine !== undefined) machine.paused = false;
  }

  async checkpoint(
    { place }: MachineHandle,
    imageDir: string,
    { signal, onCopied }: CheckpointOptions = {},
  ): Promise<void> {
    const { memory, guest, paused } = this.machine(place.slot);
    if (paused) throw new Error("the fake driver cannot photograph a machine that is stopped");
    // A restored copy must be locked by construction.
    if (guest?.locked !== true) throw new Error("the fake driver was to photograph an open machine");
    await mkdir(imageDir, { recursive: true });
    await this.#step("checkpoint", signal);
    await writeFile(join(imageDir, IMAGE_FILE), JSON.stringify({ memory, files: guest.files }));
    await onCopied?.();
  }

  limit({ place }: MachineHandle, limits: MachineLimits): void {
    this.#failIfAsked("limit");
    const machine = this.machines.get(place.slot);
    if (machine !== undefined) machine.limits = limits;
  }

  async stop({ slot }: MachinePlace): Promise<void> {
    await this.#step("stop");
    const machine = this.machines.get(slot);
    if (machine?.alive === true) await machine.guest?.close();
    this.machines.delete(slot);
  }

  async kill({ slot }: MachinePlace, onDead?: () => void): Promise<void> {
    await this.#step("kill");
    this.kills += 1;
    const machine = this.machines.get(slot);
    if (machine?.alive === true) await machine.guest?.close();
    this.machines.delete(slot);
    onDead?.();
  }

  adopt({ place, process }: MachineHandle): boolean {
    const machine = this.machines.get(place.slot);
    // One that this driver did not start was adopted from a journal: the process was looked at by its identity.
    return machine === undefined || (machine.alive && machine.handle.process.pid === process.pid);
  }

  stats({ place }: MachineHandle): CgroupUsage {
    return {
      cpuMs: this.machines.get(place.slot)?.cpuMs ?? 0,
      memoryBytes: 0,
      memoryPeakBytes: 0,
      oomKills: this.machines.get(place.slot)?.oomKills ?? 0,
    };
  }

  occupancy(): Occupancy {
    return { cacheBytes: 0, diskBytes: 4096 };
  }

  traffic({ place }: MachineHandle): Traffic {
    return this.machines.get(place.slot)?.traffic ?? { inBytes: 0, outBytes: 0 };
  }

  async #step(step: DriverStep, signal?: AbortSignal): Promise<void> {
    await this.#holds.get(step);
    signal?.throwIfAborted();
    this.#failIfAsked(step);
  }

  #failIfAsked(step: DriverStep): void {
    const failure = this.#failures.get(step);
    if (failure === undefined || failure.left <= 0) return;
    failure.left--;
    throw failure.error;
  }
}
