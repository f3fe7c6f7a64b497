import { randomBytes } from "node:crypto";
import { chmodSync, chownSync, mkdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { CodedError } from "@torpor/protocol";
import { hostRequest } from "./host-request.ts";
import { buildFingerprint, type Installation } from "./installation.ts";
import type { InstancePaths } from "./instance-paths.ts";
import { keepLogsBounded } from "./log-rotation.ts";
import { endProcess, ownIdentity } from "./process-identity.ts";
import { invokingOwner, type Owner, serverOwner } from "./process-owner.ts";
import { keepSettings, settingsIn, shownSettings } from "./kept-settings.ts";
import { type InstanceFile, readRunFile, writeFileAtomically } from "./run-file.ts";
import { type ProgramEvent, SupervisedProgram } from "./supervised-program.ts";
import { releaseSupervisorLock, takeSupervisorLock } from "./supervisor-lock.ts";
import { coveredNames } from "../tls/covered-names.ts";
import {
  ensureLocalCertificate,
  keepLocalCertificate,
  type LocalCertificateOptions,
} from "../tls/local-certificate.ts";

export interface SupervisorOptions {
  paths: InstancePaths;
  installation: Installation;
  env: NodeJS.ProcessEnv;
  onEvent: (event: ProgramEvent | { type: "note"; message: string }) => void;
  /** Time for the host and for the server to come up, each. Default 60,000. */
  readyTimeoutMs?: number;
}

export interface InstanceOptions extends SupervisorOptions {
  /** Address and port of the API. */
  listen: string;
  /** Whether TLS is spoken with a certificate of the instance's own authority. Default false. */
  localTls?: boolean;
}

/** Time for the host and for the server to come up: a host adopts its machines first. */
const READY_TIMEOUT_MS = 60_000;
/** Grace between TERM and KILL. Host and server promise to exit within 5 s. */
const STOP_GRACE_MS = 10_000;
/** Time for the host to end all its machines. */
const DRAIN_TIMEOUT_MS = 60_000;

/** A running instance. */
export interface Instance {
  file: InstanceFile;
  /** Ends server and host; `drain` ends every sandbox first, else they go on and the next `up` takes them over. */
  stop(options: StopOptions): Promise<void>;
}

interface StopOptions {
  drain: boolean;
}

/** A running host, with the state directory taken and its logs kept bounded. */
interface HostInstance {
  token: string;
  /** Its answer to `/v1/health`. */
  health: Record<string, unknown>;
  stop(options: StopOptions): Promise<void>;
}

/**
 * Starts host, then server, and keeps them running.
 *
 * @throws CodedError `conflict` when another supervisor holds the state directory; `host_unavailable` when one of the
 * two does not come up, with nothing left running.
 */
export async function startInstance(options: InstanceOptions): Promise<Instance> {
  const { paths, installation, listen, localTls } = options;
  const settings = settingsIn({
    ...options.env,
    TORPOR_LISTEN: listen,
    TORPOR_TLS: localTls === true ? "local" : "",
  });
  const host = await startHost(options);
  const certificate = await localCertificate(options).catch(async (error: unknown) => {
    await host.stop({ drain: false });
    throw error;
  });
  const server = new SupervisedProgram({
    name: "server",
    argv: installation.serverArgv,
    env: { ...serverEnv(options, host.token), ...certificate?.serverEnv },
    logPath: join(paths.logsDir, "server.log"),
    runFilePath: paths.serverFile,
    readyTimeoutMs: options.readyTimeoutMs ?? READY_TIMEOUT_MS,
    probe: ({ url }) => probeServer(url ?? `http://${listen}`),
    onEvent: options.onEvent,
  });
  let stopping: Promise<void> | undefined;
  const stop = (how: StopOptions): Promise<void> => {
    stopping ??= (async () => {
      await server.stop(STOP_GRACE_MS); // first, so that nothing new is made while the host ends the rest
      certificate?.stop();
      rmSync(paths.instanceFile, { force: true });
      await host.stop(how);
    })();
    return stopping;
  };
  try {
    const { url } = await server.start();
    const text = (name: string): string =>
      typeof host.health[name] === "string" ? host.health[name] : "unknown";
    const file: InstanceFile = {
      version: installation.version,
      build: buildFingerprint(installation),
      url: url ?? `http://${listen}`,
      listen,
      state_dir: paths.stateDir,
      api_key_file: paths.apiKeyFile,
      driver: text("driver"),
      acceleration: text("acceleration"),
      started_at: new Date().toISOString(),
      supervisor: ownIdentity(),
      authority_file: certificate === undefined ? null : paths.authorityFile,
      settings: shownSettings(settings),
    };
    keepSettings(paths, settings); // now that it is known to start with them
    writeFileAtomically(paths.instanceFile, `${JSON.stringify(file, null, 2)}\n`, 0o644);
    return { file, stop };
  } catch (error) {
    await stop({ drain: false });
    throw error;
  }
}

/** Takes the state directory and starts the host alone. @throws as {@link startInstance} */
export async function startHost(options: SupervisorOptions): Promise<HostInstance> {
  const { paths, installation, onEvent } = options;
  makeStateDirectories(paths, serverOwner());
  const holder = takeSupervisorLock(paths.supervisorLock);
  if (holder !== null) {
    throw new CodedError("conflict", `an instance already runs from ${paths.stateDir} (pid ${holder.pid})`, {
      details: { pid: holder.pid },
    });
  }
  const token = randomBytes(32).toString("hex");
  let health: unknown;
  const host = new SupervisedProgram({
    name: "host",
    argv: installation.hostArgv,
    env: hostEnv(options, token),
    logPath: join(paths.logsDir, "host.log"),
    runFilePath: paths.hostFile,
    readyTimeoutMs: options.readyTimeoutMs ?? READY_TIMEOUT_MS,
    probe: async () => (health = await askHealth(paths, token)),
    onEvent,
  });
  const logs = ["host.log", "server.log", "supervisor.log"].map((name) => join(paths.logsDir, name));
  const stopRotation = keepLogsBounded(logs, (path, error) =>
    onEvent({ type: "note", message: `cannot rotate ${path}: ${String(error)}` }),
  );
  const stop = async ({ drain }: StopOptions): Promise<void> => {
    if (drain) {
      await drainHost(paths, token).catch((error: unknown) =>
        onEvent({
          type: "note",
          message: `the sandboxes could not all be ended: ${error instanceof Error ? error.message : String(error)}`,
        }),
      );
    }
    await host.stop(STOP_GRACE_MS);
    stopRotation();
    for (const path of [paths.hostToken, paths.hostSocket]) rmSync(path, { force: true });
    releaseSupervisorLock(paths.supervisorLock);
  };
  try {
    await endLeftovers(paths, onEvent);
    writeFileAtomically(paths.hostToken, token, 0o600);
    writeFileAtomically(paths.undrained, "", 0o644);
    await host.start();
    return {
      token,
      health: typeof health === "object" && health !== null ? (health as Record<string, unknown>) : {},
      stop,
    };
  } catch (error) {
    await stop({ drain: false });
    throw error;
  }
}

/** The certificate of the instance's own, and what the server is told of it; undefined when it is not asked for. */
async function localCertificate(
  options: InstanceOptions,
): Promise<{ serverEnv: NodeJS.ProcessEnv; stop: () => void } | undefined> {
  if (options.localTls !== true) return undefined;
  const { paths, env, onEvent } = options;
  const certificate: LocalCertificateOptions = {
    paths,
    names: coveredNames(env),
    owner: process.getuid?.() === 0 ? serverOwner() : undefined,
    now: Date.now,
    onNote: (message) => onEvent({ type: "note", message }),
  };
  await ensureLocalCertificate(certificate);
  return {
    serverEnv: { TORPOR_TLS_CERT: paths.leafFile, TORPOR_TLS_KEY: paths.leafFile },
    stop: keepLocalCertificate(certificate),
  };
}

async function probeServer(url: string): Promise<void> {
  const response = await fetch(new URL("/healthz", url), { signal: AbortSignal.timeout(5_000) });
  await response.body?.cancel();
  if (!response.ok) throw new Error(`/healthz answers ${response.status}`);
}

function askHealth(paths: InstancePaths, token: string): Promise<unknown> {
  return hostRequest({
    socketPath: paths.hostSocket,
    token,
    method: "GET",
    path: "/v1/health",
    timeoutMs: 5_000,
  });
}

/** Asks the host to end every machine, its pool and its network, and notes that it has. */
export async function drainHost(paths: InstancePaths, token: string): Promise<void> {
  const socketPath = readRunFile(paths.hostFile)?.socket ?? paths.hostSocket;
  await hostRequest({ socketPath, token, method: "POST", path: "/v1/drain", timeoutMs: DRAIN_TIMEOUT_MS });
  rmSync(paths.undrained, { force: true });
}

/** Ends a host or server that outlived its supervisor. Its machines go on: the new host adopts them. */
async function endLeftovers(paths: InstancePaths, onEvent: SupervisorOptions["onEvent"]): Promise<void> {
  for (const [name, path] of [
    ["server", paths.serverFile],
    ["host", paths.hostFile],
  ] as const) {
    const left = readRunFile(path);
    if (left === null) continue;
    const how = await endProcess(left, STOP_GRACE_MS);
    if (how !== "already_ended") {
      onEvent({
        type: "note",
        message: `ended the ${name} (pid ${left.pid}) that an earlier supervisor left behind`,
      });
    }
    rmSync(path, { force: true });
  }
}

function makeStateDirectories(paths: InstancePaths, runAs: Owner): void {
  const make = (path: string, mode: number): void => {
    mkdirSync(path, { recursive: true, mode });
    chmodSync(path, mode); // whatever the umask, and also when it was there
  };
  make(paths.stateDir, 0o711); // its clients find what is theirs by name
  make(paths.hostDir, 0o700);
  make(paths.runDir, 0o755);
  make(paths.logsDir, 0o700);
  make(paths.serverDir, 0o700);
  if (process.getuid?.() === 0) chownSync(paths.serverDir, runAs.uid, runAs.gid);
}

function programEnv(env: NodeJS.ProcessEnv, paths: InstancePaths): NodeJS.ProcessEnv {
  const inherited = { ...env };
  // The client's own settings are not the programs' business.
  for (const name of ["TORPOR_API_KEY", "TORPOR_URL", "NODE_OPTIONS"]) delete inherited[name];
  const path = inherited["PATH"] ?? "";
  return {
    ...inherited,
    PATH: `${path}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin`,
    TORPOR_STATE_DIR: paths.stateDir,
  };
}

function hostEnv(options: SupervisorOptions, token: string): NodeJS.ProcessEnv {
  const { paths, installation } = options;
  return {
    ...programEnv(options.env, paths),
    TORPOR_HOST_TOKEN: token,
    TORPOR_GUEST_BINARY: installation.guestBinary,
    TORPOR_TEMPLATES_SOURCE: installation.templatesSource,
    TORPOR_SOCKET_GID: String(serverOwner().gid), // who may open its socket
  };
}

function serverEnv(options: InstanceOptions, token: string): NodeJS.ProcessEnv {
  const { paths, listen } = options;
  const owner = invokingOwner(options.env);
  const runAs = serverOwner();
  const env: NodeJS.ProcessEnv = {
    ...programEnv(options.env, paths),
    TORPOR_HOST_TOKEN: token,
    TORPOR_HOST_URL: `unix:${paths.hostSocket}`,
    TORPOR_LISTEN: listen,
    TORPOR_API_KEY_FILE: paths.apiKeyFile,
    TORPOR_API_KEY_OWNER: `${owner.uid}:${owner.gid}`,
  };
  if (process.getuid?.() === 0) env["TORPOR_RUN_AS"] = `${runAs.uid}:${runAs.gid}`;
  return env;
}
