import { randomBytes } from "node:crypto";
import { mkdir, readdir } from "node:fs/promises";
import { join } from "node:path";
import { isAlive, processIdentity } from "../process-identity.ts";
import { removeTree } from "./mounts.ts";

// The owner is in the folder's name, so there is no moment at which a folder exists without one.
const UNFINISHED = /^\.(?:building|removing)-(\d+)-(\d+)-[0-9a-f]+$/;

/** Makes a folder for work under way, named after this process. */
export async function makeUnfinishedDir(
  templatesDir: string,
  kind: "building" | "removing",
): Promise<string> {
  const dir = join(templatesDir, unfinishedName(kind));
  await mkdir(dir, { mode: 0o700 });
  return dir;
}

/** A free name of that kind, for a rename. */
function unfinishedName(kind: "building" | "removing"): string {
  const startTime = processIdentity(process.pid)?.startTime ?? 0;
  return `.${kind}-${process.pid}-${startTime}-${randomBytes(6).toString("hex")}`;
}

/**
 * Removes what builds and removals left behind that were killed half-way, mounts included. Those of living processes
 * are left alone.
 *
 * @returns the names of the folders removed
 */
export async function sweepUnfinished(templatesDir: string): Promise<string[]> {
  const removed: string[] = [];
  for (const name of await readdir(templatesDir)) {
    const match = UNFINISHED.exec(name);
    if (match === null) continue;
    if (isAlive({ pid: Number(match[1]), startTime: Number(match[2]) })) continue;
    await removeTree(join(templatesDir, name));
    removed.push(name);
  }
  return removed;
}
