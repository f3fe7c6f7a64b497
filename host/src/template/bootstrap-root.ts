import { chmod, copyFile, mkdir, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { ProcessError } from "@torpor/base";
import { CodedError } from "@torpor/protocol";
import { type AptSettings } from "./apt-settings.ts";
import { type AptSource, DEBIAN_KEYRING, formatDeb822 } from "./apt-sources.ts";
import { type BuildProgress, MmdebstrapProgress } from "./build-progress.ts";
import type { PackageCache } from "./package-cache.ts";
import { placeFile, placeFolder } from "./place-file.ts";
import type { Recipe } from "./recipe.ts";
import { streamLinesContained } from "./stream-lines.ts";

const PROBLEM_LINES_MAX = 16;
const MMDEBSTRAP_TIMEOUT_MS = 30 * 60_000;

export interface BootstrapOptions {
  recipe: Recipe;
  sources: AptSource[];
  settings: AptSettings;
  cache: PackageCache;
  /** The new root; must not exist. */
  root: string;
  /** Folder for files of the build itself. */
  workDir: string;
  env: NodeJS.ProcessEnv;
  onProgress: (progress: BuildProgress) => void;
  signal?: AbortSignal;
}

/** Where apt in the new root keeps what it downloaded. `bootstrapRoot` leaves the packages there for the cache. */
export function archivesDir(root: string): string {
  return join(root, "var/cache/apt/archives");
}

/**
 * Installs Debian and the recipe's packages into a new root with mmdebstrap.
 *
 * @throws CodedError `unsupported` without mmdebstrap, `template_not_ready` when an archive cannot be reached or a
 *   package does not install, `invalid_request` for a package that does not exist
 */
export async function bootstrapRoot(options: BootstrapOptions): Promise<void> {
  const { recipe, root, settings } = options;
  await mkdir(root, { mode: 0o755 });
  await chmod(root, 0o755);
  await placeFolder(root, "/var/cache/apt/archives");
  await options.cache.lend(archivesDir(root));
  await copyKeyrings(root, options.sources);

  const sourcesFile = "/torpor.sources";
  await placeFile(
    options.workDir,
    sourcesFile,
    formatDeb822(options.sources, { keepCredentials: true }),
    0o600,
  );
  const argv: [string, ...string[]] = [
    "mmdebstrap",
    "--verbose",
    "--mode=root",
    "--format=directory",
    `--variant=${recipe.variant}`,
    `--components=${recipe.components.join(",")}`,
    // The root holds lent packages already; they and the new ones are collected from it afterwards.
    "--skip=check/empty,essential/unlink,cleanup/apt/cache",
    ...[...settings.lasting, ...settings.buildOnly].map((option) => `--aptopt=${option}`),
    // Nobody reads descriptions of packages during a build.
    '--aptopt=Acquire::Languages "none";',
    "--dpkgopt=force-unsafe-io",
    ...recipe.excludePaths.map((path) => `--dpkgopt=path-exclude=${path}`),
    ...recipe.includePaths.map((path) => `--dpkgopt=path-include=${path}`),
    ...(recipe.packages.length === 0 ? [] : [`--include=${recipe.packages.join(",")}`]),
    recipe.suite,
    root,
    join(options.workDir, sourcesFile),
  ];
  const progress = new MmdebstrapProgress(options.onProgress);
  const problems = new ProblemLines();
  try {
    await streamLinesContained([], argv, {
      // mmdebstrap leaves a key ring where temporary files go.
      env: { ...options.env, TMPDIR: options.workDir },
      timeoutMs: MMDEBSTRAP_TIMEOUT_MS,
      onLine: (line) => {
        progress.line(line);
        problems.line(line);
      },
      ...(options.signal === undefined ? {} : { signal: options.signal }),
    });
  } catch (error) {
    options.signal?.throwIfAborted();
    throw error instanceof ProcessError ? await explain(error, problems.text(), options) : error;
  } finally {
    await rm(join(options.workDir, sourcesFile), { force: true });
  }
}

/** apt in the new root reads keyrings there; Debian's own comes with a package, any other must be brought along. */
async function copyKeyrings(root: string, sources: readonly AptSource[]): Promise<void> {
  for (const { signedBy } of sources) {
    if (signedBy === undefined || signedBy === DEBIAN_KEYRING || !signedBy.startsWith("/")) continue;
    for (const path of signedBy.split(",")) {
      await placeFolder(root, dirname(path));
      await copyFile(path, join(root, path));
    }
  }
}

/** The first complaints of mmdebstrap, apt and dpkg with what came just before: later ones are mostly consequences. */
class ProblemLines {
  #before: string[] = [];
  #kept: string[] = [];

  line(line: string): void {
    const isProblem =
      /^(E: |Err:|dpkg: error|dpkg-deb: error|Traceback )|No space left on device/.test(line) &&
      !line.startsWith("E: setup failed");
    if (isProblem && this.#kept.length < PROBLEM_LINES_MAX) {
      this.#kept.push(...this.#before.splice(0), line.slice(0, 300));
    } else {
      this.#before = [...this.#before, line.slice(0, 300)].slice(-3);
    }
  }

  text(): string {
    return this.#kept.join("\n");
  }
}

/** Turns mmdebstrap's complaints into what went wrong and what to do. */
async function explain(
  error: ProcessError,
  problems: string,
  options: BootstrapOptions,
): Promise<CodedError> {
  const name = options.recipe.name;
  const output = `${problems}\n${error.stderr}`;
  const details = { template: name, problems };
  if (
    /could not be started.*ENOENT|failed to execute mmdebstrap|mmdebstrap: No such file/.test(
      `${error.message}\n${output}`,
    )
  ) {
    return new CodedError(
      "unsupported",
      `Building template ${name} failed: mmdebstrap is not installed. Install it (\`apt-get install mmdebstrap\`) and build again.`,
      { details, cause: error },
    );
  }
  const missing = /E: Unable to locate package (\S+)|E: Package '(\S+)' has no installation candidate/.exec(
    output,
  );
  if (missing !== null) {
    return new CodedError(
      "invalid_request",
      `Building template ${name} failed: the package ${missing[1] ?? missing[2]} is not in Debian ${options.recipe.suite} (components ${options.recipe.components.join(", ")}). Correct \`packages\` in its template.json.`,
      { details, cause: error },
    );
  }
  if (/No space left on device/.test(output)) {
    return new CodedError(
      "no_space",
      `Building template ${name} failed: the disk that holds the templates is full. Free some space and build again.`,
      { details, cause: error },
    );
  }
  if (
    /Could not resolve|Temporary failure resolving|Could not connect|Unable to connect|Failed to fetch|Connection timed out|apt-get update.*failed/.test(
      output,
    )
  ) {
    return new CodedError(
      "template_not_ready",
      `Building template ${name} failed: the Debian archive configured on this machine could not be read. Check the network and that \`apt-get update\` works here, then build again.\n${problems}`,
      { details, cause: error },
    );
  }
  // The cause may be a damaged package among the kept ones, which would fail every build from now on.
  await options.cache.clear();
  return new CodedError(
    "template_not_ready",
    `Building template ${name} failed in mmdebstrap: ${problems || error.message}\nKept packages were dropped, so that building again starts from fresh downloads.`,
    { details, cause: error },
  );
}
