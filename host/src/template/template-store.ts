import { randomBytes } from "node:crypto";
import { lstat, mkdir, readFile, readdir, readlink, rename, rm, symlink, utimes } from "node:fs/promises";
import { basename, join } from "node:path";
import { run } from "@torpor/base";
import { CodedError } from "@torpor/protocol";
import { makeUnfinishedDir, sweepUnfinished } from "./building-dir.ts";
import { manifestSchema, type TemplateManifest } from "./manifest.ts";
import { removeTree } from "./mounts.ts";
import { TEMPLATE_NAME } from "./recipe.ts";
import { lockTemplate } from "./template-lock.ts";

const HASH = /^[0-9a-f]{64}$/;
const HASH_PREFIX = /^[0-9a-f]{8,64}$/;

/** A finished template on this machine. */
export interface StoredTemplate {
  /** The recipe's name. */
  name: string;
  hash: string;
  /** Read-only by contract: running sandboxes and sleeping ones lie on it. */
  rootfsDir: string;
  /** Where this driver's golden snapshot belongs. Not made here, and gone with the template. */
  goldenDir: (driver: string) => string;
  manifest: TemplateManifest;
  /** Names that lead to this template now; an older build under the same recipe name has none. */
  names: string[];
}

/**
 * The templates of one machine, in a folder:
 *
 *     <hash>/manifest.json, <hash>/rootfs/    appears by one rename, and so is always whole
 *     by-name/<name> -> ../<hash>             replaced by rename
 *     .building-<owner>/, .removing-<owner>/  work under way; `sweep` takes what a dead process left
 */
export class TemplateStore {
  readonly templatesDir: string;

  constructor(templatesDir: string) {
    this.templatesDir = templatesDir;
  }

  /** Makes the folders. Closed to others: a template holds setuid programs that must not be run on this machine. */
  async open(): Promise<void> {
    await mkdir(this.templatesDir, { recursive: true, mode: 0o700 });
    await mkdir(join(this.templatesDir, "by-name"), { recursive: true, mode: 0o700 });
  }

  /**
   * Every finished template, by name and then newest first.
   *
   * @param onBroken told of a template whose manifest cannot be read; without it, that throws
   * @throws Error when the folder cannot be read: that is not the same as no templates
   */
  async list(onBroken?: (hash: string, error: unknown) => void): Promise<StoredTemplate[]> {
    const names = await this.#namesByHash();
    const found: StoredTemplate[] = [];
    for (const hash of (await readdirOrNone(this.templatesDir)).filter((name) => HASH.test(name))) {
      try {
        found.push(await this.#read(hash, names.get(hash) ?? []));
      } catch (error) {
        if (onBroken === undefined) throw error;
        onBroken(hash, error);
      }
    }
    return found.sort(
      (a, b) => a.name.localeCompare(b.name) || b.manifest.builtAt.localeCompare(a.manifest.builtAt),
    );
  }

  /**
   * The template of a name, a hash, or the first 8 or more digits of one. One made from an image is found by its names alone:
   * it may be one tenant's, and hashes can be worked out.
   *
   * @throws CodedError `template_not_found`, or `invalid_request` when several hashes begin so
   */
  async resolve(nameOrHash: string): Promise<StoredTemplate> {
    const hash = (await this.#hashOfName(nameOrHash)) ?? (await this.#hashOfPrefix(nameOrHash));
    if (hash === undefined) {
      const known = [...(await this.#namesByHash()).values()].flat().sort();
      throw new CodedError(
        "template_not_found",
        `There is no template ${JSON.stringify(nameOrHash)} on this machine; it has ${known.length === 0 ? "none" : known.join(", ")}. ${TEMPLATE_NAME.test(nameOrHash) ? `If it has a recipe (templates/), build it with \`torpor template build ${nameOrHash}\`, else` : "Build it with `torpor template build`, or"} check the name.`,
        { details: { template: nameOrHash, known } },
      );
    }
    return this.#read(hash, (await this.#namesByHash()).get(hash) ?? []);
  }

  /** The finished template of exactly this hash, or undefined. */
  async find(hash: string): Promise<StoredTemplate | undefined> {
    if (!HASH.test(hash) || !(await exists(join(this.templatesDir, hash)))) return undefined;
    return this.#read(hash, (await this.#namesByHash()).get(hash) ?? []);
  }

  /** Notes that somebody builds on it, Unix milliseconds. */
  async markUsed(hash: string, at: number): Promise<void> {
    await utimes(join(this.templatesDir, hash, "manifest.json"), at / 1_000, at / 1_000);
  }

  /** When that was last; at first, when it was made. */
  async lastUse(hash: string): Promise<number> {
    return (await lstat(join(this.templatesDir, hash, "manifest.json"))).mtimeMs;
  }

  /** Makes `name` lead to `hash`, in one step. @throws CodedError `invalid_request` for a bad name, `template_not_found` for a hash that is not here */
  async commitName(name: string, hash: string): Promise<void> {
    if (!TEMPLATE_NAME.test(name))
      throw new CodedError(
        "invalid_request",
        `${JSON.stringify(name)} cannot be a template's name: use lower-case letters, digits and hyphens.`,
      );
    if ((await this.find(hash)) === undefined)
      throw new CodedError(
        "template_not_found",
        `Naming template ${name} failed: there is no template with the hash ${hash}.`,
      );
    const fresh = join(this.templatesDir, "by-name", `.${name}-${randomBytes(6).toString("hex")}`);
    await symlink(join("..", hash), fresh);
    await rename(fresh, join(this.templatesDir, "by-name", name));
    await syncFolder(join(this.templatesDir, "by-name"));
  }

  /**
   * Puts a built folder in its place: this rename is the moment at which the template exists. One that is already there
   * under that hash stays, and the new one is left where it was.
   *
   * @returns whether the folder was moved
   */
  async commitBuilt(builtDir: string, hash: string): Promise<boolean> {
    if (await exists(join(this.templatesDir, hash))) return false;
    await syncFolder(builtDir);
    await rename(builtDir, join(this.templatesDir, hash));
    await syncFolder(this.templatesDir);
    return true;
  }

  /**
   * Removes a name, and with the last that leads to it the template; by its hash, the template with all its names.
   *
   * @param options.inUse asked under the template's lock whether a sandbox, snapshot or image still lies on it
   * @throws CodedError `template_not_found`, or `conflict` when it is in use
   */
  async remove(
    nameOrHash: string,
    options: { inUse: (hash: string) => boolean | Promise<boolean> },
  ): Promise<void> {
    const byHash = await this.find(nameOrHash);
    const { hash, names } = byHash ?? (await this.resolve(nameOrHash));
    const isName = byHash === undefined && names.includes(nameOrHash);
    const unlock = await lockTemplate(this.templatesDir, hash);
    try {
      const namesNow = (await this.#namesByHash()).get(hash) ?? [];
      if (isName && !namesNow.includes(nameOrHash))
        throw new CodedError(
          "template_not_found",
          `Removing template ${nameOrHash} failed: somebody has just removed that name, or given it to another build.`,
        );
      if (isName && namesNow.length > 1) {
        await this.#removeName(nameOrHash);
        return;
      }
      if (await options.inUse(hash)) {
        throw new CodedError(
          "conflict",
          `Template ${isName ? nameOrHash : (namesNow[0] ?? byHash?.name ?? nameOrHash)} (${hash.slice(0, 16)}) cannot be removed: sandboxes or snapshots on this machine still lie on it. Destroy them first.`,
          { details: { hash } },
        );
      }
      for (const name of namesNow) await this.#removeName(name);
      const grave = await makeUnfinishedDir(this.templatesDir, "removing");
      await rename(join(this.templatesDir, hash), join(grave, hash));
      await removeTree(grave);
    } finally {
      await unlock();
    }
  }

  /**
   * To be called at start: removes what builds and removals left that were killed half-way, and names that lead nowhere.
   *
   * @returns what was removed, for the log
   */
  async sweep(): Promise<string[]> {
    await this.open();
    const removed = await sweepUnfinished(this.templatesDir);
    for (const name of await readdirOrNone(join(this.templatesDir, "by-name"))) {
      const path = join(this.templatesDir, "by-name", name);
      const leads =
        TEMPLATE_NAME.test(name) && (await exists(join(this.templatesDir, basename(await readlink(path)))));
      if (leads) continue;
      await rm(path, { force: true });
      removed.push(`by-name/${name}`);
    }
    return removed;
  }

  async #read(hash: string, names: string[]): Promise<StoredTemplate> {
    const dir = join(this.templatesDir, hash);
    let manifest: TemplateManifest;
    try {
      manifest = manifestSchema.parse(JSON.parse(await readFile(join(dir, "manifest.json"), "utf8")));
    } catch (error) {
      throw new CodedError(
        "internal",
        `The manifest of template ${hash.slice(0, 16)} cannot be read: ${String(error)}. Remove ${dir} and build the template again.`,
        { cause: error },
      );
    }
    return {
      name: manifest.name,
      hash,
      rootfsDir: join(dir, "rootfs"),
      goldenDir: (driver) => join(dir, "golden", driver),
      manifest,
      names,
    };
  }

  async #removeName(name: string): Promise<void> {
    await rm(join(this.templatesDir, "by-name", name), { force: true });
  }

  async #hashOfName(name: string): Promise<string | undefined> {
    if (!TEMPLATE_NAME.test(name)) return undefined;
    try {
      const hash = basename(await readlink(join(this.templatesDir, "by-name", name)));
      return (await exists(join(this.templatesDir, hash))) ? hash : undefined;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
      throw error;
    }
  }

  async #hashOfPrefix(prefix: string): Promise<string | undefined> {
    if (!HASH_PREFIX.test(prefix)) return undefined;
    const names = await this.#namesByHash();
    const matches: string[] = [];
    for (const hash of await readdirOrNone(this.templatesDir)) {
      if (!HASH.test(hash) || !hash.startsWith(prefix)) continue;
      if (names.has(hash) || (await this.#read(hash, [])).manifest.image === undefined) matches.push(hash);
    }
    if (matches.length > 1) {
      throw new CodedError(
        "invalid_request",
        `${prefix} is the beginning of ${matches.length} templates: ${matches.map((hash) => hash.slice(0, 16)).join(", ")}. Give more digits.`,
      );
    }
    return matches[0];
  }

  async #namesByHash(): Promise<Map<string, string[]>> {
    const names = new Map<string, string[]>();
    for (const name of (await readdirOrNone(join(this.templatesDir, "by-name"))).sort()) {
      if (!TEMPLATE_NAME.test(name)) continue;
      const hash = await this.#hashOfName(name);
      if (hash !== undefined) names.set(hash, [...(names.get(hash) ?? []), name]);
    }
    return names;
  }
}

/** Writes a folder and its file system to disk, so that a rename after it cannot outrun it. */
async function syncFolder(dir: string): Promise<void> {
  await run(["sync", "--file-system", dir], { timeoutMs: 600_000 });
}

async function readdirOrNone(dir: string): Promise<string[]> {
  try {
    return await readdir(dir);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return [];
    throw error;
  }
}

async function exists(path: string): Promise<boolean> {
  try {
    await lstat(path);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return false;
    throw error;
  }
}
