import { createHash } from "node:crypto";
import { existsSync, readdirSync, readFileSync, statSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

/** How to start one of the long-running programs. */
export type ProgramArgv = [string, ...string[]];

/** The checkout (or installed tree) this command line belongs to. */
export interface Installation {
  root: string;
  version: string;
  hostArgv: ProgramArgv;
  serverArgv: ProgramArgv;
  guestBinary: string;
  templatesSource: string;
}

/**
 * Finds host, server, guest agent and templates beside this file. Run from source (tests, development) it starts
 * the others from source too; from `dist` it starts their `dist`.
 */
export function findInstallation(moduleUrl: string = import.meta.url): Installation {
  const here = fileURLToPath(moduleUrl);
  const fromSource = here.endsWith(".ts");
  const root = dirname(dirname(dirname(dirname(here)))); // cli/{src,dist}/instance/installation
  const program = (name: string): ProgramArgv =>
    fromSource
      ? [process.execPath, "--import", "tsx", "--conditions=source", join(root, name, "src", "main.ts")]
      : [process.execPath, join(root, name, "dist", "main.js")];
  return {
    root,
    version: readVersion(join(root, "cli", "package.json")),
    hostArgv: program("host"),
    serverArgv: program("server"),
    guestBinary: join(root, "guest", "dist", "torpor-guest"),
    templatesSource: join(root, "templates"),
  };
}

/** What is not built yet, as sentences; empty when the instance can start. */
export function missingParts(installation: Installation): string[] {
  const missing: string[] = [];
  for (const [name, path] of [
    ["host", installation.hostArgv.at(-1)],
    ["server", installation.serverArgv.at(-1)],
    ["guest agent", installation.guestBinary],
  ] as const) {
    if (path !== undefined && !existsSync(path)) missing.push(`${name}: ${path} is not there`);
  }
  return missing;
}

/**
 * Names what is built here now, by sizes and times of the files that make up a running instance: enough to see that
 * one was started from an older build.
 */
export function buildFingerprint({ root, guestBinary }: Pick<Installation, "root" | "guestBinary">): string {
  const hash = createHash("sha256");
  const add = (path: string): void => {
    const found = statSync(path, { throwIfNoEntry: false });
    if (found !== undefined) hash.update(`${path} ${found.size} ${found.mtimeMs}\n`);
  };
  for (const name of ["protocol", "base", "host", "server"]) {
    const dist = join(root, name, "dist");
    if (!existsSync(dist)) continue;
    const files = readdirSync(dist, { recursive: true, encoding: "utf8" }).filter((file) =>
      file.endsWith(".js"),
    );
    for (const file of files.sort()) add(join(dist, file));
  }
  add(guestBinary);
  return hash.digest("hex").slice(0, 16);
}

function readVersion(packageFile: string): string {
  const parsed: unknown = JSON.parse(readFileSync(packageFile, "utf8"));
  const version = (parsed as { version?: unknown }).version;
  return typeof version === "string" ? version : "unknown";
}
