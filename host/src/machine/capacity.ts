import { CodedError } from "@torpor/protocol";

export interface Capacity {
  cpus: number;
  memoryMb: number;
  diskMb: number;
}

/** Free memory and disk right now, MiB. */
export interface Headroom {
  memoryMb: number;
  diskMb: number;
  /** Share of the state directory's disk that is used, as `df` counts it. */
  diskUsedPercent: number;
  /** From this share on nothing is made or put to sleep: what runs needs the rest to go on and to be ended. */
  diskWatermarkPercent: number;
}

const MIN_FREE_MEMORY_MB = 256;
const MIN_FREE_DISK_MB = 1024;

/**
 * Before a machine is made.
 *
 * @throws CodedError `invalid_request` for one that never fits this host, `capacity_exhausted` without memory for it now,
 *   `no_space` without disk
 */
export function checkCapacity(
  asked: { cpu: number; memory_mb: number; disk_mb: number },
  capacity: Capacity,
  free: Headroom,
): void {
  const wanted = {
    cpu: [asked.cpu, capacity.cpus],
    memory_mb: [asked.memory_mb, capacity.memoryMb],
    disk_mb: [asked.disk_mb, capacity.diskMb],
  } as const;
  for (const [field, [value, maximum]] of Object.entries(wanted)) {
    if (value > maximum) {
      throw new CodedError(
        "invalid_request",
        `${field} is ${value}, but this host has ${maximum} in all; ask for at most ${maximum}`,
        { details: { field, value, maximum } },
      );
    }
  }
  checkMemory(free);
  checkDisk(free, "a sandbox cannot be made");
}

/** Before a machine is made or woken. @throws CodedError `capacity_exhausted` */
export function checkMemory(free: Headroom): void {
  if (free.memoryMb < MIN_FREE_MEMORY_MB) {
    throw new CodedError(
      "capacity_exhausted",
      `the host has ${free.memoryMb} MB of memory free, below the ${MIN_FREE_MEMORY_MB} it keeps; destroy sandboxes or try again later`,
    );
  }
}

/** Before anything large is written. @throws CodedError `no_space` */
export function checkDisk(free: Headroom, refusal: string): void {
  const { diskMb, diskUsedPercent, diskWatermarkPercent } = free;
  if (diskUsedPercent < diskWatermarkPercent && diskMb >= MIN_FREE_DISK_MB) return;
  throw new CodedError(
    "no_space",
    `${refusal}: the host's disk is ${Math.floor(diskUsedPercent)}% full with ${diskMb} MB free, and is kept below ${diskWatermarkPercent}% with ${MIN_FREE_DISK_MB} MB free; destroy sandboxes or snapshots, or free disk space on the host`,
    {
      details: {
        free_bytes: diskMb * 1048576,
        used_percent: Math.floor(diskUsedPercent),
        watermark_percent: diskWatermarkPercent,
      },
    },
  );
}

/** Before an image of about `imageMb` is written. @throws CodedError `no_space` */
export function checkImageFits(imageMb: number, free: Headroom): void {
  checkDisk(free, "an image of the sandbox cannot be written, so it goes on running");
  if (free.diskMb - imageMb < MIN_FREE_DISK_MB) {
    throw new CodedError(
      "no_space",
      `an image of up to ${Math.ceil(imageMb)} MB does not fit: the host's disk has ${free.diskMb} MB free and ${MIN_FREE_DISK_MB} are kept; destroy sandboxes or snapshots, or free disk space on the host`,
      { details: { needed_bytes: Math.ceil(imageMb) * 1048576, free_bytes: free.diskMb * 1048576 } },
    );
  }
}
