import { createHash, type Hash } from "node:crypto";
import {
  type BigIntStats,
  closeSync,
  lstatSync,
  openSync,
  readdirSync,
  readlinkSync,
  readSync,
} from "node:fs";
import { setImmediate as nextTurn } from "node:timers/promises";

export interface TreeDigest {
  /** SHA-256, hex. */
  sha256: string;
  /** Entries of every type, the top folder included. */
  entryCount: number;
  /** Bytes of disk in use, hard links counted once. */
  sizeBytes: number;
}

const BUFFER_BYTES = 1024 * 1024;
const BLOCKED_MS_MAX = 10;

/**
 * One digest of a whole tree: for every entry, folder by folder with names in byte order, its type, mode, owner, modification time in
 * seconds, device number, link target and content. Two trees with the same digest are the same to any program but for
 * inode numbers, access times, hard links and extended attributes (Node.js cannot read those).
 *
 * Reads synchronously, which is 5 times as fast for the tens of thousands of small files of a root, and lets others
 * run every 10 ms.
 *
 * @param signal stops the walk with its reason
 */
export async function digestTree(root: string, signal?: AbortSignal): Promise<TreeDigest> {
  signal?.throwIfAborted();
  const hash = createHash("sha256");
  const buffer = Buffer.allocUnsafe(BUFFER_BYTES);
  const seen = new Set<bigint>();
  let entryCount = 0;
  let sizeBytes = 0;
  let turnEndsAt = performance.now() + BLOCKED_MS_MAX;

  // Paths are bytes: a file name need not be UTF-8.
  const waiting: Buffer[] = [Buffer.alloc(0)];
  for (let relative = waiting.pop(); relative !== undefined; relative = waiting.pop()) {
    const path =
      relative.length === 0 ? Buffer.from(root) : Buffer.concat([Buffer.from(`${root}/`), relative]);
    const stat = lstatSync(path, { bigint: true });
    entryCount += 1;
    if (stat.nlink === 1n || !seen.has(stat.ino)) sizeBytes += Number(stat.blocks) * 512;
    if (stat.nlink > 1n) seen.add(stat.ino);
    hash
      .update(`${relative.length} `)
      .update(relative)
      .update(` ${describe(stat)}\n`);
    if (stat.isSymbolicLink()) hash.update(readlinkSync(path, "buffer"));
    else if (stat.isFile()) hashContent(hash, path, buffer);
    else if (stat.isDirectory()) {
      const names = readdirSync(path, "buffer")
        .sort((a, b) => Buffer.compare(a, b))
        .reverse();
      for (const name of names)
        waiting.push(relative.length === 0 ? name : Buffer.concat([relative, Buffer.from("/"), name]));
    }
    if (performance.now() > turnEndsAt) {
      await nextTurn();
      signal?.throwIfAborted();
      turnEndsAt = performance.now() + BLOCKED_MS_MAX;
    }
  }
  return { sha256: hash.digest("hex"), entryCount, sizeBytes };
}

function describe(stat: BigIntStats): string {
  const size = stat.isFile() ? stat.size : 0n; // a folder's size depends on the file system and on its past
  const seconds = stat.mtimeNs / 1_000_000_000n;
  return `${stat.mode.toString(8)} ${stat.uid}:${stat.gid} ${stat.rdev} ${size} ${seconds}`;
}

function hashContent(hash: Hash, path: Buffer, buffer: Buffer): void {
  const descriptor = openSync(path, "r");
  try {
    for (let length = readSync(descriptor, buffer); length > 0; length = readSync(descriptor, buffer)) {
      hash.update(buffer.subarray(0, length));
    }
  } finally {
    closeSync(descriptor);
  }
}
