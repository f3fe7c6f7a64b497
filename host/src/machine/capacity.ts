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
}

const MIN_FREE_MEMORY_MB = 256;
const MIN_FREE_DISK_MB = 1024;

/** @throws CodedError `invalid_request` for a machine that never fits this host, `capacity_exhausted` for one that does not now */
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
  if (free.memoryMb < MIN_FREE_MEMORY_MB) {
    throw new CodedError(
      "capacity_exhausted",
      `the host has ${free.memoryMb} MB of memory free, below the ${MIN_FREE_MEMORY_MB} it keeps; destroy sandboxes or try again later`,
    );
  }
  if (free.diskMb < MIN_FREE_DISK_MB) {
    throw new CodedError(
      "capacity_exhausted",
      `the host's state directory has ${free.diskMb} MB free, below the ${MIN_FREE_DISK_MB} it keeps; free disk space`,
    );
  }
}

/** Before an image of about `imageMb` is written. @throws CodedError `no_space` */
export function checkImageFits(imageMb: number, free: Headroom): void {
  if (free.diskMb - imageMb < MIN_FREE_DISK_MB) {
    throw new CodedError(
      "no_space",
      `an image of up to ${Math.ceil(imageMb)} MB does not fit: the state directory has ${free.diskMb} MB free and ${MIN_FREE_DISK_MB} are kept; free disk space`,
      { details: { needed_mb: Math.ceil(imageMb), free_mb: free.diskMb } },
    );
  }
}
