import { closeSync, type Dirent, openSync, readdirSync, readFileSync, readlinkSync, readSync } from "node:fs";
import { join } from "node:path";

const CHUNK_BYTES = 4 * 1024 * 1024;

/** Whether the bytes occur in a file, which may be sparse and larger than memory. Undefined when it cannot be read. */
function fileHolds(path: string, needle: Buffer): boolean | undefined {
  let descriptor: number;
  try {
    descriptor = openSync(path, "r");
  } catch {
    return undefined; // gone meanwhile
  }
  try {
    const overlap = needle.length - 1;
    const buffer = Buffer.alloc(CHUNK_BYTES + overlap);
    let kept = 0;
    for (let at = 0; ;) {
      const read = readSync(descriptor, buffer, kept, CHUNK_BYTES, at);
      if (read === 0) return false;
      const filled = kept + read;
      if (buffer.subarray(0, filled).includes(needle)) return true;
      kept = Math.min(overlap, filled);
      buffer.copy(buffer, 0, filled - kept, filled);
      at += read;
    }
  } catch {
    return undefined;
  } finally {
    closeSync(descriptor);
  }
}

/** Files below a folder that hold the bytes. Symbolic links are not followed. */
export function filesThatHold(folder: string, needle: Buffer): { found: string[]; looked: number } {
  const found: string[] = [];
  let looked = 0;
  let entries: Dirent[];
  try {
    entries = readdirSync(folder, { withFileTypes: true });
  } catch {
    return { found, looked };
  }
  for (const entry of entries) {
    const path = join(folder, entry.name);
    if (entry.isDirectory()) {
      const inner = filesThatHold(path, needle);
      found.push(...inner.found);
      looked += inner.looked;
    } else if (entry.isFile()) {
      looked += 1;
      if (fileHolds(path, needle) === true) found.push(path);
    }
  }
  return { found, looked };
}

/**
 * Memory-backed files that runtimes hold open and that hold the bytes: what their sandboxes' memory is kept in.
 *
 * @param mark what the command line of a runtime of ours contains
 */
export function memoryFilesThatHold(mark: string, needle: Buffer): { found: string[]; looked: number } {
  const found: string[] = [];
  let looked = 0;
  for (const pid of readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
    try {
      const commandLine = readFileSync(`/proc/${pid}/cmdline`, "utf8");
      if (!commandLine.startsWith("runsc-sandbox") || !commandLine.includes(mark)) continue;
      for (const descriptor of readdirSync(`/proc/${pid}/fd`)) {
        const path = `/proc/${pid}/fd/${descriptor}`;
        if (!/memfd:|\/dev\/shm\//.test(readlinkSync(path))) continue;
        looked += 1;
        if (fileHolds(path, needle) === true) found.push(`${path} (${readlinkSync(path)})`);
      }
    } catch {
      continue; // it has ended meanwhile
    }
  }
  return { found, looked };
}
