import { access, mkdir, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { run } from "@torpor/base";

/**
 * Writable layers. This runsc has no size option for its overlay, so each machine's overlay file lies on a filesystem
 * of its own: a sparse ext4 image, loop-mounted in the machine's private mount namespace. A full one is a clean
 * ENOSPC inside, and the mount ends with the machine.
 */
export class DiskImages {
  readonly #cacheDir: string;
  readonly #making = new Map<number, Promise<string>>();

  /** @param cacheDir where one empty image per size is kept to copy from. */
  constructor(cacheDir: string) {
    this.#cacheDir = cacheDir;
  }

  /** Makes an empty image of `diskMib` at `path`: some ten milliseconds, a few hundred KiB. */
  async create(diskMib: number, path: string): Promise<void> {
    const blank = await this.#blank(diskMib);
    await run(["cp", "--sparse=always", "--reflink=auto", blank, path]);
  }

  #blank(diskMib: number): Promise<string> {
    let making = this.#making.get(diskMib);
    if (making === undefined) {
      making = this.#makeBlank(diskMib);
      making.catch(() => this.#making.delete(diskMib));
      this.#making.set(diskMib, making);
    }
    return making;
  }

  async #makeBlank(diskMib: number): Promise<string> {
    const path = join(this.#cacheDir, `blank-${diskMib}.ext4`);
    try {
      await access(path);
      return path;
    } catch {
      // not made yet
    }
    await mkdir(this.#cacheDir, { recursive: true, mode: 0o700 });
    const unfinished = `${path}.${process.pid}.tmp`;
    try {
      await run(["truncate", "-s", `${diskMib}M`, unfinished]);
      // No journal: the image does not outlive its machine. No reserve: the size asked for is the size given.
      await run([
        "mke2fs",
        "-q",
        "-t",
        "ext4",
        "-O",
        "^has_journal,^resize_inode",
        "-m",
        "0",
        "-i",
        "1048576",
        "-E",
        "lazy_itable_init=1,nodiscard,root_owner=0:0",
        unfinished,
      ]);
      await rename(unfinished, path);
    } finally {
      await rm(unfinished, { force: true });
    }
    return path;
  }
}
