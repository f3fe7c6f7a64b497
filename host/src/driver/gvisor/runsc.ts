import { accessSync, constants } from "node:fs";
import { delimiter, join } from "node:path";
import { ProcessError, run } from "@torpor/base";
import { CodedError } from "@torpor/protocol";

/** Where the distribution puts it; anything on the PATH before it is taken as newer on purpose. */
const PACKAGED = "/usr/bin/runsc";

/** Finds runsc: the path given, else the first on the PATH. @throws CodedError when there is none. */
export function findRunsc(path: string | undefined, searchPath = process.env.PATH ?? ""): string {
  const candidates =
    path === undefined
      ? [...searchPath.split(delimiter).map((directory) => join(directory, "runsc")), PACKAGED]
      : [path];
  for (const candidate of candidates) {
    try {
      accessSync(candidate, constants.X_OK);
      return candidate;
    } catch {
      // try the next
    }
  }
  throw new CodedError(
    "unsupported",
    `runsc (gVisor) was not found ${path === undefined ? "on the PATH" : `at ${path}`}; on Debian 12 install it from bookworm-backports, as bin/quickstart does`,
  );
}

export type Platform = "systrap" | "ptrace";

/** The runtime's build, e.g. `release-20240729.0`, and the flags it takes. */
export interface RunscBuild {
  path: string;
  version: string;
}

/**
 * Reads the build of `path` and refuses one without what restore needs.
 *
 * @throws CodedError `unsupported`
 */
export async function inspectRunsc(path: string): Promise<RunscBuild> {
  const { stdout } = await run([path, "--version"]);
  const version = /version (\S+)/.exec(stdout)?.[1] ?? "unknown";
  // `flags` prints usage and may exit with a code of its own choosing.
  const flags = await run([path, "flags"]).then(
    (result) => result.stdout + result.stderr,
    (error: unknown) => (error instanceof ProcessError ? error.stderr : ""),
  );
  for (const flag of ["net-disconnect-ok", "overlay2"]) {
    if (!flags.includes(flag)) {
      throw new CodedError(
        "unsupported",
        `runsc ${version} at ${path} has no --${flag}; release 20240401 or later is needed (bookworm-backports has one)`,
      );
    }
  }
  return { path, version };
}
