import { dateOrNull } from "./sandbox-info.ts";
import type { ProcessWire } from "./wire.ts";

/** A process that was started through the API and runs. */
export interface SandboxProcess {
  pid: number;
  /** What `attach` and `kill` take; null for those started by other clients. */
  execId: string | null;
  cmd: string;
  args: string[];
  cwd: string | null;
  user: string | null;
  tag: string | null;
  startedAt: Date | null;
}

export function sandboxProcessFromWire(wire: ProcessWire): SandboxProcess {
  return {
    pid: wire.pid,
    execId: wire.exec_id,
    cmd: wire.cmd,
    args: wire.args,
    cwd: wire.cwd,
    user: wire.user,
    tag: wire.tag,
    startedAt: dateOrNull(wire.started_at),
  };
}
