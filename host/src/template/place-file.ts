import { chmod, lstat, mkdir, rm, symlink, writeFile } from "node:fs/promises";
import { join, dirname } from "node:path";
import { CodedError } from "@torpor/protocol";

/**
 * Where `path` of the new root lies on this machine, with every folder above it made if missing. A link on the way
 * is refused: an absolute one would lead out of the new root and into the machine that builds it.
 *
 * @throws CodedError `invalid_request` when a part of the way is not a folder
 */
export async function placeIn(root: string, path: string): Promise<string> {
  const parts = path.split("/").filter((part) => part !== "");
  let current = root;
  for (const part of parts.slice(0, -1)) {
    if (part === ".." || part === ".")
      throw new CodedError(
        "invalid_request",
        `The template path ${path} contains ${part}. Write it without.`,
      );
    current = join(current, part);
    const stat = await lstatIfThere(current);
    if (stat === undefined) {
      await mkdir(current);
      await chmod(current, 0o755);
    } else if (!stat.isDirectory()) {
      throw new CodedError(
        "invalid_request",
        `The template path ${path} leads through ${current.slice(root.length)}, which is a link or a file in the new root. Name the folder it really lies in.`,
      );
    }
  }
  const last = parts.at(-1);
  if (last === undefined || last === ".." || last === ".")
    throw new CodedError("invalid_request", `${path} names no file in the template.`);
  return join(current, last);
}

/** Writes a file of the new root, owned by root, in place of whatever file or link was there. */
export async function placeFile(
  root: string,
  path: string,
  content: string | Buffer,
  mode = 0o644,
): Promise<void> {
  const target = await placeIn(root, path);
  await rm(target, { force: true });
  await writeFile(target, content, { flag: "wx", mode });
  await chmod(target, mode); // the umask may have taken bits away
}

/** Makes a symbolic link of the new root, in place of whatever file or link was there. */
export async function placeLink(root: string, path: string, linkTarget: string): Promise<void> {
  const target = await placeIn(root, path);
  await rm(target, { force: true });
  await symlink(linkTarget, target);
}

/** Makes a folder of the new root with these permissions; one that is there keeps its own. */
export async function placeFolder(root: string, path: string, mode = 0o755): Promise<void> {
  const target = await placeIn(root, path);
  const stat = await lstatIfThere(target);
  if (stat === undefined) {
    await mkdir(target);
    await chmod(target, mode);
  } else if (!stat.isDirectory()) {
    throw new CodedError(
      "invalid_request",
      `The template needs a folder at ${path}, but the new root has ${stat.isSymbolicLink() ? "a link" : "a file"} in ${dirname(path)} under that name.`,
    );
  }
}

/** What is at a path, a link itself and not what it leads to; undefined for nothing. */
export async function lstatIfThere(path: string): Promise<Awaited<ReturnType<typeof lstat>> | undefined> {
  try {
    return await lstat(path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
}
