import { spawnSync } from "node:child_process";
import { type Dirent, readdirSync, readFileSync, readlinkSync } from "node:fs";
import { join } from "node:path";

/** What was searched, and where it was found. */
export interface NeedleSearch {
  found: string[];
  /** How many files were looked at. */
  looked: number;
}

/**
 * Files below a folder that hold the text, which has no line break and no NUL. Symbolic links are not followed, and what is
 * gone meanwhile is passed over.
 *
 * @param except files of this name are not looked at
 */
export function filesThatHold(folder: string, needle: string, except?: string): NeedleSearch {
  return search(
    filesBelow(folder).filter((path) => except === undefined || !path.endsWith(`/${except}`)),
    needle,
  );
}

/**
 * Memory-backed files that runtimes hold open and that hold the text: what their sandboxes' memory is kept in.
 *
 * @param mark what the command line of a runtime of ours contains
 */
export function memoryFilesThatHold(mark: string, needle: string): NeedleSearch {
  const paths: string[] = [];
  for (const pid of readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
    try {
      const commandLine = readFileSync(`/proc/${pid}/cmdline`, "utf8");
      if (!commandLine.startsWith("runsc-sandbox") || !commandLine.includes(mark)) continue;
      for (const descriptor of readdirSync(`/proc/${pid}/fd`)) {
        const path = `/proc/${pid}/fd/${descriptor}`;
        if (/memfd:|\/dev\/shm\//.test(readlinkSync(path))) paths.push(path);
      }
    } catch {
      continue; // it has ended meanwhile
    }
  }
  return search(paths, needle);
}

function filesBelow(folder: string): string[] {
  let entries: Dirent[];
  try {
    entries = readdirSync(folder, { withFileTypes: true });
  } catch {
    return [];
  }
  return entries.flatMap((entry) => {
    const path = join(folder, entry.name);
    if (entry.isDirectory()) return filesBelow(path);
    return entry.isFile() ? [path] : [];
  });
}

/**
 * By grep, which passes over the holes of sparse files unless it is told that they are text: a disk of 4 GB that holds little
 * takes a moment. The text goes by standard input, since a command line is a place to be found in.
 */
function search(paths: readonly string[], needle: string): NeedleSearch {
  if (paths.length === 0) return { found: [], looked: 0 };
  const argv = ["-slZF", "-f", "-", "--", ...paths];
  const { status, error, stdout, stderr } = spawnSync("grep", argv, {
    input: `${needle}\n`,
    encoding: "utf8",
    env: { PATH: process.env["PATH"], LC_ALL: "C" },
    maxBuffer: 16 * 1024 * 1024,
  });
  // 1 is nothing found, and 2 that a file could not be read, of which it says nothing here.
  if (error !== undefined || status === null || status > 2 || stderr !== "")
    throw new Error(`grep in ${paths.length} files failed with ${status}: ${stderr}`, { cause: error });
  return { found: stdout.split("\0").filter((path) => path !== ""), looked: paths.length };
}
