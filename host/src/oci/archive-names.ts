import { type FileHandle, open } from "node:fs/promises";

/** What an archive of images says of itself. */
export interface ArchiveNames {
  kind: "docker-archive" | "oci-archive";
  /** Names of its images: RepoTags of `docker save`, or the annotations of an OCI index. */
  names: string[];
}

const BLOCK = 512;
const MAX_INDEX_BYTES = 4 * 1024 * 1024;
/** More members than any image has; each costs one small read. */
const MAX_MEMBERS = 20_000;

/**
 * Reads the index of a tar of images without unpacking it: `manifest.json` (docker-archive) before `index.json`
 * (oci-archive), since what `docker save` writes today has both. Compressed archives are not looked into.
 *
 * @returns undefined for a file that is neither
 */
export async function readArchiveNames(path: string): Promise<ArchiveNames | undefined> {
  const file = await open(path, "r");
  try {
    let oci: string[] | undefined;
    let offset = 0;
    const header = Buffer.alloc(BLOCK);
    for (let member = 0; member < MAX_MEMBERS; member += 1) {
      const { bytesRead } = await file.read(header, 0, BLOCK, offset);
      if (bytesRead < BLOCK || header[0] === 0) break;
      const size = sizeOf(header);
      if (header.toString("latin1", 257, 262) !== "ustar" || size === undefined) break;
      const name = header.toString("latin1", 0, 100).replace(/\0.*$/s, "").replace(/^\.\//, "");
      if (name === "manifest.json") {
        const names = dockerNames(await contentAt(file, offset + BLOCK, size));
        return names === undefined ? undefined : { kind: "docker-archive", names };
      }
      if (name === "index.json")
        oci = entriesOf(await contentAt(file, offset + BLOCK, size))?.flatMap(({ names }) => names);
      offset += BLOCK + Math.ceil(size / BLOCK) * BLOCK;
    }
    return oci === undefined ? undefined : { kind: "oci-archive", names: oci };
  } finally {
    await file.close();
  }
}

/** The entries of an OCI index with their names, from the annotations that tools write; undefined if it is none. */
export function entriesOf(text: string): { digest: string; names: string[] }[] | undefined {
  const index = parse(text) as { manifests?: unknown } | undefined;
  if (!Array.isArray(index?.manifests)) return undefined;
  return (index.manifests as { digest?: unknown; annotations?: Record<string, unknown> | null }[]).map(
    (entry) => ({
      digest: String(entry?.digest),
      // The second is containerd's, which keeps the whole name there and the tag alone in the first.
      names: ["org.opencontainers.image.ref.name", "io.containerd.image.name"]
        .map((key) => entry?.annotations?.[key])
        .filter((name) => typeof name === "string"),
    }),
  );
}

function dockerNames(text: string): string[] | undefined {
  const manifest = parse(text);
  if (!Array.isArray(manifest)) return undefined;
  return (manifest as { RepoTags?: unknown }[]).flatMap((entry) =>
    Array.isArray(entry?.RepoTags) ? entry.RepoTags.filter((tag) => typeof tag === "string") : [],
  );
}

function sizeOf(header: Buffer): number | undefined {
  // Above 8 GiB tar writes a binary number, marked by the first bit.
  if ((header[124] ?? 0) & 0x80) return Number(header.readBigUInt64BE(128));
  const digits = header.toString("latin1", 124, 136).replace(/[\0 ]/g, "");
  return /^[0-7]*$/.test(digits) ? Number.parseInt(digits || "0", 8) : undefined;
}

async function contentAt(file: FileHandle, offset: number, size: number): Promise<string> {
  const content = Buffer.alloc(Math.min(size, MAX_INDEX_BYTES));
  const { bytesRead } = await file.read(content, 0, content.length, offset);
  return content.toString("utf8", 0, bytesRead);
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
