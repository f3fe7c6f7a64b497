import { constants } from "node:fs";
import { chmod, chown, mkdir, open, readlink, rm, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { CodedError } from "@torpor/protocol";
import { lstatIfThere } from "../template/place-file.ts";

const MAX_LINKS = 40;
const MAX_TEXT_BYTES = 4 * 1024 * 1024;

/**
 * The root of an image at rest: nothing runs in it, and what it holds was made by strangers. Links are followed as they
 * would be inside, so that none leads out of it.
 */
export class ImageRoot {
  readonly #dir: string;
  readonly #image: string;

  private constructor(dir: string, image: string) {
    this.#dir = dir;
    this.#image = image;
  }

  /** @throws CodedError `invalid_request` where the image's layers left no folder, or a link in its place */
  static async open(dir: string, image: string): Promise<ImageRoot> {
    if ((await lstatIfThere(dir))?.isDirectory() === true) return new ImageRoot(dir, image);
    throw new CodedError(
      "invalid_request",
      `image '${image}' cannot be unpacked: its layers leave no root folder. They hold what no layer may; make or fetch it anew`,
    );
  }

  /** Content of a file; undefined where there is none, or none of a size that is read. */
  async text(path: string): Promise<string | undefined> {
    const target = await this.#target(path, { follow: true, make: false });
    const stat = target === undefined ? undefined : await lstatIfThere(target);
    if (target === undefined || stat?.isFile() !== true || stat.size > MAX_TEXT_BYTES) return undefined;
    const file = await open(target, constants.O_RDONLY | constants.O_NOFOLLOW);
    try {
      return await file.readFile("utf8");
    } finally {
      await file.close();
    }
  }

  /** Whether there is something at a path, once links are followed. */
  async has(path: string): Promise<boolean> {
    const target = await this.#target(path, { follow: true, make: false });
    return target !== undefined && (await lstatIfThere(target)) !== undefined;
  }

  /** Writes a file of root's in place of whatever was there, a folder too. */
  async file(path: string, content: string | Buffer, mode = 0o644): Promise<void> {
    const target = await this.#place(path);
    await rm(target, { recursive: true, force: true });
    await writeFile(target, content, { flag: "wx", mode });
    await chmod(target, mode);
  }

  /** Makes a link in place of whatever was there. */
  async link(path: string, to: string): Promise<void> {
    const target = await this.#place(path);
    await rm(target, { recursive: true, force: true });
    await symlink(to, target);
  }

  /** Makes a folder; one that is there stays as it is, unless an owner or a mode is named. */
  async folder(
    path: string,
    as: { mode?: number; owner?: { uid: number; gid: number } } = {},
  ): Promise<void> {
    const target = await this.#target(path, { follow: true, make: true });
    if (target === undefined) throw this.#unusable(path, "it leads nowhere");
    const stat = await lstatIfThere(target);
    if (stat === undefined) await mkdir(target);
    else if (!stat.isDirectory()) throw this.#unusable(path, "it is no folder");
    if (stat === undefined || as.mode !== undefined) await chmod(target, as.mode ?? 0o755);
    if (as.owner !== undefined) await chown(target, as.owner.uid, as.owner.gid);
  }

  /** Where `path` lies, its folder made if need be; the last part itself is not followed. */
  async #place(path: string): Promise<string> {
    const target = await this.#target(path, { follow: false, make: true });
    if (target === undefined) throw this.#unusable(path, "it leads nowhere");
    return target;
  }

  async #target(
    path: string,
    { follow, make }: { follow: boolean; make: boolean },
  ): Promise<string | undefined> {
    let parts = path.split("/").filter((part) => part !== "");
    let done: string[] = [];
    let links = 0;
    while (parts.length > 0) {
      const [part = "", ...rest] = parts;
      parts = rest;
      if (part === ".") continue;
      if (part === "..") {
        done.pop(); // the root is its own parent
        continue;
      }
      const here = join(this.#dir, ...done, part);
      const stat = await lstatIfThere(here);
      const isLast = rest.length === 0;
      if (stat?.isSymbolicLink() === true && (!isLast || follow)) {
        links += 1;
        if (links > MAX_LINKS) return undefined;
        const to = await readlink(here);
        if (to.startsWith("/")) done = [];
        parts = [...to.split("/").filter((each) => each !== ""), ...rest];
        continue;
      }
      if (!isLast && stat === undefined) {
        if (!make) return undefined;
        await mkdir(here);
        await chmod(here, 0o755);
      } else if (!isLast && stat?.isDirectory() !== true) {
        return undefined;
      }
      done.push(part);
    }
    return join(this.#dir, ...done);
  }

  #unusable(path: string, why: string): CodedError {
    return new CodedError(
      "invalid_request",
      `image '${this.#image}' cannot be built from: a sandbox needs ${path}, and in the image ${why}`,
    );
  }
}
