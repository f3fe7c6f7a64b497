import { existsSync, readFileSync } from "node:fs";
import type { HostFinding, HostRepair } from "@torpor/protocol";
import { hostRequest } from "../instance/host-request.ts";
import { instanceCommand } from "../instance/instance-command.ts";
import type { InstancePaths } from "../instance/instance-paths.ts";
import { isAlive } from "../instance/process-identity.ts";
import { readRunFile } from "../instance/run-file.ts";
import type { Check, Finding } from "./check.ts";

const LOOK_TIMEOUT_MS = 15_000;
/** Clearing a sandbox away takes a second at most; there may be hundreds. */
const REPAIR_TIMEOUT_MS = 300_000;

/** Whether the host's journal and what is on the machine agree: sandboxes, their networks, processes, files and images. */
export function leftoversCheck(paths: InstancePaths): Check {
  return {
    name: "leftovers",
    why: "what no sandbox owns takes memory and disk, and what cannot be read is lost to its owner",
    required: false,
    probe: () => probeLeftovers(paths),
  };
}

async function probeLeftovers(paths: InstancePaths): Promise<Finding> {
  if (process.getuid?.() !== 0) return { ok: true, found: "not looked at: that takes root" };
  if (!hostRuns(paths)) {
    if (!existsSync(paths.undrained)) return { ok: true, found: "none: no host runs" };
    return {
      ok: false,
      found: "sandboxes and networks of a host that is not running may be in place",
      fix: `Take them over: ${instanceCommand(paths, "sudo torpor up --detach")}. Or end them: ${instanceCommand(paths, "sudo torpor down")}.`,
    };
  }
  const { findings } = (await ask(paths, "GET", "/v1/findings", LOOK_TIMEOUT_MS)) as {
    findings: HostFinding[];
  };
  if (findings.length === 0) return { ok: true, found: "none: journal and machine agree" };
  const told = findings.map(({ message, repair }) => `${message} (repair: ${repair ?? "takes a person"})`);
  return {
    ok: false,
    found: `${findings.length} found`,
    fix: [...told, `Put right what can be: ${instanceCommand(paths, "sudo torpor doctor --repair")}`].join(
      "\n  ",
    ),
  };
}

/** Has the host put right what can be. @throws CodedError when no host runs, or it cannot be asked */
export async function repairLeftovers(paths: InstancePaths): Promise<HostRepair> {
  return (await ask(paths, "POST", "/v1/findings/repair", REPAIR_TIMEOUT_MS)) as HostRepair;
}

/** Whether a host of this state directory lives. */
export function hostRuns(paths: InstancePaths): boolean {
  const host = readRunFile(paths.hostFile);
  return host !== null && isAlive(host);
}

function ask(
  paths: InstancePaths,
  method: "GET" | "POST",
  path: string,
  timeoutMs: number,
): Promise<unknown> {
  const token = readFileSync(paths.hostToken, "utf8").trim();
  return hostRequest({ socketPath: paths.hostSocket, token, method, path, timeoutMs });
}
