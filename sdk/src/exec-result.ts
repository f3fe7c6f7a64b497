import { decodeBase64 } from "./base64.ts";
import type { ExecResultWire } from "./wire.ts";

/**
 * How a command ended. `timed_out`: it was ended at its `timeoutSeconds`. `oom`: the sandbox ran out of memory.
 * `lost`: the sandbox or its host ended before the outcome was known.
 */
export type ExecOutcome = "exited" | "signalled" | "timed_out" | "oom" | "lost";

/** A finished command. `Output` is `string`, or `Uint8Array` with the option `bytes: true`. */
export interface ExecResult<Output extends string | Uint8Array = string> {
  execId: string;
  /** Null unless the command exited by itself. */
  exitCode: number | null;
  /** `SIGKILL`, `SIGTERM`, ... or null. */
  signal: string | null;
  outcome: ExecOutcome;
  /** Its first `maxOutputBytes`. Text has invalid UTF-8 replaced by U+FFFD. */
  stdout: Output;
  stderr: Output;
  /** Whether output was left out of `stdout` or `stderr` here. */
  truncated: boolean;
  /** Bytes the command wrote, kept or not. */
  stdoutBytes: number;
  stderrBytes: number;
  durationMs: number;
  /** Why, when the outcome is `lost` or `oom`; else null. */
  message: string | null;
}

/** All of a result but its output. */
export type ExecEnd = Omit<ExecResult, "stdout" | "stderr">;

export function execEndFromWire(wire: Omit<ExecResultWire, "stdout" | "stderr" | "encoding">): ExecEnd {
  return {
    execId: wire.exec_id,
    exitCode: wire.exit_code,
    signal: wire.signal,
    outcome: wire.outcome,
    truncated: wire.truncated,
    stdoutBytes: wire.stdout_bytes,
    stderrBytes: wire.stderr_bytes,
    durationMs: wire.duration_ms,
    message: wire.message ?? null,
  };
}

/** A buffered answer; its output is text or bytes as it was asked for. */
export function execResultFromWire(wire: ExecResultWire): ExecResult<string | Uint8Array> {
  const decode = (output: string): string | Uint8Array =>
    wire.encoding === "base64" ? decodeBase64(output) : output;
  return { ...execEndFromWire(wire), stdout: decode(wire.stdout), stderr: decode(wire.stderr) };
}

/** One line on how a command ended, for errors. */
export function describeOutcome(result: ExecEnd): string {
  switch (result.outcome) {
    case "exited":
      return `exited with ${result.exitCode}`;
    case "signalled":
      return `was ended by ${result.signal ?? "a signal"}`;
    case "timed_out":
      return `was ended after ${Math.round(result.durationMs)} ms at its timeoutSeconds`;
    case "oom":
      return `ran out of memory${result.message === null ? "" : ` (${result.message})`}`;
    default:
      return `was lost with its sandbox${result.message === null ? "" : ` (${result.message})`}`;
  }
}
