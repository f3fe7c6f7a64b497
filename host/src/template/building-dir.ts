import { randomBytes } from "node:crypto";
import { mkdir, readFile, readdir } from "node:fs/promises";
import { join } from "node:path";
import { removeTree } from "./mounts.ts";

// The owner is in the folder's name, so there is no moment at which a folder exists without one.
const UNFINISHED = /^\.(?:building|removing)-(\d+)-(\d+)-[0-9a-f]+$/;

/** Makes a folder for work under way, named after this process. */
export async function makeUnfinishedDir(templatesDir: string, kind: "building" | "removing"): Promise<string> {
  const dir = join(templatesDir, await unfinishedName(kind));
  await mkdir(dir, { mode: 0o700 });
  return dir;
}

/** A free name of that kind, for a rename. */
export async function unfinishedName(kind: "building" | "removing"): Promise<string> {
  const startTime = await processStartTime(process.pid);
  return `.${kind}-${process.pid}-${startTime ?? "0"}-${randomBytes(6).toString("hex")}`;
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
    const startTime = await processStartTime(Number(match[1]));
    if (startTime !== undefined && startTime === match[2]) continue;
    await removeTree(join(templatesDir, name));
    removed.push(name);
  }
  return removed;
}

/** Start time of a process in clock ticks since boot (proc(5), stat field 22): with the pid it names one process for good. */
async function processStartTime(pid: number): Promise<string | undefined> {
  try {
    const stat = await readFile(`/proc/${pid}/stat`, "utf8");
    return stat.slice(stat.lastIndexOf(")") + 2).split(" ")[19]; // the name before may contain anything
  } catch (error) {
    if (["ENOENT", "ESRCH"].includes((error as NodeJS.ErrnoException).code ?? "")) return undefined;
    throw error;
  }
}
