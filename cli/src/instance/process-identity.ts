import { readFileSync } from "node:fs";

/**
 * A process, told apart from a later one that was given the same pid: pid and start time
 * (field 22 of /proc/pid/stat, clock ticks since boot).
 */
export interface ProcessIdentity {
  pid: number;
  start_time: number;
}

/** Start time out of the text of /proc/pid/stat; null for a zombie, which has ended but for its parent. */
export function parseStartTime(stat: string): number | null {
  // The command name stands in parentheses and may hold spaces and parentheses itself.
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  if (fields[0] === "Z" || fields[0] === "X") return null;
  const ticks = Number(fields[19]);
  return Number.isFinite(ticks) && fields[19] !== undefined ? ticks : null;
}

/** Start time of a live process, or null when there is none. */
export function startTimeOf(pid: number): number | null {
  try {
    return parseStartTime(readFileSync(`/proc/${pid}/stat`, "utf8"));
  } catch {
    return null; // no such process (or, with hidepid, none we may see): either way not ours to touch
  }
}

/** The calling process. */
export function ownIdentity(): ProcessIdentity {
  return { pid: process.pid, start_time: startTimeOf(process.pid) ?? 0 };
}

/** Whether that very process still lives. */
export function isAlive(identity: ProcessIdentity): boolean {
  return startTimeOf(identity.pid) === identity.start_time;
}

/** What it was started with; nothing of one that has ended, or that is not ours to look into. */
export function environmentOf({ pid }: ProcessIdentity): NodeJS.ProcessEnv {
  try {
    const lines = readFileSync(`/proc/${pid}/environ`, "utf8").split("\0");
    return Object.fromEntries(
      lines.flatMap((line) => {
        const [name = "", ...value] = line.split("=");
        return name === "" ? [] : [[name, value.join("=")]];
      }),
    );
  } catch {
    return {};
  }
}

/** Sends a signal to that very process; false when it has ended. */
export function signalProcess(identity: ProcessIdentity, signal: NodeJS.Signals): boolean {
  if (!isAlive(identity)) return false;
  try {
    process.kill(identity.pid, signal);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ESRCH") return false;
    throw error;
  }
}

/** Waits until the process has ended; false when it still lives after `timeoutMs`. */
export async function waitForEnd(identity: ProcessIdentity, timeoutMs: number): Promise<boolean> {
  const deadline = performance.now() + timeoutMs;
  while (isAlive(identity)) {
    if (performance.now() >= deadline) return false;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return true;
}

/** TERM, then KILL after `graceMs`. Answers how it ended. */
export async function endProcess(
  identity: ProcessIdentity,
  graceMs: number,
): Promise<"already_ended" | "ended" | "killed"> {
  if (!signalProcess(identity, "SIGTERM")) return "already_ended";
  if (await waitForEnd(identity, graceMs)) return "ended";
  signalProcess(identity, "SIGKILL");
  await waitForEnd(identity, 5_000);
  return "killed";
}
