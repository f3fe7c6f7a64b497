import { readFileSync } from "node:fs";

/** A process that cannot be mistaken for a later one with the same pid. */
export interface ProcessIdentity {
  pid: number;
  /** Field 22 of /proc/<pid>/stat: clock ticks since boot. */
  startTime: number;
}

/** Identity of a living process; undefined when it does not exist or is a zombie. */
export function processIdentity(pid: number): ProcessIdentity | undefined {
  let stat: string;
  try {
    stat = readFileSync(`/proc/${pid}/stat`, "utf8");
  } catch {
    return undefined;
  }
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  if (fields[0] === "Z" || fields[0] === "X") return undefined;
  return { pid, startTime: Number(fields[19]) };
}

/** Whether exactly that process lives. */
export function isAlive(identity: ProcessIdentity): boolean {
  const found = processIdentity(identity.pid);
  return found !== undefined && found.startTime === identity.startTime;
}

/** Bit of SIGKILL in the masks of /proc/<pid>/status. */
const SIGKILL_BIT = 1n << 8n;

/** Whether a process that is frozen will die as soon as it is let go on: the kernel keeps a KILL for it until then. */
export function isDoomed({ pid }: ProcessIdentity): boolean {
  let status: string;
  try {
    status = readFileSync(`/proc/${pid}/status`, "utf8");
  } catch {
    return false;
  }
  return [...status.matchAll(/^(?:SigPnd|ShdPnd):\s+([0-9a-f]+)$/gm)].some(
    ([, mask]) => (BigInt(`0x${mask}`) & SIGKILL_BIT) !== 0n,
  );
}
