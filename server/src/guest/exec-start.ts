import { type ExecRequest, LIMITS, type StartRequest } from "@torpor/protocol";

/** Time between TERM and KILL when a command exceeds its limit, milliseconds. */
const KILL_GRACE_MS = 2_000;

/**
 * Our exec request in the guest's words. A string is run by a login shell, an array as it is. With `whole` all output comes,
 * however long: who reads it slowly slows the command. Of a background command all passes through the ring of the newest.
 */
export function startRequest(request: ExecRequest, execId: string, whole: boolean): StartRequest {
  const [cmd, ...args] =
    typeof request.cmd === "string" ? ["/bin/bash", "-l", "-c", request.cmd] : request.cmd;
  const process: StartRequest["process"] = { cmd: cmd ?? "", args, envs: request.env ?? {} };
  if (request.cwd !== undefined) process.cwd = request.cwd;
  const timeoutSeconds =
    request.timeout_seconds ?? (request.background ? 0 : LIMITS.defaultExecTimeoutSeconds);
  const torpor: NonNullable<StartRequest["torpor"]> = {
    execId,
    timeoutMs: timeoutSeconds === 0 ? 0 : Math.max(1, Math.round(timeoutSeconds * 1_000)),
    killGraceMs: KILL_GRACE_MS,
    // The guest takes 0 for no limit; of a request for none at all the byte it then sends is dropped here.
    maxOutputBytes: whole || request.background ? 0 : Math.max(1, request.max_output_bytes),
    killOnDisconnect: !request.background,
    resumable: true,
  };
  if (request.user !== undefined) torpor.user = request.user;
  if (request.stdin !== undefined) torpor.stdin = Buffer.from(request.stdin, "utf8").toString("base64");
  return { process, stdin: request.stdin !== undefined || request.keep_stdin_open, torpor };
}
