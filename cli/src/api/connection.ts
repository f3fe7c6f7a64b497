import { readFileSync } from "node:fs";
import { CodedError } from "@torpor/protocol";
import type { Invocation } from "../context.ts";
import { readInstanceFile, readRunFile } from "../instance/run-file.ts";

/** Where the API is when no instance of this machine says otherwise. */
const DEFAULT_URL = "http://127.0.0.1:7070";

/** How to reach the API. */
export interface Connection {
  url: string;
  apiKey: string;
}

/**
 * URL: `--url`, TORPOR_URL, the instance of the state directory, 127.0.0.1:7070. Key: `--api-key-file`, TORPOR_API_KEY,
 * TORPOR_API_KEY_FILE, the state directory's `api-key`; that last one is sent to this machine only.
 *
 * @throws CodedError `unauthenticated` when there is no key, saying where one was looked for.
 */
export function findConnection({ options, context: { env }, paths }: Invocation): Connection {
  const given = options.url ?? (env["TORPOR_URL"] || undefined);
  const url = given ?? localUrl(paths) ?? DEFAULT_URL;
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
    const why =
      code === "ENOENT"
        ? `${file} is not there: no instance was started from this state directory. Start one with 'sudo torpor up --detach', or name another with --state-dir`
        : code === "EACCES"
          ? `${file} may not be read: it belongs to whoever ran 'torpor up'. Ask them for a key (torpor key create), or use sudo`
          : `${file} cannot be read: ${String(error)}`;
    throw new CodedError("unauthenticated", `no API key: ${why}. A key can also be given in TORPOR_API_KEY.`);
  }
}

function localUrl(paths: Invocation["paths"]): string | undefined {
  try {
    return readRunFile(paths.serverFile)?.url ?? readInstanceFile(paths.instanceFile)?.url;
  } catch {
    return undefined; // a state directory that is closed to us does not say where it serves
  }
}

function isLoopback(url: string): boolean {
  try {
    const { hostname } = new URL(url);
    return hostname === "localhost" || hostname === "[::1]" || /^127\.\d+\.\d+\.\d+$/.test(hostname);
  } catch {
    return false;
  }
}
