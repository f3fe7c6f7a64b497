import { readFile, rm } from "node:fs/promises";
import { join } from "node:path";
import { ProcessError } from "@torpor/base";
import { CodedError } from "@torpor/protocol";
import type { BuildProgress } from "./build-progress.ts";
import { placeFile, placeFolder, placeLink } from "./place-file.ts";
import type { Recipe, RecipeLayer } from "./recipe.ts";
import { streamLinesContained } from "./stream-lines.ts";

const SETUP_TIMEOUT_MS = 15 * 60_000;
const SETUP_PATH = "/tmp/torpor-setup";

/** Copies a layer's `files/` into the new root. */
export async function placeLayerFiles(root: string, layer: RecipeLayer): Promise<void> {
  for (const entry of layer.entries) {
    if (entry.kind === "folder") await placeFolder(root, entry.path);
    else if (entry.kind === "link") await placeLink(root, entry.path, entry.content.toString());
    else await placeFile(root, entry.path, entry.content, entry.mode);
  }
}

/**
 * Runs a layer's setup script as root inside the new root, in its own mount, pid, IPC, host-name and (unless the recipe
 * asks for the network) network namespace. Nothing that it starts or mounts outlives it.
 *
 * @throws CodedError `template_not_ready` with the script's last lines
 */
export async function runSetup(
  root: string,
  recipe: Recipe,
  layer: RecipeLayer,
  env: NodeJS.ProcessEnv,
  options: { onProgress: (progress: BuildProgress) => void; signal?: AbortSignal },
): Promise<void> {
  if (layer.setup === undefined) return;
  const index = recipe.layers.indexOf(layer);
  options.onProgress({
    stage: "setup",
    label: `Setup of ${layer.name}`,
    fraction: index / recipe.layers.length,
  });
  await placeFile(root, SETUP_PATH, layer.setup, 0o755);
  if (recipe.setupNetwork) await placeFile(root, "/etc/resolv.conf", await readFile("/etc/resolv.conf"));
  const namespaces = [
    "--ipc",
    "--uts",
    ...(recipe.setupNetwork ? [] : ["--net"]),
    `--root=${root}`,
    "--wd=/",
  ];
  try {
    // The inner shell runs in the new root and only sets what a process inherits: the umask.
    await streamLinesContained(namespaces, ["/bin/sh", "-c", 'umask 022; exec "$0"', SETUP_PATH], {
      env: {
        ...env,
        HOME: "/root",
        PATH: "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        PYTHONHASHSEED: "0",
      },
      timeoutMs: SETUP_TIMEOUT_MS,
      onLine: () => {},
      ...(options.signal === undefined ? {} : { signal: options.signal }),
    });
  } catch (error) {
    options.signal?.throwIfAborted();
    if (!(error instanceof ProcessError)) throw error;
    throw new CodedError(
      "template_not_ready",
      `Building template ${recipe.name} failed in the setup script of ${layer.name}: ${error.message}. Correct the script; it runs with \`set -e\` only if it says so.`,
      { details: { template: recipe.name, layer: layer.name, output: error.stderr }, cause: error },
    );
  }
  await rm(join(root, SETUP_PATH), { force: true });
}
