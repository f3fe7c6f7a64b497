import { mkdir, rm, statfs, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { Scope, run } from "@torpor/base";
import { CodedError } from "@torpor/protocol";
import { readAptSettings } from "./apt-settings.ts";
import { findAptSources } from "./apt-sources.ts";
import { archivesDir, bootstrapRoot } from "./bootstrap-root.ts";
import { type BuildProgress, monotone } from "./build-progress.ts";
import { makeUnfinishedDir } from "./building-dir.ts";
import { BUILDER_VERSION, contentHash, fileSha256 } from "./content-hash.ts";
import { clampTimes, finishRoot, installedPackages } from "./finish-root.ts";
import type { TemplateManifest } from "./manifest.ts";
import { removeTree } from "./mounts.ts";
import { installNpmPackage } from "./npm-package.ts";
import { PackageCache } from "./package-cache.ts";
import type { Recipe } from "./recipe.ts";
import { placeLayerFiles, runSetup } from "./run-setup.ts";
import { lockTemplate } from "./template-lock.ts";
import { type StoredTemplate, TemplateStore } from "./template-store.ts";
import { digestTree } from "./tree-digest.ts";

/** Free space without which a build is not begun: code-interpreter takes 1 GiB, its packages and margin the rest. */
const FREE_BYTES_MIN = 3 * 1024 ** 3;

export interface BuildTemplateOptions {
  recipe: Recipe;
  /** The guest agent, a static binary. */
  guestBinaryPath: string;
  /** Driver and version whose golden snapshots will lie on this root, such as `gvisor/20240729.0`. */
  driverVersion: string;
  templatesDir: string;
  /** Where downloads are kept between builds; default `cache` beside `templatesDir`. Same file system, or nothing is kept. */
  cacheDir?: string;
  /** Address of a Debian archive; default: the one this machine's apt is configured for. */
  mirror?: string;
  /** Bytes that must be free; default `FREE_BYTES_MIN`. */
  freeBytesMin?: number;
  onProgress?: (progress: BuildProgress) => void;
  signal?: AbortSignal;
}

export interface BuiltTemplate extends StoredTemplate {
  /** Whether it was there already, built by an earlier or a concurrent call. */
  cached: boolean;
}

/**
 * Builds a template, unless one with the same content hash is there, and makes the recipe's name lead to it. Needs root,
 * mmdebstrap and the machine's package archive. Calls for the same hash, from any process, wait for each other; one that
 * fails, is aborted or is killed leaves nothing that looks finished (`TemplateStore.sweep` clears the rest).
 *
 * @throws CodedError `permission_denied`, `unsupported`, `no_space`, `invalid_request` or `template_not_ready`, each
 *   saying what to do; the signal's reason when aborted
 */
export async function buildTemplate(options: BuildTemplateOptions): Promise<BuiltTemplate> {
  const startedAt = Date.now();
  const { recipe, signal } = options;
  const report = monotone(options.onProgress ?? (() => {}));
  signal?.throwIfAborted();
  report({ stage: "prepare", label: "Checking the machine", fraction: 0 });
  if (process.getuid?.() !== 0) {
    throw new CodedError(
      "permission_denied",
      `Building template ${recipe.name} needs root: it makes device files and files of other users. Run it with sudo, or let the host agent do it.`,
    );
  }
  const architecture = await debianArchitecture(recipe.name);
  const guestSha256 = await hashGuest(options.guestBinaryPath);
  const hash = contentHash({ recipe, guestSha256, driverVersion: options.driverVersion, architecture });

  const store = new TemplateStore(options.templatesDir);
  await store.open();
  await using scope = new Scope();
  const onWait = (): void =>
    report({ stage: "prepare", label: "Waiting for another build of this template", fraction: 0.5 });
  scope.defer(
    await lockTemplate(options.templatesDir, hash, signal === undefined ? { onWait } : { onWait, signal }),
  );

  if ((await store.find(hash)) === undefined) {
    await checkFreeSpace(options);
    const buildDir = await makeUnfinishedDir(options.templatesDir, "building");
    scope.defer(() => removeTree(buildDir));
    const finishedDir = await buildInto(buildDir, {
      ...options,
      architecture,
      guestSha256,
      hash,
      startedAt,
      report,
    });
    signal?.throwIfAborted();
    await store.commitBuilt(finishedDir, hash);
    await store.commitName(recipe.name, hash);
    report({ stage: "commit", label: "Done", fraction: 1 });
    return { ...(await store.resolve(hash)), cached: false };
  }
  await store.commitName(recipe.name, hash);
  report({ stage: "commit", label: "Already built", fraction: 1 });
  return { ...(await store.resolve(hash)), cached: true };
}

interface BuildPlan extends BuildTemplateOptions {
  architecture: string;
  guestSha256: string;
  hash: string;
  startedAt: number;
  report: (progress: BuildProgress) => void;
}

/** Builds within `buildDir` and gives back the finished folder in it. */
async function buildInto(buildDir: string, plan: BuildPlan): Promise<string> {
  const { recipe, report, signal } = plan;
  const signalOption = signal === undefined ? {} : { signal };
  const cacheDir = plan.cacheDir ?? join(plan.templatesDir, "..", "cache");
  await mkdir(cacheDir, { recursive: true, mode: 0o700 });
  const finishedDir = join(buildDir, "template");
  const root = join(finishedDir, "rootfs");
  await mkdir(finishedDir, { mode: 0o700 });
  const sources = await findAptSources(
    recipe.suite,
    recipe.components,
    plan.mirror === undefined ? {} : { mirror: plan.mirror },
  );
  const settings = await readAptSettings();
  const cache = new PackageCache(join(cacheDir, "apt"));
  const env = buildEnvironment(recipe);
  report({ stage: "prepare", label: "Ready", fraction: 1 });

  await bootstrapRoot({
    recipe,
    sources,
    settings,
    cache,
    root,
    workDir: buildDir,
    env,
    onProgress: report,
    ...signalOption,
  });
  // Collected now, kept only when they are known to be on disk: after a crash a kept package must be whole.
  const archives = join(buildDir, "archives");
  await run(["cp", "--archive", "--link", archivesDir(root), archives]);
  // Before the setup scripts, so that byte code compiled by them carries time stamps that last.
  await clampTimes(root, recipe.sourceDateEpoch);

  for (const wanted of recipe.npmPackages) {
    report({ stage: "setup", label: `Adding ${wanted.name} ${wanted.version}`, fraction: 0 });
    await installNpmPackage(root, wanted, join(cacheDir, "npm"), buildDir, signal);
  }
  for (const layer of recipe.layers) await placeLayerFiles(root, layer);
  for (const layer of recipe.layers)
    await runSetup(root, recipe, layer, env, { onProgress: report, ...signalOption });
  report({ stage: "setup", label: "Set up", fraction: 1 });

  report({ stage: "finish", label: "Adding the guest agent, removing traces of the build", fraction: 0 });
  await finishRoot(root, { recipe, sources, settings, guestBinaryPath: plan.guestBinaryPath });
  await clampTimes(root, recipe.sourceDateEpoch);
  report({ stage: "finish", label: "Finished", fraction: 1 });

  report({ stage: "digest", label: "Reading back every file", fraction: 0 });
  const digest = await digestTree(root, signal);
  const manifest: TemplateManifest = {
    formatVersion: 1,
    name: recipe.name,
    hash: plan.hash,
    description: recipe.description,
    suite: recipe.suite,
    architecture: plan.architecture,
    builderVersion: BUILDER_VERSION,
    driverVersion: plan.driverVersion,
    guestSha256: plan.guestSha256,
    sourceDateEpoch: recipe.sourceDateEpoch,
    treeDigest: digest.sha256,
    sizeBytes: digest.sizeBytes,
    entryCount: digest.entryCount,
    packages: await installedPackages(root),
    env: recipe.env,
    user: recipe.user,
    workdir: recipe.workdir,
    services: recipe.services,
    builtAt: new Date().toISOString(),
    buildSeconds: Math.round((Date.now() - plan.startedAt) / 100) / 10,
  };
  await writeFile(join(finishedDir, "manifest.json"), `${JSON.stringify(manifest, null, 2)}\n`);
  report({ stage: "digest", label: "Digested", fraction: 1 });
  report({ stage: "commit", label: "Writing to disk", fraction: 0 });
  await run(["sync", "--file-system", buildDir], { timeoutMs: 600_000 });
  await cache.keep(archives, new Date());
  await rm(archives, { recursive: true });
  return finishedDir;
}

/** Only what a build needs: the caller's environment must not find its way into a template. */
function buildEnvironment(recipe: Recipe): NodeJS.ProcessEnv {
  return {
    PATH: "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    LC_ALL: "C.UTF-8",
    DEBIAN_FRONTEND: "noninteractive",
    SOURCE_DATE_EPOCH: String(recipe.sourceDateEpoch),
    PYTHONHASHSEED: "0",
  };
}

async function debianArchitecture(template: string): Promise<string> {
  try {
    return (await run(["dpkg", "--print-architecture"])).stdout.trim();
  } catch (error) {
    throw new CodedError(
      "unsupported",
      `Building template ${template} needs dpkg and mmdebstrap, and dpkg could not be run: ${String(error)}. Build on Debian or Ubuntu, or install both packages.`,
      { cause: error },
    );
  }
}

async function hashGuest(path: string): Promise<string> {
  try {
    return await fileSha256(path);
  } catch (error) {
    throw new CodedError(
      "unsupported",
      `The guest agent's binary ${path} cannot be read: ${String(error)}. Build it first (\`go build\` in guest/).`,
      { cause: error },
    );
  }
}

async function checkFreeSpace(options: BuildTemplateOptions): Promise<void> {
  const wanted = options.freeBytesMin ?? FREE_BYTES_MIN;
  const { bavail, bsize } = await statfs(options.templatesDir);
  const free = bavail * bsize;
  if (free < wanted) {
    throw new CodedError(
      "no_space",
      `Building template ${options.recipe.name} needs ${gib(wanted)} GiB free in ${options.templatesDir}, and there are ${gib(free)}. Free some space, or set another state directory.`,
      { details: { freeBytes: free, wantedBytes: wanted } },
    );
  }
}

function gib(bytes: number): string {
  return (bytes / 1024 ** 3).toFixed(1);
}
