import { execRequestSchema, type ProcessEvent } from "@torpor/protocol";
import type { ExecTarget } from "./exec.ts";
import { newExecId } from "./exec.ts";
import { startRequest } from "./exec-start.ts";
import { GuestClient } from "./guest-client.ts";

export interface DetachedCommand {
  /** Run by a login shell. */
  command: string;
  cwd: string;
  user: string;
  env: Record<string, string>;
}

/**
 * Starts a command that goes on when its events are followed no more, also in copies of the sandbox: nothing is held up
 * for whoever followed it. @throws GuestRefusal, CodedError
 */
export function startDetached(
  { host, record }: ExecTarget,
  { command, cwd, user, env }: DetachedCommand,
  signal: AbortSignal,
): AsyncGenerator<ProcessEvent> {
  const request = execRequestSchema.parse({ cmd: command, cwd, user, env, background: true });
  const start = startRequest(request, newExecId(), false);
  const torpor = { ...start.torpor, resumable: false };
  return new GuestClient(host.client, record).start({ ...start, torpor }, { signal });
}
