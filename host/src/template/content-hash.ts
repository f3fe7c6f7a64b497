import { createHash } from "node:crypto";
import { createReadStream } from "node:fs";
import { pipeline } from "node:stream/promises";
import type { Recipe } from "./recipe.ts";

/** Part of every content hash: raise it when the builder makes a different tree from the same recipe. */
export const BUILDER_VERSION = 2;

/** What decides the bytes of a template, apart from the package versions of the day. */
export interface HashedInputs {
  recipe: Recipe;
  /** SHA-256 of the guest agent's binary, hex. */
  guestSha256: string;
  /** The driver whose golden snapshots will sit on this root, with its version: a snapshot is read only by what wrote it. */
  driverVersion: string;
  /** Debian's name of the architecture, such as `amd64`. */
  architecture: string;
}

/** SHA-256, hex, over a canonical form of all inputs: the name under which the template is stored. */
export function contentHash(inputs: HashedInputs): string {
  const { layers, ...declared } = inputs.recipe;
  return jsonHash({
    builderVersion: BUILDER_VERSION,
    architecture: inputs.architecture,
    driverVersion: inputs.driverVersion,
    guestSha256: inputs.guestSha256,
    recipe: declared,
    layers: layers.map((layer) => ({
      name: layer.name,
      setup: layer.setup === undefined ? null : sha256(layer.setup),
      entries: layer.entries.map(({ path, kind, mode, content }) => ({
        path,
        kind,
        mode,
        content: sha256(content),
      })),
    })),
  });
}

/** SHA-256, hex, over a canonical form of any value of JSON. */
export function jsonHash(value: unknown): string {
  return sha256(Buffer.from(canonicalJson(value)));
}

/** SHA-256 of a file, hex, read in pieces. */
export async function fileSha256(path: string): Promise<string> {
  const hash = createHash("sha256");
  await pipeline(createReadStream(path), hash);
  return hash.digest("hex");
}

function sha256(content: Buffer): string {
  return createHash("sha256").update(content).digest("hex");
}

/** JSON with sorted keys, so that the order in which a recipe is written does not matter. */
function canonicalJson(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonicalJson).join(",")}]`;
  if (typeof value === "object" && value !== null) {
    const fields = Object.entries(value).filter(([, field]) => field !== undefined);
    fields.sort(([a], [b]) => (a < b ? -1 : 1));
    return `{${fields.map(([key, field]) => `${JSON.stringify(key)}:${canonicalJson(field)}`).join(",")}}`;
  }
  return JSON.stringify(value);
}
