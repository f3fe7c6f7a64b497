import { createHash, type Hash } from "node:crypto";
import { type BigIntStats, createReadStream } from "node:fs";
import { lstat, readdir, readlink } from "node:fs/promises";

export interface TreeDigest {
  /** SHA-256, hex. */
  sha256: string;
  /** Entries of every type, the top folder included. */
  entryCount: number;
  /** Bytes of disk in use, hard links counted once. */
  sizeBytes: number;
}

const FILE_BYTES_READ_AT_ONCE = 1024 * 1024;

/**
 * One digest of a whole tree: for every entry in byte order of its path its type, mode, owner, modification time,
 * device number, link target and content. Two trees with the same digest are the same to any program but for inode
 * numbers, access times, hard links and extended attributes (Node.js cannot read those).
 */
export async function digestTree(root: string, signal?: AbortSignal): Promise<TreeDigest> {
  const hash = createHash("sha256");
  const seen = new Set<string>();
  let entryCount = 0;
  let sizeBytes = 0;

  const visit = async (relative: Buffer): Promise<void> => {
    signal?.throwIfAborted();
    const path = relative.length === 0 ? Buffer.from(root) : Buffer.concat([Buffer.from(`${root}/`), relative]);
    const stat = await lstat(path, { bigint: true });
    entryCount += 1;
    const identity = `${stat.dev}:${stat.ino}`;
    if (!seen.has(identity)) {
      seen.add(identity);
      sizeBytes += Number(stat.blocks) * 512;
    }
    hash.update(`${relative.length} `).update(relative).update(` ${describe(stat)}\n`);
    if (stat.isSymbolicLink()) hash.update(await readlink(path, "buffer"));
    else if (stat.isFile()) await hashContent(hash, path);
    else if (stat.isDirectory()) {
      const names = (await readdir(path, "buffer")) as Buffer[];
      names.sort(Buffer.compare);
      for (const name of names) await visit(relative.length === 0 ? name : Buffer.concat([relative, Buffer.from("/"), name]));
    }
  };

  await visit(Buffer.alloc(0));
  return { sha256: hash.digest("hex"), entryCount, sizeBytes };
}

function describe(stat: BigIntStats): string {
  const size = stat.isFile() ? stat.size : 0n; // a folder's size depends on the file system and on its past
  const seconds = stat.mtimeNs / 1_000_000_000n;
  return `${stat.mode.toString(8)} ${stat.uid}:${stat.gid} ${stat.rdev} ${size} ${seconds}`;
}

async function hashContent(hash: Hash, path: Buffer): Promise<void> {
  for await (const chunk of createReadStream(path, { highWaterMark: FILE_BYTES_READ_AT_ONCE })) hash.update(chunk as Buffer);
}
