import { CodedError, type InstanceStatus } from "@torpor/protocol";
import { instanceCommand } from "./instance-command.ts";
import { buildFingerprint, type Installation } from "./installation.ts";
import type { InstancePaths } from "./instance-paths.ts";
import { isAlive } from "./process-identity.ts";
import { readInstanceFile, readRunFile } from "./run-file.ts";

/** What runs from a state directory, and whether it answers. */
export interface LiveStatus extends InstanceStatus {
  /** False while a part is down or being restarted. */
  healthy: boolean;
  started_at: string;
  /** Whether what is built here now is not what it was started from. */
  outdated: boolean;
  /** Where TLS is spoken, and the local authority that clients are to trust for it; null where it is not. */
  tls: { url: string; authority_file: string | null } | null;
  /** What it was started with, by variable, without credentials. */
  settings: Record<string, string>;
}

/**
 * Reads the state directory and asks the server's `/healthz`. Needs no root and no key.
 *
 * @throws CodedError `host_unavailable` when nothing runs from it.
 */
export async function readStatus(paths: InstancePaths, installation: Installation): Promise<LiveStatus> {
  const file = readInstanceFile(paths.instanceFile);
  const host = readRunFile(paths.hostFile);
  const server = readRunFile(paths.serverFile);
  const supervised = file !== null && isAlive(file.supervisor);
  const hostAlive = host !== null && isAlive(host);
  const serverAlive = server !== null && isAlive(server);
  if (file === null || (!supervised && !hostAlive && !serverAlive)) {
    throw new CodedError(
      "host_unavailable",
      `no Torpor instance runs from ${paths.stateDir}. Start one with '${instanceCommand(paths, "sudo torpor up --detach")}', or name another with --state-dir.`,
      { details: { state_dir: paths.stateDir } },
    );
  }
  const url = server?.url ?? file.url;
  return {
    version: file.version,
    url,
    state_dir: file.state_dir,
    api_key_file: file.api_key_file,
    driver: file.driver,
    acceleration: file.acceleration,
    pids: { server: serverAlive ? server.pid : 0, host: hostAlive ? host.pid : 0 },
    healthy: supervised && hostAlive && serverAlive && (await answers(url)),
    started_at: file.started_at,
    outdated: file.build !== buildFingerprint(installation),
    tls: server?.tls_url === undefined ? null : { url: server.tls_url, authority_file: file.authority_file },
    settings: file.settings,
  };
}

async function answers(url: string): Promise<boolean> {
  try {
    const response = await fetch(new URL("/healthz", url), { signal: AbortSignal.timeout(5_000) });
    await response.body?.cancel();
    return response.ok;
  } catch {
    return false;
  }
}
