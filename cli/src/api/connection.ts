import { readFileSync } from "node:fs";
import { CodedError } from "@torpor/protocol";
import type { Invocation } from "../context.ts";
import { instanceCommand } from "../instance/instance-command.ts";
import type { InstancePaths } from "../instance/instance-paths.ts";
import { isAlive } from "../instance/process-identity.ts";
import { readRunFile, type RunFile } from "../instance/run-file.ts";
import { supervisorOf } from "../instance/supervisor-lock.ts";

/** How to reach the API. */
export interface Connection {
  url: string;
  apiKey: string;
}

/**
 * URL: `--url`, TORPOR_URL, the instance that runs from the state directory. Never a guessed one: whoever listens where an
 * instance might have been would be sent a key. Key: `--api-key-file`, TORPOR_API_KEY, TORPOR_API_KEY_FILE, the state
 * directory's `api-key`; that last one is sent to this machine only.
 *
 * @throws CodedError `host_unavailable` when no URL is given and no instance runs; `unauthenticated` when there is no key,
 * saying where one was looked for.
 */
export function findConnection({ options, context: { env }, paths }: Invocation): Connection {
  const given = options.url ?? (env["TORPOR_URL"] || undefined);
  const url = given ?? runningUrl(paths);
  const apiKey = env["TORPOR_API_KEY"]?.trim() || undefined;
  if (options.apiKeyFile === undefined && apiKey !== undefined) return { url, apiKey };
  const file =
    options.apiKeyFile ||
    env["TORPOR_API_KEY_FILE"] ||
    (given === undefined || isLoopback(given) ? paths.apiKeyFile : undefined);
  if (file === undefined) {
    throw new CodedError(
      "unauthenticated",
      `no API key for ${url}: set TORPOR_API_KEY or TORPOR_API_KEY_FILE`,
    );
  }
  try {
    return { url, apiKey: readFileSync(file, "utf8").trim() };
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    const named =
      file === paths.apiKeyFile ? undefined : options.apiKeyFile ? "--api-key-file" : "TORPOR_API_KEY_FILE";
    if (named !== undefined)
      throw new CodedError(
        "unauthenticated",
        `no API key: ${file}, which ${named} names, ${code === "ENOENT" ? "is not there" : code === "EACCES" ? "may not be read by you" : `cannot be read: ${String(error)}`}`,
      );
    const why =
      code === "ENOENT"
        ? `${file} is not there: no instance was started from this state directory. Start one with '${instanceCommand(paths, "sudo torpor up --detach")}', or name another with --state-dir`
        : code === "EACCES"
          ? `${file} may not be read: it belongs to whoever ran 'torpor up'. Ask them for a key (${instanceCommand(paths, "torpor key create")}), or use sudo`
          : `${file} cannot be read: ${String(error)}`;
    throw new CodedError("unauthenticated", `no API key: ${why}. A key can also be given in TORPOR_API_KEY.`);
  }
}

/** Where the server of the state directory listens, if that very process lives. */
function runningUrl(paths: InstancePaths): string {
  let server: RunFile | null;
  try {
    server = readRunFile(paths.serverFile);
  } catch (error) {
    throw new CodedError(
      "host_unavailable",
      `${paths.serverFile}, which tells where the instance of ${paths.stateDir} serves, cannot be read (${(error as NodeJS.ErrnoException).code ?? String(error)}): give its address with --url or TORPOR_URL`,
    );
  }
  if (server?.url !== undefined && isAlive(server)) return server.url;
  if (supervisorOf(paths.supervisorLock) !== null)
    throw new CodedError(
      "host_unavailable",
      `the server of ${paths.stateDir} is not up just now, and its supervisor is at it: try again in a moment; '${instanceCommand(paths, "torpor status")}' tells how it stands`,
    );
  throw new CodedError(
    "host_unavailable",
    `no instance runs from ${paths.stateDir}; start it with '${instanceCommand(paths, "sudo torpor up --detach")}', name another with --state-dir, or the address of one with --url`,
    { details: { state_dir: paths.stateDir } },
  );
}

function isLoopback(url: string): boolean {
  try {
    const { hostname } = new URL(url);
    return hostname === "localhost" || hostname === "[::1]" || /^127\.\d+\.\d+\.\d+$/.test(hostname);
  } catch {
    return false;
  }
}
