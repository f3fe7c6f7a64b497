import type { Readable } from "node:stream";
import type { Log } from "@torpor/base";
import { CodedError, type ExecRequest, LIMITS } from "@torpor/protocol";
import { startDetached } from "../../guest/detached-start.ts";
import { type ExecTarget, newExecId, runExec } from "../../guest/exec.ts";
import { unpackArchive } from "../../guest/unpack-archive.ts";
import { BuildFailed, failureText } from "./build-failed.ts";
import { Lines } from "./build-log.ts";

export interface BuildCommand {
  /** A string is run by a login shell, an array as it is. */
  command: string | string[];
  /** Default: the sandbox's own user. */
  user?: string;
  /** Default: the sandbox's own working directory. */
  cwd?: string;
  env?: Record<string, string>;
  /** Default: as long as the build may take. */
  timeoutSeconds?: number;
  onLine?: (stream: "stdout" | "stderr", line: string) => void;
}

/** How a command ended. */
export interface CommandEnd {
  /** Why it counts as failed: `exit status 2`, `signal: SIGKILL`; null for exit status 0. */
  failure: string | null;
  stdout: string;
}

const MAX_CAPTURED_BYTES = 256 * 1024;

/** The sandbox that a template is built in. All that a build brings along runs in there and nowhere else. */
export class BuildSandbox {
  readonly #target: ExecTarget;
  readonly #signal: AbortSignal;
  readonly #log: Log;

  constructor(target: ExecTarget, signal: AbortSignal, log: Log) {
    this.#target = target;
    this.#signal = signal;
    this.#log = log;
  }

  /** Runs a command to its end. @throws BuildFailed when it could not be started: `command failed: ` and why */
  async run(asked: BuildCommand): Promise<CommandEnd> {
    const { command, onLine } = asked;
    const request: ExecRequest = {
      cmd: command,
      keep_stdin_open: false,
      timeout_seconds: asked.timeoutSeconds ?? LIMITS.maxExecTimeoutSeconds,
      max_output_bytes: LIMITS.maxMaxOutputBytes,
      encoding: "utf8",
      background: false,
      ...(asked.env === undefined ? {} : { env: asked.env }),
      ...(asked.user === undefined ? {} : { user: asked.user }),
      ...(asked.cwd === undefined ? {} : { cwd: asked.cwd }),
    };
    const captured: Buffer[] = [];
    let capturedBytes = 0;
    const lines = {
      stdout: new Lines((line) => onLine?.("stdout", line)),
      stderr: new Lines((line) => onLine?.("stderr", line)),
    };
    try {
      const events = runExec(this.#target, request, newExecId(), {
        signal: this.#signal,
        log: this.#log,
        onSandboxEnded: () => {},
      });
      for await (const event of events) {
        if (event.type === "output") {
          const bytes = Buffer.from(event.base64, "base64");
          lines[event.stream].push(bytes);
          if (event.stream === "stdout" && capturedBytes < MAX_CAPTURED_BYTES) {
            captured.push(bytes);
            capturedBytes += bytes.length;
          }
        } else if (event.type === "ended") {
          lines.stdout.end();
          lines.stderr.end();
          return { failure: failureOf(event.end), stdout: Buffer.concat(captured).toString("utf8") };
        }
      }
    } catch (error) {
      throw new BuildFailed(`command failed: ${failureText(error)}`, { cause: error });
    }
    throw new BuildFailed("command failed: the sandbox stopped telling about it");
  }

  /** Unpacks a tar into a folder, owned by root. @throws BuildFailed */
  async unpack(path: string, tar: Readable): Promise<void> {
    const broken = new AbortController();
    tar.once("error", (error) => broken.abort(error));
    if (tar.errored !== null) broken.abort(tar.errored); // it may have failed before anyone listened
    try {
      const signal = AbortSignal.any([this.#signal, broken.signal]);
      await unpackArchive(this.#target, { path, user: "root", tar }, signal);
    } catch (error) {
      if (broken.signal.aborted) throw brokenArchive(broken.signal.reason as NodeJS.ErrnoException);
      throw new BuildFailed(`unpacking failed: ${failureText(error)}`, { cause: error });
    } finally {
      tar.destroy();
    }
  }

  /**
   * Starts a command that stays in the template.
   *
   * @returns `failed`, which resolves with why if it ends badly while it is followed, and `leave`, which ends that
   * @throws BuildFailed when it cannot be started
   */
  async startAndLeave(
    asked: { command: string; user: string; cwd: string; env: Record<string, string> },
    onLine: (stream: "stdout" | "stderr", line: string) => void,
  ): Promise<{ failed: Promise<string>; leave: () => void }> {
    const left = new AbortController();
    const signal = AbortSignal.any([this.#signal, left.signal]);
    const events = startDetached(this.#target, asked, signal);
    try {
      await events.next(); // its start
    } catch (error) {
      left.abort();
      throw new BuildFailed(`command failed: ${failureText(error)}`, { cause: error });
    }
    const lines = {
      stdout: new Lines((line) => onLine("stdout", line)),
      stderr: new Lines((line) => onLine("stderr", line)),
    };
    const failed = new Promise<string>((resolve) => {
      const follow = async (): Promise<void> => {
        for await (const { data, end } of events) {
          if (data?.stdout !== undefined) lines.stdout.push(Buffer.from(data.stdout, "base64"));
          if (data?.stderr !== undefined) lines.stderr.push(Buffer.from(data.stderr, "base64"));
          if (end === undefined) continue;
          lines.stdout.end();
          lines.stderr.end();
          const status =
            end.torpor?.signal == null ? `exit status ${end.exitCode ?? 0}` : `signal: ${end.torpor.signal}`;
          if (status !== "exit status 0") resolve(status);
        }
      };
      // What breaks off says nothing about the command, which the ready command is there to ask for.
      follow().catch((error: unknown) => {
        if (!signal.aborted) this.#log.warn({ op: "template.start", outcome: "lost sight", err: error });
      });
    });
    return { failed, leave: () => left.abort() };
  }
}

function failureOf(end: {
  outcome: string;
  exit_code: number | null;
  signal: string | null;
  message?: string | undefined;
}): string | null {
  if (end.outcome === "exited") return end.exit_code === 0 ? null : `exit status ${end.exit_code}`;
  if (end.outcome === "timed_out") return "it took too long";
  if (end.outcome === "signalled") return `signal: ${end.signal}`;
  return end.message ?? end.outcome;
}

/** Of zlib's errors alone the words are the owner's: others name files of this server. */
function brokenArchive(error: NodeJS.ErrnoException): BuildFailed {
  const why =
    error.code?.startsWith("Z_") === true ? `it is broken gzip: ${error.message}` : "see the server's log";
  return new BuildFailed(
    `unpacking failed: the uploaded archive could not be read: ${why}; upload it again`,
    {
      cause: error,
    },
  );
}

/** The error of one who was told to stop. */
export function stopped(signal: AbortSignal): BuildFailed {
  const why: unknown = signal.reason;
  return why instanceof BuildFailed
    ? why
    : new BuildFailed(why instanceof CodedError ? why.message : "it was stopped");
}
