import { lchownSync, readdirSync } from "node:fs";
import { join } from "node:path";
import type { Owner } from "./config.ts";

/**
 * Gives a folder and what lies directly in it to `owner`, who goes on writing there after the drop. Of a link it gives the
 * link: what it points to was chosen by whoever could write there.
 */
export function giveFolder(directory: string, { uid, gid }: Owner): void {
  for (const name of readdirSync(directory)) lchownSync(join(directory, name), uid, gid);
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
