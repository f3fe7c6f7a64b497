import { readFileSync } from "node:fs";
import { CodedError } from "@torpor/protocol";
import { instanceCommand } from "./instance-command.ts";
import type { InstancePaths } from "./instance-paths.ts";
import type { ProcessIdentity } from "./process-identity.ts";
import { readInstanceFile } from "./run-file.ts";

/** Variables that say how to reach an instance, or are compared by themselves: not what it runs with. */
const NOT_SETTINGS = new Set([
  "TORPOR_STATE_DIR",
  "TORPOR_LISTEN",
  "TORPOR_TLS",
  "TORPOR_URL",
  "TORPOR_API_KEY",
  "TORPOR_API_KEY_FILE",
  "TORPOR_DEBUG",
]);

/**
 * Checks an address that was asked for against that of the instance that runs. Port 0 is any port.
 *
 * @throws CodedError `conflict` when the instance listens elsewhere.
 */
export function requireSameListen(paths: InstancePaths, asked: string): void {
  const listens = readInstanceFile(paths.instanceFile)?.listen ?? "";
  const isSame = listens === asked || (asked.endsWith(":0") && hostOf(asked) === hostOf(listens));
  if (listens === "" || isSame) return; // one of an older build does not tell
  throw new CodedError(
    "conflict",
    `Torpor runs already from ${paths.stateDir} and listens on ${listens}, not on ${asked}. To move it: ${instanceCommand(paths, "sudo torpor down --keep-sandboxes")}, then ${instanceCommand(paths, `sudo torpor up --detach --listen ${asked}`)}; its sandboxes stay`,
    { details: { listen: listens } },
  );
}

/** @throws CodedError `conflict` when the instance that runs has no certificate of its own. */
export function requireLocalTls(paths: InstancePaths): void {
  const file = readInstanceFile(paths.instanceFile);
  if (file === null || file.authority_file !== null) return;
  throw new CodedError(
    "conflict",
    `Torpor runs already from ${paths.stateDir}, without a certificate of its own. To change over: ${instanceCommand(paths, "sudo torpor down --keep-sandboxes")}, then ${instanceCommand(paths, `sudo torpor up --detach --listen ${file.listen} --tls`)}; its sandboxes stay`,
  );
}

/** Names of settings in `env` that the instance of this supervisor was started without, or with other values. */
export function otherSettings(env: NodeJS.ProcessEnv, supervisor: ProcessIdentity): string[] {
  let running: Map<string, string>;
  try {
    const text = readFileSync(`/proc/${supervisor.pid}/environ`, "utf8");
    running = new Map(
      text.split("\0").map((entry): [string, string] => {
        const at = entry.indexOf("=");
        return [entry.slice(0, at), entry.slice(at + 1)];
      }),
    );
  } catch {
    return []; // it has just ended, which what follows finds out
  }
  return Object.entries(env)
    .filter(([name, value]) => name.startsWith("TORPOR_") && !NOT_SETTINGS.has(name) && value !== "")
    .filter(([name, value]) => running.get(name) !== value)
    .map(([name]) => name)
    .sort();
}

const hostOf = (listen: string): string => listen.slice(0, listen.lastIndexOf(":"));
