import { constants } from "node:os";
import type { Command, ExecEnd, Sandbox } from "@torpor/sdk";
import { wireForm } from "../api/wire-form.ts";
import type { Invocation } from "../context.ts";
import { EXIT } from "../failure.ts";
import { writeAll } from "./write-all.ts";

export interface CommandRequest {
  cmd: Command;
  cwd: string | undefined;
  env: Record<string, string> | undefined;
  user: string | undefined;
  stdin: string | undefined;
  timeoutSeconds: number;
  signal: AbortSignal;
}

/**
 * Runs a command with its output passed on byte for byte as it comes; with `--json`, as one document at the end.
 *
 * @returns the exit code for this process.
 */
export async function streamCommand(
  invocation: Invocation,
  sandbox: Sandbox,
  request: CommandRequest,
): Promise<number> {
  const { stdout, stderr } = invocation.context;
  const { cmd, ...options } = request;
  if (invocation.json) {
    const result = await sandbox.exec(cmd, { ...options, timeoutMs: 0 });
    invocation.answer({ sandbox_id: sandbox.id, ...(wireForm(result) as object) }, () => "");
    return exitCodeOf(result);
  }
  let end: ExecEnd | undefined;
  // maxOutputBytes bounds what the client keeps for a buffered result; here everything is passed on.
  for await (const event of sandbox.execStream(cmd, { ...options, bytes: true, timeoutMs: 0 })) {
    if (event.type === "stdout") await writeAll(stdout, event.data);
    else if (event.type === "stderr") await writeAll(stderr, event.data);
    else if (event.type === "end") end = event;
  }
  if (end === undefined) return EXIT.torporFailed;
  const why = explainEnd(end);
  if (why !== undefined) invocation.note(`${invocation.errorStyle.yellow("torpor:")} ${why}`);
  return exitCodeOf(end);
}

/** The exit code that says the same: see EXIT. */
function exitCodeOf(end: Pick<ExecEnd, "outcome" | "exitCode" | "signal">): number {
  switch (end.outcome) {
    case "exited":
      return end.exitCode ?? EXIT.torporFailed;
    case "timed_out":
      return EXIT.timedOut;
    case "oom":
      return EXIT.signalBase + constants.signals.SIGKILL;
    case "signalled": {
      const signals: Record<string, number> = constants.signals;
      return EXIT.signalBase + (signals[end.signal ?? ""] ?? 0);
    }
    case "lost":
      return EXIT.torporFailed;
  }
}

/** A line on an end that the exit code alone does not explain. */
function explainEnd(end: ExecEnd): string | undefined {
  const because = end.message === null ? "" : `: ${end.message}`;
  switch (end.outcome) {
    case "exited":
      return undefined;
    case "timed_out":
      return `the command was ended at its time limit, after ${(end.durationMs / 1000).toFixed(1)} s (--timeout)`;
    case "oom":
      return `the command ran out of memory (--memory at create)${because}`;
    case "signalled":
      return `the command was ended by ${end.signal ?? "a signal"}`;
    case "lost":
      return `the sandbox ended before the command did${because}`;
  }
}
