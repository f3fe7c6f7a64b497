import { mkdir, readdir, readFile, rename, rm, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { isDeepStrictEqual } from "node:util";
import { CodedError, networkPolicySchema } from "@torpor/protocol";
import { z } from "zod";
import { Checksums, sha256Of } from "./checksum.ts";
import { sync } from "../sync.ts";
import { writingBack } from "./write-back.ts";

const sizedSchema = z.object({ name: z.string(), size: z.number().int() });
const fileSchema = z.union([
  sizedSchema.extend({ blake3: z.string() }),
  sizedSchema.extend({ sha256: z.string() }), // as earlier versions wrote it
]);

/** What is removed is freed so much later: its caller has its answer by then. */
const FREE_AFTER_MS = 100;

/** What an image is and what may restore it. Written last; an image without it is none. */
const manifestSchema = z.object({
  format: z.literal(1),
  id: z.string(),
  /**
   * `hibernation`: the one image a sleeping machine wakes from, consumed once. `snapshot`: kept until deleted. `fork`: there
   * for the children of one fork, and no longer than this process.
   */
  kind: z.enum(["hibernation", "snapshot", "fork"]),
  /** False: it holds files alone, and is booted from. */
  memory: z.boolean().default(true),
  machine_id: z.string(),
  tenant: z.string(),
  generation: z.number().int(),
  template: z.string(),
  template_hash: z.string(),
  driver: z.string(),
  driver_version: z.string(),
  acceleration: z.string(),
  cpu: z.number(),
  memory_mb: z.number().int(),
  disk_mb: z.number().int(),
  network: networkPolicySchema,
  /** The key the locked guest asks for before it takes a new identity. */
  host_key: z.string(),
  /** What the guest was told at its last init. */
  settings: z.object({
    env: z.record(z.string(), z.string()),
    user: z.string(),
    workdir: z.string(),
    start: z.object({ command: z.string(), user: z.string(), workdir: z.string() }).optional(),
    /** Sealed. */
    secrets: z.string().optional(),
  }),
  name: z.string().nullable(),
  created_at: z.string(),
  /** None of a fork's, which is not checked. */
  files: z.array(fileSchema),
  size_bytes: z.number().int(),
});
export type ImageManifest = z.infer<typeof manifestSchema>;

/** What the caller knows of a new image; the store adds files, sizes and checksums. */
export type NewImage = Omit<ImageManifest, "format" | "files" | "size_bytes" | "created_at">;

const MANIFEST = "manifest.json";
const DATA = "data";
const IMAGE_ID = /^[a-z0-9]{20,64}$/;

/**
 * Images of machines, a directory each: `<id>/manifest.json` and `<id>/data/`. One is written under a temporary name,
 * synced, checksummed and renamed: the rename is the moment at which it exists.
 *
 * A fork's lives for the seconds in which its children are made. It is read back from memory, where it has just been written,
 * and a host that dies takes the fork with it: so it is neither synced nor checksummed, and known to this process alone.
 */
export class ImageStore {
  readonly #directory: string;
  readonly #checksums = new Checksums();
  /** Folders of what was removed and is still to be freed. */
  readonly #graves = new Set<string>();
  /** Images being written, by id. */
  readonly #committing = new Map<string, Promise<ImageManifest>>();
  /** Checks under way, by image: the children of a fork share one. */
  readonly #verifying = new Map<string, Promise<void>>();
  /** Images of forks, by id. */
  readonly #passing = new Map<string, ImageManifest>();

  constructor(directory: string) {
    this.#directory = directory;
  }

  /** Makes the folder and removes what was being written or removed when an earlier process died. */
  async open(): Promise<void> {
    await mkdir(this.#directory, { recursive: true, mode: 0o700 });
    for (const name of await readdir(this.#directory)) {
      if (!IMAGE_ID.test(name)) await rm(join(this.#directory, name), { recursive: true, force: true });
    }
  }

  /**
   * Has `write` make a directory with the image's files, which need not be synced, and commits it. A fork's is only kept.
   *
   * @param growing names of files that `write` appends to and never changes, and that hold the most: they are read for their
   *   checksums and sent to the disk while they are written
   * @throws whatever `write` throws, or the file system; nothing stays then
   */
  commit(
    image: NewImage,
    write: (dataDir: string) => Promise<void>,
    growing: readonly string[] = [],
  ): Promise<ImageManifest> {
    const made = image.kind === "fork" ? this.#keep(image, write) : this.#commit(image, write, growing);
    const committing = made.finally(() => this.#committing.delete(image.id));
    this.#committing.set(image.id, committing);
    return committing;
  }

  /** The commit under way of an image; undefined when there is none. */
  committing(id: string): Promise<ImageManifest> | undefined {
    return this.#committing.get(id);
  }

  async #commit(
    image: NewImage,
    write: (dataDir: string) => Promise<void>,
    growing: readonly string[],
  ): Promise<ImageManifest> {
    const unfinished = join(this.#directory, `.${image.id}.unfinished`);
    const dataDir = join(unfinished, DATA);
    const followed = growing.map((name) => join(dataDir, name));
    try {
      await rm(unfinished, { recursive: true, force: true });
      await mkdir(unfinished, { recursive: true, mode: 0o700 });
      await this.#checksums.following(followed, () => writingBack(followed, () => write(dataDir)));
      const names = (await readdir(dataDir)).toSorted();
      const syncing = Promise.all(names.map((name) => sync(join(dataDir, name))));
      syncing.catch(() => {}); // looked at below
      const files: ImageManifest["files"] = [];
      for (const name of names) files.push({ name, ...(await this.#checksums.of(join(dataDir, name))) });
      await syncing;
      const manifest: ImageManifest = {
        format: 1,
        ...image,
        created_at: new Date().toISOString(),
        files,
        size_bytes: files.reduce((sum, file) => sum + file.size, 0),
      };
      await writeFile(join(unfinished, MANIFEST), JSON.stringify(manifest), { mode: 0o600 });
      await Promise.all([join(unfinished, MANIFEST), dataDir, unfinished].map(sync));
      await rename(unfinished, join(this.#directory, image.id));
      await sync(this.#directory);
      return manifest;
    } catch (error) {
      this.#checksums.forget(followed);
      await rm(unfinished, { recursive: true, force: true });
      throw error;
    }
  }

  async #keep(image: NewImage, write: (dataDir: string) => Promise<void>): Promise<ImageManifest> {
    const directory = this.#passingDir(image.id);
    try {
      await rm(directory, { recursive: true, force: true });
      await mkdir(directory, { recursive: true, mode: 0o700 });
      const dataDir = join(directory, DATA);
      await write(dataDir);
      let sizeBytes = 0;
      for (const name of await readdir(dataDir)) sizeBytes += (await stat(join(dataDir, name))).size;
      const created_at = new Date().toISOString();
      const manifest: ImageManifest = { format: 1, ...image, created_at, files: [], size_bytes: sizeBytes };
      this.#passing.set(image.id, manifest);
      return manifest;
    } catch (error) {
      await rm(directory, { recursive: true, force: true });
      throw error;
    }
  }

  /** No image's name: what a process leaves goes at the start of the next. */
  #passingDir(id: string): string {
    return join(this.#directory, `.${id}.passing`);
  }

  /** The manifest of an image; undefined when there is none. @throws CodedError `image_corrupt` for one that cannot be read */
  async find(id: string): Promise<ImageManifest | undefined> {
    if (!IMAGE_ID.test(id)) return undefined;
    const passing = this.#passing.get(id);
    if (passing !== undefined) return passing;
    let text: string;
    try {
      text = await readFile(join(this.#directory, id, MANIFEST), "utf8");
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
      throw error;
    }
    try {
      return manifestSchema.parse(JSON.parse(text));
    } catch (error) {
      throw new CodedError("image_corrupt", `the manifest of image ${id} cannot be read: ${String(error)}`, {
        cause: error,
      });
    }
  }

  /** Every image but forks'; one whose manifest cannot be read is told to `onBroken` and left out. */
  async list(onBroken: (id: string, error: unknown) => void): Promise<ImageManifest[]> {
    const found: ImageManifest[] = [];
    for (const id of (await readdir(this.#directory)).filter((name) => IMAGE_ID.test(name))) {
      try {
        const manifest = await this.find(id);
        if (manifest !== undefined) found.push(manifest);
      } catch (error) {
        onBroken(id, error);
      }
    }
    return found;
  }

  /** Where the driver finds the image's files. */
  dataDir(id: string): string {
    return join(this.#passing.has(id) ? this.#passingDir(id) : join(this.#directory, id), DATA);
  }

  /** Reads every file and compares; callers at the same time share one reading. @throws CodedError `image_corrupt` naming the file */
  verify(manifest: ImageManifest): Promise<void> {
    let verifying = this.#verifying.get(manifest.id);
    if (verifying === undefined) {
      verifying = this.#verify(manifest).finally(() => this.#verifying.delete(manifest.id));
      this.#verifying.set(manifest.id, verifying);
    }
    return verifying;
  }

  async #verify(manifest: ImageManifest): Promise<void> {
    for (const expected of manifest.files) {
      const corrupt = (why: string): CodedError =>
        new CodedError(
          "image_corrupt",
          `image ${manifest.id} cannot be restored: ${expected.name} ${why}. Nothing was changed; restore the file from a backup, or destroy the sandbox`,
          { details: { file: expected.name } },
        );
      const path = join(this.dataDir(manifest.id), expected.name);
      const reading = "blake3" in expected ? this.#checksums.of(path) : sha256Of(path);
      const actual = await reading.catch((error: unknown) => {
        throw corrupt(`cannot be read (${String(error)})`);
      });
      if (actual.size !== expected.size)
        throw corrupt(`has ${actual.size} bytes instead of ${expected.size}`);
      if (!isDeepStrictEqual({ name: expected.name, ...actual }, expected))
        throw corrupt("does not have the checksum it was written with");
    }
  }

  /**
   * Removes an image: it is gone when this settles, its blocks are freed in the background, which for a large one takes a
   * while. Idempotent. Renamed first, so that half of one is never taken for an image.
   */
  async remove(id: string): Promise<void> {
    if (!IMAGE_ID.test(id)) return;
    const grave = join(this.#directory, `.${id}.removing`);
    const place = this.#passing.delete(id) ? this.#passingDir(id) : join(this.#directory, id);
    await rm(grave, { recursive: true, force: true }); // of a removal that was interrupted
    try {
      await rename(place, grave);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
    }
    // What is written to the disk meanwhile would wait for it, a commit of who has just woken for one.
    this.#graves.add(grave);
    setTimeout(() => void this.#free(grave), FREE_AFTER_MS).unref();
  }

  /** Frees at once what was removed just now. */
  async close(): Promise<void> {
    await Promise.all([...this.#graves].map((grave) => this.#free(grave)));
  }

  async #free(grave: string): Promise<void> {
    if (this.#graves.delete(grave)) await rm(grave, { recursive: true, force: true }).catch(() => {}); // what stays goes at the next start
  }
}
