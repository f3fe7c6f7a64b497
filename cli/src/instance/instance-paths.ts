import { join, resolve } from "node:path";
import type { LocalCertificatePaths } from "../tls/local-certificate.ts";

/** Where an instance keeps its things when nothing else is said. */
export const DEFAULT_STATE_DIR = "/var/lib/torpor";

/** Every path of a state directory that the command line touches. */
export interface InstancePaths extends LocalCertificatePaths {
  stateDir: string;
  hostDir: string;
  serverDir: string;
  runDir: string;
  logsDir: string;
  apiKeyFile: string;
  /** What the instance was started with the last time. */
  settingsFile: string;
  instanceFile: string;
  hostFile: string;
  serverFile: string;
  hostSocket: string;
  hostToken: string;
  supervisorLock: string;
  /** There while a host's machines and networks may exist: made before it starts, removed once it has ended them. */
  undrained: string;
}

/** Lays out the state directory; nothing is read or made. */
export function instancePaths(stateDir: string): InstancePaths {
  const root = resolve(stateDir);
  const runDir = join(root, "run");
  return {
    stateDir: root,
    hostDir: join(root, "host"),
    serverDir: join(root, "server"),
    runDir,
    logsDir: join(root, "logs"),
    apiKeyFile: join(root, "api-key"),
    settingsFile: join(root, "settings.json"),
    instanceFile: join(runDir, "instance.json"),
    hostFile: join(runDir, "host.json"),
    serverFile: join(runDir, "server.json"),
    hostSocket: join(runDir, "host.sock"),
    hostToken: join(runDir, "host-token"),
    supervisorLock: join(runDir, "supervisor.lock"),
    undrained: join(runDir, "undrained"),
    tlsDir: join(root, "tls"),
    authorityFile: join(root, "tls", "ca.pem"),
    authorityKeyFile: join(root, "tls", "ca-key.pem"),
    leafFile: join(root, "tls", "server.pem"),
  };
}
