import { createHash } from "node:crypto";
import { link, mkdir, readFile, readdir, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { ProcessError, run } from "@torpor/base";
import { CodedError } from "@torpor/protocol";
import { placeFolder } from "./place-file.ts";
import type { NpmPackage } from "./recipe.ts";

/**
 * Unpacks one exact npm package into the new root. It comes from the registry that npm on this machine is configured
 * for, and must have the hash in the recipe. Kept in `cacheDir` afterwards.
 *
 * @param workDir an empty place for the download, on the file system of `cacheDir`
 * @throws CodedError `unsupported` without npm, `template_not_ready` when the registry cannot be reached or answers something else
 */
export async function installNpmPackage(
  root: string,
  wanted: NpmPackage,
  cacheDir: string,
  workDir: string,
  signal?: AbortSignal,
): Promise<void> {
  const tarball = await fetchTarball(wanted, cacheDir, workDir, signal);
  await placeFolder(root, wanted.directory);
  const target = join(root, wanted.directory);
  await run([
    "tar",
    "--extract",
    "--gzip",
    "--file",
    tarball,
    "--strip-components=1",
    "--no-same-owner",
    "--directory",
    target,
  ]);
  await run(["chmod", "-R", "u=rwX,go=rX", target]);
}

async function fetchTarball(
  wanted: NpmPackage,
  cacheDir: string,
  workDir: string,
  signal: AbortSignal | undefined,
): Promise<string> {
  const spec = `${wanted.name}@${wanted.version}`;
  const kept = join(
    cacheDir,
    `${wanted.integrity.slice("sha512-".length).replace(/[^A-Za-z0-9]/g, "_")}.tgz`,
  );
  if ((await integrityIfThere(kept)) === wanted.integrity) return kept;
  await mkdir(cacheDir, { recursive: true, mode: 0o700 });
  const downloadDir = join(workDir, "npm");
  await mkdir(downloadDir);
  try {
    await run(["npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", downloadDir, spec], {
      cwd: downloadDir,
      timeoutMs: 180_000,
      ...(signal === undefined ? {} : { signal }),
    });
  } catch (error) {
    if (!(error instanceof ProcessError)) throw error;
    if (error.message.includes("ENOENT")) {
      throw new CodedError(
        "unsupported",
        `Fetching ${spec} for the template failed: there is no npm on the PATH of this machine. Install npm (it comes with Node.js) and build again.`,
        { cause: error },
      );
    }
    throw new CodedError(
      "template_not_ready",
      `Fetching ${spec} for the template failed: ${error.stderr.trim() || error.message}. Check that npm on this machine reaches its registry (\`npm ping\`), then build again.`,
      { cause: error },
    );
  }
  const name = (await readdir(downloadDir)).find((entry) => entry.endsWith(".tgz"));
  const fresh = join(downloadDir, name ?? "");
  const integrity = name === undefined ? undefined : await integrityIfThere(fresh);
  if (integrity !== wanted.integrity) {
    throw new CodedError(
      "template_not_ready",
      `The registry's ${spec} has the hash ${integrity ?? "(nothing was downloaded)"}, but the recipe says ${wanted.integrity}. Nothing was built. Find out why they differ before changing the recipe.`,
    );
  }
  await link(fresh, `${kept}.${process.pid}`);
  await rename(`${kept}.${process.pid}`, kept);
  await rm(downloadDir, { recursive: true });
  return kept;
}

async function integrityIfThere(path: string): Promise<string | undefined> {
  try {
    return `sha512-${createHash("sha512")
      .update(await readFile(path))
      .digest("base64")}`;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
}
