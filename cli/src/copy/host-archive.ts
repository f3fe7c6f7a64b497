import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir } from "node:fs/promises";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { CodedError } from "@torpor/protocol";
import { guardArchive } from "./archive-guard.ts";

/** The content of a directory of this machine as a tar stream, entries relative to it. Read it to its end or destroy it. */
export async function* packDirectory(directory: string, signal?: AbortSignal): AsyncGenerator<Uint8Array> {
  const child = spawn("tar", ["-C", directory, "-cf", "-", "."], { stdio: ["ignore", "pipe", "pipe"] });
  const complaints = collect(child.stderr);
  const ended = once(child, "close") as Promise<[number | null]>;
  ended.catch(() => {}); // it could not be started: told below, by whoever reads
  const kill = (): void => void child.kill("SIGKILL");
  signal?.addEventListener("abort", kill, { once: true });
  try {
    for await (const chunk of child.stdout) yield chunk as Uint8Array;
    const [code] = await ended;
    signal?.throwIfAborted();
    // 1: a file changed while it was read, which GNU tar packs all the same.
    if (code !== 0 && code !== 1)
      throw new CodedError(
        "invalid_request",
        `tar could not read ${directory} (exit ${code}): ${await complaints}`,
      );
  } finally {
    signal?.removeEventListener("abort", kill);
    child.kill("SIGKILL");
  }
}

/**
 * Unpacks a tar stream from a sandbox below `directory`, which is made when missing. What comes from a sandbox is
 * untrusted: only files, directories and links are taken, nothing outside, owned by us, without set-id bits.
 *
 * @throws CodedError when the archive holds anything else or cannot be unpacked; part of it may then be there.
 */
export async function unpackInto(
  directory: string,
  archive: ReadableStream<Uint8Array>,
  signal?: AbortSignal,
): Promise<void> {
  await mkdir(directory, { recursive: true });
  const child = spawn("tar", ["-C", directory, "-xf", "-", "--no-same-owner", "--no-same-permissions"], {
    stdio: ["pipe", "ignore", "pipe"],
  });
  const complaints = collect(child.stderr);
  const ended = once(child, "close") as Promise<[number | null]>;
  ended.catch(() => {});
  try {
    await pipeline(Readable.from(guardArchive(archive)), child.stdin, signal === undefined ? {} : { signal });
  } catch (error) {
    child.kill("SIGKILL");
    signal?.throwIfAborted();
    const said = await complaints;
    if (error instanceof CodedError || said === "") throw error;
    throw new CodedError("invalid_request", `tar could not unpack into ${directory}: ${said}`, {
      cause: error,
    });
  }
  const [code] = await ended;
  if (code !== 0)
    throw new CodedError(
      "invalid_request",
      `tar could not unpack into ${directory} (exit ${code}): ${await complaints}`,
    );
}

async function collect(stream: AsyncIterable<Uint8Array>): Promise<string> {
  let text = "";
  try {
    for await (const chunk of stream) if (text.length < 4096) text += Buffer.from(chunk).toString("utf8");
  } catch {
    // what was said before the pipe broke is all there is
  }
  return text.trim().split("\n").slice(-3).join("; ");
}
