import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { findInstallation, type Installation } from "../src/instance/installation.ts";
import { instancePaths, type InstancePaths } from "../src/instance/instance-paths.ts";
import { isAlive, type ProcessIdentity } from "../src/instance/process-identity.ts";
import { readRunFile } from "../src/instance/run-file.ts";

/** A state directory of its own and an installation whose host and server are stand-ins. */
export interface TemporaryInstance {
  paths: InstancePaths;
  installation: Installation;
  /** What the stand-ins did, in order. */
  trace(): string[];
  /** Ends whatever still runs from it and removes it. */
  dispose(): void;
}

export function temporaryInstance(): TemporaryInstance {
  const stateDir = mkdtempSync(join(tmpdir(), "torpor cli ")); // a space, as checkouts have them too
  const paths = instancePaths(stateDir);
  const program = fileURLToPath(new URL("./fake-program.mjs", import.meta.url));
  const installation: Installation = {
    ...findInstallation(),
    hostArgv: [process.execPath, program, "host"],
    serverArgv: [process.execPath, program, "server"],
    guestBinary: program,
  };
  return {
    paths,
    installation,
    trace() {
      try {
        return readFileSync(join(stateDir, "trace.log"), "utf8").trim().split("\n");
      } catch {
        return [];
      }
    },
    dispose() {
      for (const path of [paths.serverFile, paths.hostFile]) {
        const left: ProcessIdentity | null = readRunFile(path);
        if (left !== null && isAlive(left)) process.kill(left.pid, "SIGKILL");
      }
      rmSync(stateDir, { recursive: true, force: true });
    },
  };
}
