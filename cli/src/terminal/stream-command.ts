import { constants } from "node:os";
import type { Readable } from "node:stream";
import { LIMITS } from "@torpor/protocol";
import type { Command, ExecEnd, ExecEvent, ExecStream, Sandbox } from "@torpor/sdk";
import { wireForm } from "../api/wire-form.ts";
import type { Invocation } from "../context.ts";
import { EXIT } from "../failure.ts";
import { StdinFeed } from "./feed-stdin.ts";
import { writeAll } from "./write-all.ts";

export interface CommandRequest {
  cmd: Command;
  cwd: string | undefined;
  env: Record<string, string> | undefined;
  user: string | undefined;
  /** Where its standard input comes from; undefined for none. */
  stdin: Readable | undefined;
  timeoutSeconds: number;
  signal: AbortSignal;
}

/**
 * Runs a command with its output passed on byte for byte as it comes, whatever its length; with `--json`, as one document
 * at the end. Output that is cut all the same is an error.
 *
 * @returns the exit code for this process.
 */
export async function streamCommand(
  invocation: Invocation,
  sandbox: Sandbox,
  request: CommandRequest,
): Promise<number> {
  const { stdin, ...options } = request;
  const feed = stdin === undefined ? undefined : new StdinFeed(stdin);
  try {
    return invocation.json
      ? await inOneDocument(invocation, sandbox, options, feed)
      : await passedOn(invocation, sandbox, options, feed);
  } finally {
    feed?.stop();
  }
}

type StreamRequest = Omit<CommandRequest, "stdin">;

async function inOneDocument(
  invocation: Invocation,
  sandbox: Sandbox,
  { cmd, ...options }: StreamRequest,
  feed: StdinFeed | undefined,
): Promise<number> {
  const maxOutputBytes = LIMITS.maxMaxOutputBytes;
  const keepStdinOpen = feed === undefined ? undefined : true;
  const stream = sandbox.execStream(cmd, { ...options, keepStdinOpen, maxOutputBytes, timeoutMs: 0 });
  await follow(stream, sandbox, feed, () => {});
  const result = await stream.result;
  invocation.answer({ sandbox_id: sandbox.id, ...(wireForm(result) as object) }, () => "");
  if (!result.truncated) return exitCodeOf(result);
  invocation.context.stderr.write(
    `torpor: the document holds the first ${maxOutputBytes / 1024 / 1024} MiB of each stream, of ${result.stdoutBytes} and ${result.stderrBytes} bytes: run it without --json for all of them\n`,
  );
  return exitCodeOf(result) || EXIT.torporFailed;
}

async function passedOn(
  invocation: Invocation,
  sandbox: Sandbox,
  { cmd, ...options }: StreamRequest,
  feed: StdinFeed | undefined,
): Promise<number> {
  const { stdout, stderr } = invocation.context;
  const keepStdinOpen = feed === undefined ? undefined : true;
  // Nothing is kept for a result: all of it is passed on.
  const more = { bytes: true, keepStdinOpen, maxOutputBytes: 0, timeoutMs: 0 } as const;
  const passedBytes = { stdout: 0, stderr: 0 };
  const end = await follow(sandbox.execStream(cmd, { ...options, ...more }), sandbox, feed, async (event) => {
    passedBytes[event.type] += event.data.byteLength;
    await writeAll(event.type === "stdout" ? stdout : stderr, event.data);
  });
  if (end === undefined) return EXIT.torporFailed;
  const why = explainEnd(end);
  if (why !== undefined) invocation.note(`${invocation.errorStyle.yellow("torpor:")} ${why}`);
  const missingBytes =
    Math.max(0, end.stdoutBytes - passedBytes.stdout) + Math.max(0, end.stderrBytes - passedBytes.stderr);
  if (missingBytes === 0) return exitCodeOf(end);
  invocation.note(
    `${invocation.errorStyle.red("torpor:")} ${missingBytes} bytes of the command's output are missing: the server did not pass them on`,
  );
  return exitCodeOf(end) || EXIT.torporFailed;
}

type OutputEvent<Output extends string | Uint8Array> = Extract<ExecEvent<Output>, { data: Output }>;

/** Follows a command to its end, with its input fed once it has started. */
async function follow<Output extends string | Uint8Array>(
  stream: ExecStream<Output>,
  sandbox: Sandbox,
  feed: StdinFeed | undefined,
  onOutput: (event: OutputEvent<Output>) => unknown,
): Promise<ExecEnd | undefined> {
  let end: ExecEnd | undefined;
  let failure: { error: unknown } | undefined;
  try {
    for await (const event of stream) {
      if (event.type === "stdout" || event.type === "stderr") await onOutput(event);
      else if (event.type === "end") end = event;
      else if (event.type === "start")
        feed?.run(sandbox, event.execId).catch((error: unknown) => {
          failure = { error };
          stream.cancel();
        });
    }
  } catch (error) {
    throw failure === undefined ? error : failure.error;
  }
  return end;
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
