import { createHash } from "node:crypto";
import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { run } from "@torpor/base";

/** One member of a layer, as tar writes it. */
export interface LayerEntry {
  path: string;
  type?: "file" | "folder" | "link" | "hard-link" | "device";
  content?: Buffer | string;
  /** Target of a link. */
  to?: string;
  /** Default 0755. */
  mode?: number;
}

export interface ContainerImage {
  /** Folder of the OCI layout; made with the first image in it. */
  layout: string;
  tag: string;
  layers: LayerEntry[][];
  env?: string[];
  user?: string;
  workdir?: string;
  architecture?: string;
}

/** A bash without libraries, which the tests' images run. */
export const STATIC_BASH = readFileSync("/bin/bash-static");

/** Makes a container image with umoci, its layers byte by byte as they are given, whatever they hold. */
export async function makeContainerImage(image: ContainerImage): Promise<void> {
  const { layout, tag, layers, env = [], user, workdir, architecture } = image;
  const name = `${layout}:${tag}`;
  await run(["umoci", "init", "--layout", layout]).catch(() => {}); // there already
  await run(["umoci", "new", "--image", name]);
  for (const [index, entries] of layers.entries()) {
    const file = join(layout, `layer-${index}.tar`);
    writeFileSync(file, tarOf(entries));
    await run(["umoci", "raw", "add-layer", "--image", name, file]);
    rmSync(file);
  }
  await run([
    "umoci",
    "config",
    "--image",
    name,
    ...env.flatMap((entry) => ["--config.env", entry]),
    ...(user === undefined ? [] : ["--config.user", user]),
    ...(workdir === undefined ? [] : ["--config.workingdir", workdir]),
    ...(architecture === undefined ? [] : ["--architecture", architecture]),
  ]);
}

/** Rewrites the manifest of a layout's only image: of its layers it lists the first `count`, of a configuration as it was. */
export function keepLayers(layout: string, count: number): void {
  const read = (path: string) => JSON.parse(readFileSync(path, "utf8"));
  const index = read(join(layout, "index.json"));
  const blob = (digest: string): string => join(layout, "blobs", ...digest.split(":"));
  const manifest = read(blob(index.manifests[0].digest));
  const text = JSON.stringify({ ...manifest, layers: manifest.layers.slice(0, count) });
  const digest = `sha256:${createHash("sha256").update(text).digest("hex")}`;
  writeFileSync(blob(digest), text);
  index.manifests = [{ ...index.manifests[0], digest, size: text.length }];
  writeFileSync(join(layout, "index.json"), JSON.stringify(index));
}

const TYPES = { file: "0", "hard-link": "1", link: "2", device: "4", folder: "5" } as const;
const BLOCK = 512;

/** A tar of these entries (POSIX ustar), with names as they are, `..` and all. */
function tarOf(entries: readonly LayerEntry[]): Buffer {
  const blocks = entries.flatMap(({ path, type = "file", content = "", to = "", mode = 0o755 }) => {
    const bytes = type === "file" ? Buffer.from(content) : Buffer.alloc(0);
    const header = Buffer.alloc(BLOCK);
    header.write(path, 0, 100);
    header.write(`${mode.toString(8).padStart(7, "0")}\0`, 100);
    header.write("0000000\0", 108);
    header.write("0000000\0", 116);
    header.write(`${bytes.length.toString(8).padStart(11, "0")}\0`, 124);
    header.write("00000000000\0", 136);
    header.write(TYPES[type], 156);
    header.write(to, 157, 100);
    header.write("ustar\x0000", 257);
    if (type === "device") {
      header.write("0000010\0", 329); // 8:0, the first disk
      header.write("0000000\0", 337);
    }
    header.write("        ", 148);
    const sum = header.reduce((total, byte) => total + byte, 0);
    header.write(`${sum.toString(8).padStart(6, "0")}\0 `, 148);
    return [header, bytes, Buffer.alloc((BLOCK - (bytes.length % BLOCK)) % BLOCK)];
  });
  return Buffer.concat([...blocks, Buffer.alloc(2 * BLOCK)]);
}
