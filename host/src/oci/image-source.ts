import { lstat, stat } from "node:fs/promises";
import { isAbsolute, join } from "node:path";
import { CodedError } from "@torpor/protocol";
import { readArchiveNames } from "./archive-names.ts";

/** Where an image is read from. */
export type ImageSource =
  | {
      kind: "oci" | "docker-archive" | "oci-archive";
      /** The layout's folder, or the archive. */
      path: string;
      /** Which image of several; undefined for the only one. */
      image: string | undefined;
    }
  | {
      kind: "registry";
      /** As skopeo takes it after `docker://`. */
      reference: string;
    };

const PREFIXED = /^(oci|docker-archive|oci-archive):(\/[^:\0\n]*)(?::([\w.:/@-]{1,256}))?$/;

/**
 * The source that an operator names: `oci:DIR[:IMAGE]`, `docker-archive:FILE[:IMAGE]`, `oci-archive:FILE[:IMAGE]`, or the
 * bare path of one of these. Paths are absolute, on the host's machine.
 *
 * @returns undefined where the text is not one of these, so that it is an image's name
 * @throws CodedError `invalid_request` for a path that is neither, or where nothing is
 */
export async function parseImageSource(text: string): Promise<ImageSource | undefined> {
  const match = PREFIXED.exec(text);
  if (match !== null) {
    const [, kind, path = "", image] = match;
    await requireThere(path);
    return { kind: kind as "oci" | "docker-archive" | "oci-archive", path, image };
  }
  if (/^(oci|docker-archive|oci-archive):/.test(text))
    throw new CodedError(
      "invalid_request",
      `image source '${text.slice(0, 200)}' names no absolute path; write it as oci:/path/to/layout or docker-archive:/path/to/file.tar, with :IMAGE behind it where there are several`,
    );
  if (!isAbsolute(text)) return undefined;
  await requireThere(text);
  const found = await sourceAt(text);
  if (found === undefined)
    throw new CodedError(
      "invalid_request",
      `there is no image at ${text.slice(0, 400)} on the host's machine: it is neither a folder with an index.json nor a tar file`,
    );
  return found;
}

/** @throws CodedError `invalid_request` where nothing lies at a path: what a tool says of that is about its jail */
async function requireThere(path: string): Promise<void> {
  try {
    await stat(path);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code !== "ENOENT" && code !== "ENOTDIR") throw error;
    throw new CodedError(
      "invalid_request",
      `there is no file or folder ${path.slice(0, 400)} on the host's machine; the path is looked up there, not where the command is given`,
    );
  }
}

/** What kind of image lies at a path; of an archive the first member that tells is asked by skopeo itself. */
async function sourceAt(path: string): Promise<ImageSource | undefined> {
  const found = await lstat(path).catch(() => undefined);
  if (found?.isDirectory() === true)
    return (await lstat(join(path, "index.json")).catch(() => undefined)) === undefined
      ? undefined
      : { kind: "oci", path, image: undefined };
  if (found?.isFile() !== true) return undefined;
  const names = await readArchiveNames(path);
  return names === undefined ? undefined : { kind: names.kind, path, image: undefined };
}
