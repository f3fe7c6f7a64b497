import { spawn } from "node:child_process";
import { mkdir, realpath, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { type Release, run } from "@torpor/base";

/**
 * Room for an image that is being read: a file system of its own in a file, so that neither bytes nor files of an image
 * can be more than was set aside, mounted without devices, setuid and execution.
 */
export interface BuildSpace {
  /** Its folder, as processes in the mount namespace see it. */
  inside: string;
  /** The same folder, as this process reaches it. */
  outside: string;
  /** A process in the mount namespace, for `nsenter`. */
  pid: number;
  /** Files of the cgroup that the tools which work in it join. */
  joinFiles: readonly string[];
}

const MOUNT_SCRIPT = 'mount -o loop,nodev,nosuid,noexec,noatime "$0" "$1" && echo mounted && exec cat';

/**
 * Makes one below `buildDir`. The mount lives in a namespace that a child of this process holds: no machine that is
 * started meanwhile keeps a copy of it, and it ends with this process, however that ends.
 *
 * @throws ProcessError when it cannot be made or mounted
 */
export async function openBuildSpace(
  buildDir: string,
  sizeBytes: number,
  joinFiles: readonly string[],
): Promise<{ space: BuildSpace; close: Release }> {
  // Without links: an absolute one would lead from `outside` back into the mounts of this process.
  const dir = await realpath(buildDir);
  const file = join(dir, "space.img");
  const inside = join(dir, "space");
  await writeFile(file, "", { flag: "wx", mode: 0o600 });
  await truncate(file, sizeBytes);
  await run([
    "mke2fs",
    "-q",
    "-F",
    "-t",
    "ext4",
    "-O",
    "^has_journal",
    "-m",
    "0",
    "-E",
    "lazy_itable_init=1",
    file,
  ]);
  await mkdir(inside, { mode: 0o700 });
  const child = spawn(
    "setpriv",
    [
      "--pdeathsig",
      "KILL",
      "unshare",
      "--mount",
      "--propagation",
      "private",
      "--",
      "sh",
      "-c",
      MOUNT_SCRIPT,
      file,
      inside,
    ],
    { stdio: ["pipe", "pipe", "pipe"] },
  );
  const ended = new Promise<void>((resolve) => child.once("close", () => resolve()));
  child.stdin.on("error", () => {});
  const close = async (): Promise<void> => {
    child.kill("SIGKILL");
    await ended;
  };
  try {
    await new Promise<void>((resolve, reject) => {
      let said = "";
      child.stderr.on("data", (data: Buffer) => (said = (said + data.toString()).slice(-2_000)));
      child.once("error", reject);
      child.once("close", () => reject(new Error(`mounting ${file} failed: ${said.trim()}`)));
      child.stdout.once("data", () => resolve());
    });
    const pid = child.pid;
    if (pid === undefined) throw new Error("a child that mounted has no pid");
    return { space: { inside, outside: `/proc/${pid}/root${inside}`, pid, joinFiles }, close };
  } catch (error) {
    if (child.pid !== undefined) await close();
    throw error;
  }
}
