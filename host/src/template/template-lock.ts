import { spawn } from "node:child_process";
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import type { Release } from "@torpor/base";

/**
 * Takes the lock of one template, between processes too, waiting until it is free. The lock is the kernel's (flock),
 * held by a small child that ends when this process ends, however that happens: a lock cannot be left behind.
 *
 * @param onWait called once if somebody else holds it
 * @throws the signal's reason when aborted while waiting; Error when `flock` cannot be run
 */
export async function lockTemplate(
  templatesDir: string,
  hash: string,
  options: { onWait?: () => void; signal?: AbortSignal } = {},
): Promise<Release> {
  options.signal?.throwIfAborted();
  const locksDir = join(templatesDir, ".locks");
  await mkdir(locksDir, { recursive: true, mode: 0o700 });
  // `cat` gives back the byte that it is sent as soon as it runs, which is when flock has the lock.
  const child = spawn("flock", ["--no-fork", join(locksDir, hash), "cat"], {
    stdio: ["pipe", "pipe", "ignore"],
  });
  const ended = new Promise<void>((resolve) => child.once("close", () => resolve()));
  child.stdin.on("error", () => {});
  const release = async (): Promise<void> => {
    child.stdin.end();
    child.kill("SIGKILL");
    await ended;
  };
  const waitTimer = setTimeout(() => options.onWait?.(), 200);
  let onAbort: (() => void) | undefined;
  try {
    await new Promise<void>((resolve, reject) => {
      onAbort = () => reject(options.signal?.reason as Error);
      options.signal?.addEventListener("abort", onAbort, { once: true });
      if (options.signal?.aborted) onAbort(); // while the folder was made
      child.once("error", (error) =>
        reject(
          new Error(
            `Locking template ${hash} failed: flock could not be run: ${error.message}. Install util-linux.`,
            { cause: error },
          ),
        ),
      );
      child.once("exit", (code) =>
        reject(
          new Error(
            `Locking template ${hash} failed: flock exited with ${code}. Check that ${locksDir} can be written.`,
          ),
        ),
      );
      child.stdout.once("data", () => resolve());
      child.stdin.write("x");
    });
    return release;
  } catch (error) {
    if (child.pid !== undefined) await release();
    throw error;
  } finally {
    clearTimeout(waitTimer);
    if (onAbort !== undefined) options.signal?.removeEventListener("abort", onAbort);
  }
}
