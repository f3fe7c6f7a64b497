import { lstat, readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { type ArchiveNames, entriesOf, readArchiveNames } from "./archive-names.ts";
import { type ImageReference, parseImageReference } from "./image-reference.ts";
import type { ImageSource } from "./image-source.ts";

/** More than anybody keeps by hand. */
const MAX_ENTRIES = 1_000;

/** The operator's folder of images, which whoever may build templates can build from. */
export class ImagesFolder {
  readonly #dir: string;
  /** What archives said of themselves, by path, size and time: a large one is read once. */
  readonly #archives = new Map<string, ArchiveNames | undefined>();

  constructor(dir: string) {
    this.#dir = dir;
  }

  /**
   * Looks for an image by name. An entry of the folder is compared with the name, and never made into a path from it:
   * OCI layouts and archives that are called like the image (`python:3.12`, `python_3.12`, `team_app_1.tar`), layouts
   * called like its repository with a tag of that name, and whatever names the image inside.
   */
  async find(wanted: ImageReference): Promise<ImageSource | undefined> {
    const entries = await readdir(this.#dir, { withFileTypes: true }).catch(
      (error: NodeJS.ErrnoException) => {
        if (error.code === "ENOENT") return [];
        throw error;
      },
    );
    for (const entry of entries.slice(0, MAX_ENTRIES).sort((a, b) => (a.name < b.name ? -1 : 1))) {
      const path = join(this.#dir, entry.name);
      const found = entry.isDirectory()
        ? await inLayout(path, entry.name, wanted)
        : entry.isFile()
          ? await this.#inArchive(path, entry.name, wanted)
          : undefined;
      if (found !== undefined) return found;
    }
    return undefined;
  }

  async #inArchive(path: string, name: string, wanted: ImageReference): Promise<ImageSource | undefined> {
    const { size, mtimeMs } = await lstat(path);
    const key = `${path}\0${size}\0${mtimeMs}`;
    if (!this.#archives.has(key)) this.#archives.set(key, await readArchiveNames(path));
    const archive = this.#archives.get(key);
    const inside = archive?.names.find((candidate) => means(candidate, wanted));
    if (archive !== undefined && inside !== undefined) return { kind: archive.kind, path, image: inside };
    const stem = name.replace(/\.tar(\.gz|\.bz2|\.xz|\.zst)?$/, "");
    if (stem === name || !isCalled(stem, wanted)) return undefined;
    return { kind: archive?.kind ?? "docker-archive", path, image: undefined };
  }
}

async function inLayout(
  path: string,
  name: string,
  wanted: ImageReference,
): Promise<ImageSource | undefined> {
  const text = await readFile(join(path, "index.json"), "utf8").catch(() => undefined);
  const entries = text === undefined ? undefined : entriesOf(text);
  if (entries === undefined) return undefined;
  const byDigest = entries.find(({ digest }) => digest === wanted.digest);
  const byName = entries.find(({ names }) => names.some((inside) => means(inside, wanted)));
  const byTag =
    name === bareName(wanted) || isCalled(name, wanted)
      ? entries.find(({ names }) => wanted.tag !== undefined && names.includes(wanted.tag))
      : undefined;
  const [only] = entries.length === 1 ? entries : [];
  const called =
    isCalled(name, wanted) && (only?.names.length === 0 || name !== bareName(wanted)) ? only : undefined;
  const found = byDigest ?? byName ?? byTag ?? called;
  if (found === undefined) return undefined;
  return { kind: "oci", path, image: entries.length === 1 ? undefined : found.names[0] };
}

/** Whether a whole name that was found inside an image is the one that is wanted. */
function means(candidate: string, wanted: ImageReference): boolean {
  if (!/[:/]/.test(candidate)) return false; // a tag alone says nothing of the repository
  try {
    const parsed = parseImageReference(candidate);
    return (
      wanted.tag !== undefined &&
      parsed.tag === wanted.tag &&
      parsed.repository === wanted.repository &&
      // A default registry that is written out in one and left out in the other is the same to container tools.
      (parsed.registry === wanted.registry || wanted.registry === undefined)
    );
  } catch {
    return false;
  }
}

/** Whether a file or folder is called like the image, with `_` for what a name there can do without. */
function isCalled(name: string, { registry, repository, tag, digest }: ImageReference): boolean {
  const bare = bareName({ registry, repository });
  const whole = `${bare}:${tag ?? digest ?? ""}`;
  return name === whole || name === whole.replaceAll(":", "_") || (tag === "latest" && name === bare);
}

function bareName({ registry, repository }: Pick<ImageReference, "registry" | "repository">): string {
  return (registry === undefined ? repository : `${registry}/${repository}`).replaceAll("/", "_");
}
