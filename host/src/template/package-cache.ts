import type { Dirent } from "node:fs";
import { link, mkdir, readdir, rename, rm, stat, utimes } from "node:fs/promises";
import { join } from "node:path";

/** Default bound of the kept packages, bytes. Both templates of this repository need a sixth of it. */
const PACKAGE_CACHE_BYTES = 1024 ** 3;

/**
 * Debian packages kept between builds, so that a rebuild after a change of the guest agent downloads nothing. apt takes
 * a file of the right name and size as it is, so the folder is closed to everybody but root, holds only what apt has
 * verified and what is known to be on disk, and is dropped when a build fails on its packages.
 * Files are hard-linked, so the folder must be on the file system that templates are built on.
 */
export class PackageCache {
  readonly #dir: string;
  readonly #limitBytes: number;

  constructor(dir: string, limitBytes = PACKAGE_CACHE_BYTES) {
    this.#dir = dir;
    this.#limitBytes = limitBytes;
  }

  /** Puts every kept package where apt looks before it downloads. A cache that cannot be read is an empty one. */
  async lend(archivesDir: string): Promise<void> {
    await mkdir(this.#dir, { recursive: true, mode: 0o700 });
    for (const name of await debNames(this.#dir)) {
      await link(join(this.#dir, name), join(archivesDir, name)).catch(() => {}); // gone or on another disk: apt downloads it
    }
  }

  /** Keeps the packages of a build that succeeded, then drops the longest unused beyond the bound. */
  async keep(archivesDir: string, now: Date): Promise<void> {
    for (const name of await debNames(archivesDir)) {
      const kept = join(this.#dir, name);
      // By rename, so that a half-copied package never has a whole one's name.
      const fresh = join(this.#dir, `.${process.pid}-${name}`);
      try {
        await link(join(archivesDir, name), fresh);
        await rename(fresh, kept);
        await utimes(kept, now, now);
      } catch {
        await rm(fresh, { force: true }); // on another disk: nothing is kept, and the next build downloads again
      }
    }
    await this.#shrink();
  }

  /** Forgets everything: after a build that failed on what it unpacked, the cause may be in here. */
  async clear(): Promise<void> {
    await rm(this.#dir, { recursive: true, force: true });
  }

  async #shrink(): Promise<void> {
    const kept: { path: string; bytes: number; usedAt: number }[] = [];
    for (const name of await debNames(this.#dir)) {
      const path = join(this.#dir, name);
      const found = await stat(path).catch(() => undefined); // another build may have dropped it
      if (found !== undefined) kept.push({ path, bytes: found.size, usedAt: found.mtimeMs });
    }
    kept.sort((a, b) => b.usedAt - a.usedAt);
    let total = 0;
    for (const { path, bytes } of kept) {
      total += bytes;
      if (total > this.#limitBytes) await rm(path, { force: true });
    }
  }
}

async function debNames(dir: string): Promise<string[]> {
  let entries: Dirent[];
  try {
    entries = await readdir(dir, { withFileTypes: true });
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return []; // another build may have dropped it
    throw error;
  }
  return entries
    .filter((entry) => entry.isFile() && entry.name.endsWith(".deb") && !entry.name.startsWith("."))
    .map((entry) => entry.name);
}
