import { existsSync, readFileSync, rmSync } from "node:fs";
import { CodedError } from "@torpor/protocol";
import { instanceCommand } from "./instance-command.ts";
import { type Installation, missingParts } from "./installation.ts";
import type { InstancePaths } from "./instance-paths.ts";
import { keepSettingsOfOlderBuild, withKeptSettings } from "./kept-settings.ts";
import { endProcess, isAlive, signalProcess, waitForEnd } from "./process-identity.ts";
import { readRunFile } from "./run-file.ts";
import { STOP_KEEPING_SANDBOXES } from "./stop-signal.ts";
import { drainHost, startHost } from "./supervisor.ts";
import { supervisorOf } from "./supervisor-lock.ts";

export interface ShutDownOptions {
  paths: InstancePaths;
  installation: Installation;
  env: NodeJS.ProcessEnv;
  /** End every sandbox (the default of `down`), or leave them for the next `up` to take over. */
  drain: boolean;
  onNote: (message: string) => void;
  /** How long the supervisor gets for an orderly stop. Default 90 s: two graces and the drain. */
  supervisorTimeoutMs?: number;
}

export interface ShutDownResult {
  /** False when there was nothing to stop. */
  was_running: boolean;
  /** Programs that had to be killed. */
  killed: string[];
}

/**
 * Stops an instance, in whatever shape it is: with its supervisor, without it, or with nothing left but machines
 * that nobody looks after. Idempotent.
 */
export async function shutDown(options: ShutDownOptions): Promise<ShutDownResult> {
  const { paths, drain, onNote } = options;
  const result: ShutDownResult = { was_running: false, killed: [] };
  const supervisor = supervisorOf(paths.supervisorLock);
  if (supervisor !== null) {
    result.was_running = true;
    keepSettingsOfOlderBuild(paths, supervisor);
    signalProcess(supervisor, drain ? "SIGTERM" : STOP_KEEPING_SANDBOXES);
    if (!(await waitForEnd(supervisor, options.supervisorTimeoutMs ?? 90_000))) {
      onNote(`the supervisor (pid ${supervisor.pid}) does not stop: killing it`);
      signalProcess(supervisor, "SIGKILL");
      await waitForEnd(supervisor, 5_000);
      result.killed.push("supervisor");
    }
  }
  for (const [name, path] of [
    ["server", paths.serverFile],
    ["host", paths.hostFile],
  ] as const) {
    const left = readRunFile(path);
    if (left === null) continue;
    if (name === "host" && drain && isAlive(left)) await drainLeftHost(options);
    const how = await endProcess(left, 10_000);
    if (how !== "already_ended") result.was_running = true;
    if (how === "killed") result.killed.push(name);
    rmSync(path, { force: true });
  }
  if (drain && existsSync(paths.undrained)) await drainWithNewHost(options, result);
  for (const path of [paths.instanceFile, paths.hostToken, paths.hostSocket, paths.supervisorLock])
    rmSync(path, { force: true });
  return result;
}

async function drainLeftHost({ paths, onNote }: ShutDownOptions): Promise<void> {
  try {
    await drainHost(paths, readFileSync(paths.hostToken, "utf8").trim());
  } catch (error) {
    onNote(
      `the host that was left behind could not end its sandboxes: ${error instanceof Error ? error.message : String(error)}`,
    );
  }
}

/** To end machines no setting is worth a refusal: that would leave no way to stop. */
function settingsForDrain({ paths, env, onNote }: ShutDownOptions): NodeJS.ProcessEnv {
  try {
    return withKeptSettings(paths, env);
  } catch (error) {
    onNote(`ending the machines without them: ${error instanceof Error ? error.message : String(error)}`);
    return env;
  }
}

/** Machines and networks outlive their host. With no host to end them, one is started for that alone. */
async function drainWithNewHost(options: ShutDownOptions, result: ShutDownResult): Promise<void> {
  const { paths, installation, onNote } = options;
  const missing = missingParts(installation);
  if (missing.length > 0) {
    throw new CodedError(
      "host_unavailable",
      `the last host of ${paths.stateDir} left its machines and networks, and none can be started to end them: ${missing.join("; ")}. Build first (bin/quickstart), then run '${instanceCommand(paths, "sudo torpor down")}' again.`,
    );
  }
  onNote("the last host was not asked to end its machines: starting one to do it");
  result.was_running = true;
  const host = await startHost({
    paths,
    installation,
    env: { ...settingsForDrain(options), TORPOR_POOL_TARGET: "0" },
    onEvent: (event) => {
      if (event.type === "note") onNote(event.message);
    },
  });
  await host.stop({ drain: true });
  if (existsSync(paths.undrained)) {
    throw new CodedError(
      "host_unavailable",
      `not everything of ${paths.stateDir} could be ended; see ${paths.logsDir}/host.log, and run '${instanceCommand(paths, "sudo torpor down")}' again`,
    );
  }
}
