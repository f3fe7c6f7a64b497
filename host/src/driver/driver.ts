import type { CgroupUsage } from "../cgroup.ts";
import type { ProcessIdentity } from "../process-identity.ts";

/** What a machine is made from: an immutable root filesystem, as {@link Driver.packRoot} made it. */
export interface MachineRoot {
  /** A file, never written to; all machines of a template share it. */
  imagePath: string;
}

/** What surrounds a root that this process does not have in its own mounts. */
export interface RootSurroundings {
  /** A process that sees it. */
  mountsOf: number;
  /** Files of the cgroup that reading it counts in. */
  joinFiles: readonly string[];
}

/** Limits of a machine as its user sees them; the driver adds its own overhead. */
export interface MachineLimits {
  cpu: number;
  memoryMib: number;
}

/** Place a machine runs in, prepared by the host before the driver is asked. */
export interface MachinePlace {
  /** Unique among living machines of this host; names the machine's parts. */
  slot: number;
  /** Random and never used again: what the one machine that runs here is known by. Empty where only the place matters. */
  incarnationId: string;
  /** Directory of this machine alone, owned by root, mode 0700. Removed by the host afterwards. */
  directory: string;
  /** Name of the network namespace, below /run/netns. */
  netns: string;
  /** Address at which the guest is reached. */
  address: string;
  /** Size of the writable layer. */
  diskMib: number;
}

/** What went over a machine's network, as the machine sees it. */
export interface Traffic {
  inBytes: number;
  outBytes: number;
}

/** What a machine holds on the host, beside what its cgroup's counters say. */
export interface Occupancy {
  /** Of its memory: pages of files that the kernel can let go of. */
  cacheBytes: number;
  /** What its writable layer takes on the host's disk. */
  diskBytes: number;
}

/** A machine that has been started, as it is written to the journal. */
export interface MachineHandle {
  place: MachinePlace;
  /** The process whose end is the machine's end. */
  process: ProcessIdentity;
}

/** What the driver runs on, for `health`, `doctor` and content hashes. */
export interface DriverInfo {
  name: "gvisor";
  /** Build of the runtime: a snapshot of one build is not restored by another. */
  version: string;
  /** systrap, ptrace, ... */
  acceleration: string;
  /** Files of an image that this build writes from front to back and never changes afterwards. */
  growingFiles: readonly string[];
}

export interface CheckpointOptions {
  signal?: AbortSignal | undefined;
  /** Awaited, once all of the machine is in the image's files: what is left to do is with those alone. */
  onCopied?: () => Promise<void> | void;
}

/**
 * How a machine is run. Every method either succeeds or leaves nothing behind. One contract suite runs against every
 * implementation.
 */
export interface Driver {
  readonly info: DriverInfo;
  /**
   * Writes the root filesystem in `rootfsDir` to the file `imagePath`, in the form this driver runs machines from.
   *
   * @param within where `rootfsDir` is seen; default: by this process
   */
  packRoot(
    rootfsDir: string,
    imagePath: string,
    signal?: AbortSignal,
    within?: RootSurroundings,
  ): Promise<MachineRoot>;
  /** Starts a machine from its root filesystem; the guest agent comes up by itself. */
  boot(
    root: MachineRoot,
    place: MachinePlace,
    limits: MachineLimits,
    signal?: AbortSignal,
  ): Promise<MachineHandle>;
  /**
   * Starts the runtime's processes ahead of time, empty, so that {@link Driver.restore} has only the image to read.
   * Costs memory but no CPU time while it waits.
   */
  prepare(
    root: MachineRoot,
    place: MachinePlace,
    limits: MachineLimits,
    signal?: AbortSignal,
  ): Promise<MachineHandle>;
  /**
   * Starts ahead of time what {@link Driver.restore} can start before it knows the image, in a prepared machine that is to
   * wait. Costs memory but no CPU time while it waits; one that fails costs the time it would have saved.
   */
  prime(prepared: MachineHandle): Promise<void>;
  /** Restores an image into a prepared machine. */
  restore(prepared: MachineHandle, imageDir: string, signal?: AbortSignal): Promise<void>;
  /** Starts a machine from an image: less work than {@link Driver.prepare} and {@link Driver.restore} where none is prepared. */
  start(
    root: MachineRoot,
    place: MachinePlace,
    limits: MachineLimits,
    imageDir: string,
    signal?: AbortSignal,
  ): Promise<MachineHandle>;
  /** Stops all execution in RAM; 0 CPU afterwards. */
  pause(machine: MachineHandle): Promise<void>;
  resume(machine: MachineHandle): void;
  /**
   * Writes memory and disk to `imageDir` (made by it), not yet durable; the machine goes on running. Its CPU limit does not
   * hold meanwhile: what works is the runtime, not the machine's user.
   *
   * @throws CodedError `guest_unavailable` while a program inside makes a connection that is not answered
   */
  checkpoint(machine: MachineHandle, imageDir: string, options?: CheckpointOptions): Promise<void>;
  /** Changes the limits of a living machine. */
  limit(machine: MachineHandle, limits: MachineLimits): void;
  /** Ends every process of the machine at once; its files stay. Idempotent; also for one that died by itself. */
  stop(place: MachinePlace): Promise<void>;
  /**
   * Ends the machine at once and removes what the driver made. Idempotent; also for one that died by itself. Its processes
   * have been told to end when this returns its promise.
   *
   * @param onDead called as soon as its last process is gone
   */
  kill(place: MachinePlace, onDead?: () => void): Promise<void>;
  /** Whether a machine from the journal still runs. */
  adopt(machine: MachineHandle): boolean;
  stats(machine: MachineHandle): CgroupUsage;
  /** Zeros for what cannot be read any more. */
  occupancy(machine: MachineHandle): Occupancy;
  /** Bytes over its network since it was made; zeros once its process is gone. */
  traffic(machine: MachineHandle): Traffic;
}
