import { linkSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { isAlive, ownIdentity, type ProcessIdentity } from "./process-identity.ts";
import { readRunFile } from "./run-file.ts";

/** The supervisor that holds the state directory, or null. A lock whose holder has died counts as none. */
export function supervisorOf(lockPath: string): ProcessIdentity | null {
  const holder = readRunFile(lockPath);
  return holder !== null && isAlive(holder) ? { pid: holder.pid, start_time: holder.start_time } : null;
}

/**
 * Takes the state directory for this process: one supervisor each. The lock names its holder by pid and start
 * time, so one left behind by a killed supervisor (or a rebooted machine) is taken over.
 *
 * @returns null when taken, else the live holder.
 */
export function takeSupervisorLock(lockPath: string): ProcessIdentity | null {
  const own = JSON.stringify(ownIdentity());
  const candidate = `${lockPath}.${process.pid}`;
  writeFileSync(candidate, own, { mode: 0o644 });
  try {
    for (let attempt = 0; attempt < 10; attempt++) {
      try {
        linkSync(candidate, lockPath); // atomic: exactly one of several succeeds
        return null;
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
      }
      const holder = supervisorOf(lockPath);
      if (holder !== null) return holder;
      removeStaleLock(lockPath);
    }
    throw new Error(`cannot take ${lockPath}: other processes keep changing it; try again`);
  } finally {
    rmSync(candidate, { force: true });
  }
}

/** Moves a dead holder's lock aside, and puts it back if it turns out to be a live one taken in between. */
function removeStaleLock(lockPath: string): void {
  const aside = `${lockPath}.${process.pid}.stale`;
  try {
    renameSync(lockPath, aside);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return;
    throw error;
  }
  if (supervisorOf(aside) !== null) {
    try {
      linkSync(aside, lockPath);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
    }
  }
  rmSync(aside, { force: true });
}

/** Lets go of the lock if this process holds it. */
export function releaseSupervisorLock(lockPath: string): void {
  try {
    if (readFileSync(lockPath, "utf8") === JSON.stringify(ownIdentity())) rmSync(lockPath, { force: true });
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
  }
}
