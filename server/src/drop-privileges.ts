import { closeSync, constants, fchownSync, fstatSync, lchownSync, openSync, readdirSync } from "node:fs";
import { join } from "node:path";
import type { Owner } from "./config.ts";

const NEVER_FOLLOW_OR_WAIT = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK;

/**
 * Gives a folder, and the files and folders directly in it, to `owner`, who goes on there after the drop: an earlier start may
 * have been somebody else's. Left alone is what may be more than it seems, since whoever could write there chose it: links,
 * and files that have another name elsewhere.
 */
export function giveFolder(directory: string, { uid, gid }: Owner): void {
  for (const name of readdirSync(directory)) {
    let descriptor: number;
    try {
      descriptor = openSync(join(directory, name), NEVER_FOLLOW_OR_WAIT);
    } catch (error) {
      // A link, a socket, or gone since.
      if (["ELOOP", "ENXIO", "ENOENT"].includes((error as NodeJS.ErrnoException).code ?? "")) continue;
      throw error;
    }
    try {
      const found = fstatSync(descriptor);
      if (found.isDirectory() || (found.isFile() && found.nlink === 1)) fchownSync(descriptor, uid, gid);
    } finally {
      closeSync(descriptor);
    }
  }
  lchownSync(directory, uid, gid);
}

/**
 * Makes this process an ordinary one for good: no groups but `gid`, then `gid`, then `uid`.
 *
 * @throws Error when it is still able to become root afterwards.
 */
export function dropPrivileges({ uid, gid }: Owner): void {
  if (
    process.getuid === undefined ||
    process.setgroups === undefined ||
    process.setgid === undefined ||
    process.setuid === undefined
  ) {
    throw new Error("this system has no users to change to; leave TORPOR_RUN_AS out");
  }
  if (process.getuid() !== 0) {
    if (process.getuid() === uid) return;
    throw new Error(
      `TORPOR_RUN_AS asks for uid ${uid}, but the process runs as uid ${process.getuid()} and cannot change; start it as root or leave TORPOR_RUN_AS out`,
    );
  }
  process.setgroups([]);
  process.setgid(gid);
  process.setuid(uid);
  if (uid === 0) return;
  try {
    process.setuid(0);
  } catch {
    return; // refused, as it must be
  }
  throw new Error("the process could become root again after it had dropped its privileges");
}
