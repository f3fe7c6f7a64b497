import { CodedError } from "@torpor/protocol";
import { instanceCommand } from "./instance-command.ts";
import type { InstancePaths } from "./instance-paths.ts";
import { readKeptSettings, settingsIn } from "./kept-settings.ts";
import { readInstanceFile } from "./run-file.ts";

/** Settings that are compared by themselves. */
const COMPARED_APART = new Set(["TORPOR_LISTEN", "TORPOR_TLS"]);

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

/**
 * Names of settings in `env` that the instance was started without, or with other values; an empty one asks for none.
 *
 * @param reset whether those that `env` does not say are to be forgotten
 * @throws CodedError `internal` when the file of the instance's settings is damaged
 */
export function otherSettings(paths: InstancePaths, env: NodeJS.ProcessEnv, reset: boolean): string[] {
  const running = readKeptSettings(paths);
  const asked = settingsIn(env);
  const named = [...Object.keys(asked), ...(reset ? Object.keys(running) : [])].filter(
    (name) => !COMPARED_APART.has(name),
  );
  // An empty address asks for the default, which may be the one it has.
  const takenBack = Object.keys(running).filter((name) => env[name] === "" && name !== "TORPOR_LISTEN");
  return [...new Set([...named, ...takenBack])].filter((name) => running[name] !== asked[name]);
}

const hostOf = (listen: string): string => listen.slice(0, listen.lastIndexOf(":"));
