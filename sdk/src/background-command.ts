import type { CallOptions } from "./call-options.ts";
import type { ExecStreamBytesOptions, ExecStreamTextOptions } from "./exec-options.ts";
import type { ExecResult } from "./exec-result.ts";
import type { ExecStream } from "./exec-stream.ts";
import type { SandboxCommands } from "./sandbox-commands.ts";

/** A command that goes on without a connection. */
export class BackgroundCommand {
  readonly execId: string;
  readonly pid: number;
  readonly #commands: SandboxCommands;

  /** @internal Made by `sandbox.start`. */
  constructor(commands: SandboxCommands, execId: string, pid: number) {
    this.#commands = commands;
    this.execId = execId;
    this.pid = pid;
  }

  /** Its output from the start, as far as the sandbox still holds it (1 MiB per stream), and on. Leaving lets it run. */
  attach(options: ExecStreamBytesOptions): ExecStream<Uint8Array>;
  attach(options?: ExecStreamTextOptions): ExecStream;
  attach(options: ExecStreamTextOptions | ExecStreamBytesOptions = {}): ExecStream<string | Uint8Array> {
    return this.#commands.attach(this.execId, options);
  }

  /** Waits for its end. */
  wait(options: ExecStreamTextOptions = {}): Promise<ExecResult> {
    return this.attach(options).result;
  }

  /**
   * Gives it input, at most 8 MiB at once; needs `keepStdinOpen`. With `close`, no more comes after that.
   * @throws NotFoundError `process_not_found`; InvalidRequestError when its standard input is not open
   */
  writeStdin(
    data: string | Uint8Array,
    options: CallOptions & { close?: boolean | undefined } = {},
  ): Promise<void> {
    return this.#commands.writeStdin(this.execId, data, options);
  }

  /** Signals it and all it started. Returns false when it had ended. */
  kill(signal = "SIGKILL", options: CallOptions = {}): Promise<boolean> {
    return this.#commands.kill(this.execId, signal, options);
  }
}
