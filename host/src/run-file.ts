import { readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { CodedError } from "@torpor/protocol";
import { isAlive, processIdentity } from "./process-identity.ts";

/**
 * Claims `path` (run/host.json) for this process, so that two hosts never serve one state directory.
 *
 * @throws CodedError `conflict` when another living process holds it. @returns lets go of it
 */
export function claimRunFile(path: string, facts: Record<string, unknown>): () => void {
  const holder = readHolder(path);
  if (holder !== undefined && holder.pid !== process.pid && isAlive(holder)) {
    throw new CodedError(
      "conflict",
      `another host (pid ${holder.pid}) serves this state directory already; stop it with \`torpor down\` first`,
    );
  }
  const own = processIdentity(process.pid);
  const unfinished = `${path}.${process.pid}.tmp`;
  writeFileSync(unfinished, JSON.stringify({ pid: process.pid, start_time: own?.startTime, ...facts }));
  renameSync(unfinished, path);
  return () => rmSync(path, { force: true });
}

function readHolder(path: string): { pid: number; startTime: number } | undefined {
  try {
    const { pid, start_time: startTime } = JSON.parse(readFileSync(path, "utf8")) as {
      pid: number;
      start_time: number;
    };
    return { pid, startTime };
  } catch {
    return undefined; // absent, or cut off by a crash: nobody's
  }
}
