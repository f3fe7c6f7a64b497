import { randomBytes } from "node:crypto";
import { createReadStream, createWriteStream, type Stats } from "node:fs";
import { rename, rm, stat } from "node:fs/promises";
import { basename, join, resolve } from "node:path";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { type FileEntry, NotFoundError, type Sandbox } from "@torpor/sdk";
import { CodedError } from "@torpor/protocol";
import { guestBasename, guestJoin } from "./location.ts";
import { packDirectory, unpackInto } from "./host-archive.ts";

export interface Copied {
  kind: "file" | "directory";
  from: string;
  to: string;
}

/**
 * Copies a file or directory of this machine into a sandbox, as `cp -r` would: into `guestPath` when that is a
 * directory (or ends with `/`), else to that name. A source that ends with `/.` stands for the directory's content.
 */
export async function copyIn(
  sandbox: Sandbox,
  hostPath: string,
  guestPath: string,
  signal?: AbortSignal,
): Promise<Copied> {
  const source = await statHost(hostPath);
  const target = await guestEntry(sandbox, guestPath, signal);
  const intoDirectory = target?.type === "dir" || guestPath.endsWith("/");
  const contentOnly = /(^|\/)\.\/?$/.test(hostPath);
  const to = intoDirectory && !contentOnly ? guestJoin(guestPath, basename(resolve(hostPath))) : guestPath;
  const calls = signal === undefined ? {} : { signal };
  if (source.isDirectory()) {
    if (target !== undefined && target.type !== "dir")
      throw new CodedError(
        "invalid_path",
        `${guestPath} in the sandbox is no directory, and ${hostPath} is one`,
      );
    await sandbox.files.uploadArchive(to, packDirectory(hostPath, signal), { ...calls, timeoutMs: 0 });
    return { kind: "directory", from: hostPath, to };
  }
  if (!source.isFile()) throw new CodedError("invalid_path", `${hostPath} is neither a file nor a directory`);
  const mode = source.mode & 0o777;
  await sandbox.files.write(to, createReadStream(hostPath), { ...calls, mode });
  return { kind: "file", from: hostPath, to };
}

/** Copies a file or directory of a sandbox to this machine, with the same rules. */
export async function copyOut(
  sandbox: Sandbox,
  guestPath: string,
  hostPath: string,
  signal?: AbortSignal,
): Promise<Copied> {
  const calls = signal === undefined ? {} : { signal };
  const source = await sandbox.files.stat(guestPath.replace(/(?<=.)\/\.?$/, ""), calls);
  const isDirectory = await stat(hostPath).then(
    (found) => found.isDirectory(),
    () => false,
  );
  const contentOnly = /\/\.\/?$/.test(guestPath);
  const name = guestBasename(guestPath);
  const to =
    (isDirectory || hostPath.endsWith("/")) && !contentOnly && name !== "" ? join(hostPath, name) : hostPath;
  if (source.type === "dir") {
    await unpackInto(to, await sandbox.files.downloadArchive(source.path, calls), signal);
    return { kind: "directory", from: guestPath, to };
  }
  if (source.type !== "file")
    throw new CodedError("invalid_path", `${guestPath} in the sandbox is neither a file nor a directory`);
  await writeHostFile(to, await sandbox.files.readStream(guestPath, calls), source.mode & 0o777, signal);
  return { kind: "file", from: guestPath, to };
}

/** Writes beside the target first, so that a download that breaks off leaves the old file whole. */
async function writeHostFile(
  path: string,
  content: ReadableStream<Uint8Array>,
  mode: number,
  signal?: AbortSignal,
): Promise<void> {
  const existing = await stat(path).catch(() => undefined);
  const options = signal === undefined ? {} : { signal };
  if (existing !== undefined && !existing.isFile()) {
    await pipeline(readable(content), createWriteStream(path), options); // /dev/null, a fifo
    return;
  }
  const unfinished = `${path}.${randomBytes(4).toString("hex")}.part`;
  try {
    await pipeline(
      readable(content),
      createWriteStream(unfinished, {
        flags: "wx",
        mode: existing === undefined ? mode : existing.mode & 0o777,
      }),
      options,
    );
    await rename(unfinished, path);
  } catch (error) {
    await rm(unfinished, { force: true });
    const { code, syscall } = error as NodeJS.ErrnoException;
    if (syscall === undefined) throw error;
    throw new CodedError(
      "invalid_path",
      `cannot write ${path}: ${code === "ENOENT" ? "its directory is not there" : (code ?? String(error))}`,
      { cause: error },
    );
  }
}

/** A web stream as one of Node's. */
function readable(stream: ReadableStream<Uint8Array>): Readable {
  return Readable.from(stream, { objectMode: false });
}

async function statHost(path: string): Promise<Stats> {
  try {
    return await stat(path);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    throw new CodedError(
      "file_not_found",
      `${path} on this machine cannot be copied: ${code === "ENOENT" ? "it is not there" : (code ?? String(error))}`,
    );
  }
}

async function guestEntry(
  sandbox: Sandbox,
  path: string,
  signal?: AbortSignal,
): Promise<FileEntry | undefined> {
  try {
    return await sandbox.files.stat(path.replace(/(?<=.)\/+$/, ""), signal === undefined ? {} : { signal });
  } catch (error) {
    if (error instanceof NotFoundError && error.code === "file_not_found") return undefined;
    throw error;
  }
}
