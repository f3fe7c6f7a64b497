import { CodedError, type ExecRequest, type ExecResult } from "@torpor/protocol";
import type { ExecProgress } from "./exec.ts";
import { KeptOutput } from "./kept-output.ts";

/** Follows a command to its end and gives the whole result, output kept up to the request's limit per stream. */
export async function bufferedExec(
  progress: AsyncIterable<ExecProgress>,
  request: ExecRequest,
  execId: string,
  onStarted?: (pid: number) => void,
): Promise<ExecResult> {
  const output = {
    stdout: new KeptOutput(request.max_output_bytes),
    stderr: new KeptOutput(request.max_output_bytes),
  };
  const lost = { stdout: 0, stderr: 0 };
  for await (const step of progress) {
    if (step.type === "started") onStarted?.(step.pid);
    else if (step.type === "output") {
      output[step.stream].push(step.base64);
      lost[step.stream] += step.lostBytes;
    } else if (step.type === "ended") {
      const { totals, message, ...end } = step.end;
      const stdoutBytes = totals?.stdoutBytes ?? output.stdout.seenBytes + lost.stdout;
      const stderrBytes = totals?.stderrBytes ?? output.stderr.seenBytes + lost.stderr;
      const stdoutCut = stdoutBytes > output.stdout.keptBytes;
      const stderrCut = stderrBytes > output.stderr.keptBytes;
      return {
        exec_id: execId,
        ...end,
        stdout: output.stdout.text(request.encoding, stdoutCut),
        stderr: output.stderr.text(request.encoding, stderrCut),
        encoding: request.encoding,
        truncated: stdoutCut || stderrCut,
        stdout_bytes: stdoutBytes,
        stderr_bytes: stderrBytes,
        ...(message === undefined ? {} : { message }),
      };
    }
  }
  throw new CodedError("guest_unavailable", "the sandbox stopped telling about the command before its end");
}
