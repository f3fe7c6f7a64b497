import { BackgroundCommand } from "./background-command.ts";
import type { CallOptions } from "./call-options.ts";
import { checkCommand } from "./command-check.ts";
import { NotFoundError } from "./errors.ts";
import { answeredList } from "./answered-list.ts";
import {
  canBeBuffered,
  CLIENT_ONLY_OPTIONS,
  type Command,
  type CommandOptions,
  type ExecOptions,
  type ExecStreamOptions,
  execTimeoutMs,
} from "./exec-options.ts";
import { type ExecResult, execResultFromWire } from "./exec-result.ts";
import { ExecStream } from "./exec-stream.ts";
import { pathSegment } from "./request-path.ts";
import { requestJson } from "./request-json.ts";
import { type SandboxProcess, sandboxProcessFromWire } from "./sandbox-process.ts";
import type { Transport, TransportRequest } from "./transport.ts";
import { toUploadBody } from "./upload-body.ts";
import type { ExecResultWire, ProcessWire, StartedExecWire } from "./wire.ts";

/** Time limit of a background command that sets none, seconds: the longest the server takes. */
const BACKGROUND_TIMEOUT_SECONDS = 86_400;

type AnyOutput = string | Uint8Array;

/** The commands of one sandbox. Its public face is on Sandbox. */
export class SandboxCommands {
  readonly #transport: Transport;
  readonly #root: string;

  /** `root` is the path of the sandbox's resource. */
  constructor(transport: Transport, root: string) {
    this.#transport = transport;
    this.#root = root;
  }

  async exec(cmd: Command, options: ExecOptions): Promise<ExecResult<AnyOutput>> {
    if (!canBeBuffered(options)) return this.#execWithCallbacks(cmd, options);
    const answer = await this.#transport.json<ExecResultWire>({
      ...this.#execRequest(cmd, options, { encoding: options.bytes ? "base64" : undefined }),
      signal: options.signal,
      timeoutMs: execTimeoutMs(options),
    });
    const result = execResultFromWire(answer);
    if (options.check) checkCommand(cmd, result);
    return result;
  }

  execStream(cmd: Command, options: ExecStreamOptions): ExecStream<AnyOutput> {
    const deadline = this.#transport.deadline(`POST ${this.#root}/exec`, {
      signal: options.signal,
      timeoutMs: execTimeoutMs(options),
    });
    const { bytes = false, check = false, maxOutputBytes } = options;
    const open = this.#open({ ...this.#execRequest(cmd, options, {}), deadline });
    return new ExecStream({ cmd, bytes, check, maxOutputBytes, open, deadline, limitsSilence: true });
  }

  attach(execId: string | number, options: ExecStreamOptions): ExecStream<AnyOutput> {
    const path = `${this.#processPath(execId)}/output`;
    const deadline = this.#transport.deadline(`GET ${path}`, options);
    const { bytes = false, check = false, maxOutputBytes } = options;
    const open = this.#open({ method: "GET", path, deadline });
    return new ExecStream({ cmd: null, bytes, check, maxOutputBytes, open, deadline, limitsSilence: false });
  }

  async start(cmd: Command, options: CommandOptions): Promise<BackgroundCommand> {
    const timeoutSeconds = options.timeoutSeconds ?? BACKGROUND_TIMEOUT_SECONDS;
    const { signal, timeoutMs } = options;
    const request = this.#execRequest(cmd, { ...options, timeoutSeconds }, { background: true });
    const { exec_id: execId, pid } = await this.#transport.json<StartedExecWire>({
      ...request,
      signal,
      timeoutMs,
    });
    return new BackgroundCommand(this, execId, pid);
  }

  async kill(execId: string | number, signal: string, options: CallOptions): Promise<boolean> {
    const path = `${this.#processPath(execId)}/signal`;
    const json = requestJson({ signal }, new Set());
    try {
      await this.#transport.text({
        method: "POST",
        path,
        json,
        signal: options.signal,
        timeoutMs: options.timeoutMs,
      });
      return true;
    } catch (error) {
      if (error instanceof NotFoundError && error.code === "process_not_found") return false;
      throw error;
    }
  }

  async writeStdin(
    execId: string | number,
    data: string | Uint8Array,
    { close = false, signal, timeoutMs }: CallOptions & { close?: boolean | undefined },
  ): Promise<void> {
    await this.#transport.text({
      method: "POST",
      path: `${this.#processPath(execId)}/stdin`,
      query: { close: close ? "true" : undefined },
      upload: toUploadBody(data),
      signal,
      timeoutMs,
    });
  }

  async processes({ signal, timeoutMs }: CallOptions): Promise<SandboxProcess[]> {
    const answer = await this.#transport.json({
      method: "GET",
      path: `${this.#root}/processes`,
      signal,
      timeoutMs,
    });
    return answeredList<ProcessWire>(answer, "processes").map(sandboxProcessFromWire);
  }

  async #execWithCallbacks(cmd: Command, options: ExecOptions): Promise<ExecResult<AnyOutput>> {
    const onStdout = options.onStdout as ((chunk: AnyOutput) => unknown) | undefined;
    const onStderr = options.onStderr as ((chunk: AnyOutput) => unknown) | undefined;
    const stream = this.execStream(cmd, options);
    for await (const event of stream) {
      if (event.type === "stdout") await onStdout?.(event.data);
      else if (event.type === "stderr") await onStderr?.(event.data);
    }
    return stream.result;
  }

  #execRequest(cmd: Command, options: CommandOptions, more: object): TransportRequest {
    return {
      method: "POST",
      path: `${this.#root}/exec`,
      json: requestJson({ cmd, ...options, ...more }, CLIENT_ONLY_OPTIONS),
      idempotencyKey: options.idempotencyKey,
    };
  }

  #open(request: TransportRequest): ReturnType<Transport["open"]> {
    return this.#transport.open({ ...request, accept: "application/x-ndjson" });
  }

  #processPath(execId: string | number): string {
    return `${this.#root}/processes/${pathSegment("execId", execId)}`;
  }
}
