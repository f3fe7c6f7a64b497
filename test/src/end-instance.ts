import { readFileSync } from "node:fs";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { isAlive, type ProcessIdentity } from "@torpor/host";
import { eventually } from "./eventually.ts";
import { HostClient } from "./host-client.ts";
import { Program } from "./program.ts";
import { guestBinaryPath, programArgv, repositoryRoot } from "./repository.ts";

/** What it takes to end an instance, also for somebody who did not start it. */
export interface InstanceEnd {
  stateDir: string;
  hostToken: string;
  /** Environment of the host, to start it again when it was killed: only a host can clear away what one left. */
  hostEnv: Record<string, string>;
}

/** What a host needs to be told at least. */
export function minimalHostEnv(stateDir: string, hostToken: string): Record<string, string> {
  return {
    TORPOR_STATE_DIR: stateDir,
    TORPOR_HOST_TOKEN: hostToken,
    TORPOR_GUEST_BINARY: guestBinaryPath(),
    TORPOR_TEMPLATES_SOURCE: join(repositoryRoot, "templates"),
    TORPOR_POOL_TARGET: "0",
    // What is tested does not depend on how full the disk happens to be.
    TORPOR_DISK_WATERMARK_PERCENT: "100",
  };
}

const GRACE_MS = 10_000;

/** Ends server, machines, network and host of an instance, in this order. The state directory stays. */
export async function endInstance({ stateDir, hostToken, hostEnv }: InstanceEnd): Promise<void> {
  await endProcess(runFileIdentity(stateDir, "server"), "SIGTERM");
  let host = runFileIdentity(stateDir, "host");
  if (host === undefined) {
    const { pid } = await Program.start({
      argv: programArgv("host"),
      env: hostEnv,
      logPath: join(stateDir, "logs", "host.log"),
    });
    host = runFileIdentity(stateDir, "host");
    if (host?.pid !== pid)
      throw new Error(
        `the host started to clear ${stateDir} away is ${pid}, but the run file names ${host?.pid}`,
      );
  }
  const client = new HostClient(join(stateDir, "run", "host.sock"), hostToken);
  try {
    await client.drain();
  } finally {
    client.close();
    await endProcess(host, "SIGTERM");
  }
}

/** The same and the state directory with it. */
export async function removeInstance(end: InstanceEnd): Promise<void> {
  try {
    await endInstance(end);
  } finally {
    await rm(end.stateDir, { recursive: true, force: true });
  }
}

/** The living process that a run file names. */
function runFileIdentity(stateDir: string, program: "host" | "server"): ProcessIdentity | undefined {
  try {
    const record = JSON.parse(readFileSync(join(stateDir, "run", `${program}.json`), "utf8")) as {
      pid: number;
      start_time: number | string;
    };
    const identity = { pid: record.pid, startTime: Number(record.start_time) };
    return isAlive(identity) ? identity : undefined;
  } catch {
    return undefined;
  }
}

async function endProcess(identity: ProcessIdentity | undefined, signal: NodeJS.Signals): Promise<void> {
  if (identity === undefined || !isAlive(identity)) return;
  process.kill(identity.pid, signal);
  try {
    await eventually(
      `the end of process ${identity.pid} after ${signal}`,
      () => !isAlive(identity),
      GRACE_MS,
    );
  } catch (error) {
    if (isAlive(identity)) process.kill(identity.pid, "SIGKILL");
    throw error;
  }
}
