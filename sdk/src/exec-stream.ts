import type { CallDeadline } from "./call-deadline.ts";
import { decodeBase64 } from "./base64.ts";
import { checkCommand } from "./command-check.ts";
import { downloadStream } from "./download-stream.ts";
import { errorFromLine } from "./error-from-response.ts";
import { ConnectionError, TorporError } from "./errors.ts";
import type { Command } from "./exec-options.ts";
import { type ExecEnd, execEndFromWire, type ExecResult } from "./exec-result.ts";
import { decodeNdjson, type NdjsonLine } from "./ndjson.ts";
import { OutputCollector } from "./output-collector.ts";
import type { OpenResponse } from "./transport.ts";
import type { ExecResultWire } from "./wire.ts";

/** Output kept for `result` when the caller sets no `maxOutputBytes`, bytes per stream: the server's default. */
const DEFAULT_KEPT_BYTES = 4 * 1024 * 1024;

/** What happens to a running command, in order: one `start`, any output, one `end`. */
export type ExecEvent<Output extends string | Uint8Array = string> =
  | { type: "start"; execId: string; pid: number }
  /** `droppedBytes`: output before this that a replay no longer holds; 0 as a rule. */
  | { type: "stdout" | "stderr"; data: Output; droppedBytes: number }
  | ({ type: "end" } & ExecEnd);

export interface ExecStreamInit {
  cmd: Command | null;
  bytes: boolean;
  check: boolean;
  maxOutputBytes: number | undefined;
  /** The request under way, and the deadline that can stop it before and after it is answered. */
  open: Promise<OpenResponse>;
  deadline: CallDeadline;
  /** Whether silence of the length of `timeoutMs` ends the call. */
  limitsSilence: boolean;
}

/**
 * A running command. Iterate it for the events as they come, or await `result`, or both: the result then comes with
 * the last event. Leaving the loop early, `cancel()` and the call's signal close the connection, which kills the
 * command (after `attach`: only lets go of it). The command waits while its output is not read.
 */
export class ExecStream<out Output extends string | Uint8Array = string>
  implements AsyncIterable<ExecEvent<Output>>, AsyncDisposable
{
  readonly #init: ExecStreamInit;
  readonly #result: Promise<ExecResult<string | Uint8Array>>;
  #resolve!: (result: ExecResult<string | Uint8Array>) => void;
  #reject!: (error: unknown) => void;
  #isTaken = false;

  /** @internal Made by `sandbox.execStream` and `sandbox.attach`. */
  constructor(init: ExecStreamInit) {
    this.#init = init;
    this.#result = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    // Whoever wants the failure awaits `result` or iterates; a stream that is dropped must not end the process.
    this.#result.catch(() => {});
    init.open.catch((error: unknown) => this.#reject(error));
  }

  /**
   * The finished command. Reading it reads the stream to its end when nobody iterates.
   * @throws CommandError with `check: true` and any end but exit code 0
   * @throws ConnectionError when the connection broke before the end
   */
  get result(): Promise<ExecResult<Output>> {
    // Later in the same turn the caller may still begin to iterate.
    queueMicrotask(() => {
      if (!this.#isTaken) void this.#drain();
    });
    return this.#result as Promise<ExecResult<Output>>;
  }

  /** @throws TorporError when it is iterated a second time */
  [Symbol.asyncIterator](): AsyncGenerator<ExecEvent<Output>, void, undefined> {
    if (this.#isTaken) {
      throw new TorporError(
        "the output of this command is read already: iterate it once, or use result alone",
        {
          code: "already_read",
        },
      );
    }
    this.#isTaken = true;
    return this.#events();
  }

  /** Closes the connection. Idempotent; nothing happens when the command has ended. */
  cancel(): void {
    const reason = new DOMException("the exec stream was cancelled before the command ended", "AbortError");
    this.#reject(reason);
    this.#init.deadline.abort(reason);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.cancel();
  }

  async #drain(): Promise<void> {
    try {
      for await (const event of this) void event;
    } catch {
      // `result` carries it.
    }
  }

  async *#events(): AsyncGenerator<ExecEvent<Output>, void, undefined> {
    const limitBytes = this.#init.maxOutputBytes ?? DEFAULT_KEPT_BYTES;
    const outputs = { stdout: new OutputDecoder(limitBytes), stderr: new OutputDecoder(limitBytes) };
    let execId: string | null = null;
    let hasEnded = false;
    try {
      const open = await this.#init.open;
      const stream = downloadStream(open, "a command's output", this.#init.limitsSilence);
      for await (const line of decodeNdjson(stream)) {
        // Reading on to the end of the answer keeps the connection for the next request.
        if (hasEnded) continue;
        if (line["type"] === "start") {
          const { exec_id: startedId, pid } = line as { exec_id: string; pid: number };
          execId = startedId;
          yield { type: "start", execId: startedId, pid };
        } else if (line["type"] === "stdout" || line["type"] === "stderr") {
          const event = this.#output(line["type"], line, outputs[line["type"]]);
          if (event) yield event;
        } else if (line["type"] === "end") {
          hasEnded = true;
          yield* this.#end(line, outputs);
        } else if (line["type"] === "error" || "error" in line) {
          throw errorFromLine(line);
        }
      }
      if (!hasEnded) throw lostError(execId);
    } catch (error) {
      if (hasEnded) return;
      const isBroken = error instanceof ConnectionError && error.code === "connection_lost";
      const failure = isBroken ? lostError(execId, error) : error;
      this.#reject(failure);
      throw failure;
    } finally {
      // Of no effect after the end; kills the command when the loop is left early.
      this.cancel();
    }
  }

  #output(type: "stdout" | "stderr", line: NdjsonLine, output: OutputDecoder): ExecEvent<Output> | undefined {
    const bytes = decodeBase64(typeof line["data"] === "string" ? line["data"] : "");
    const droppedBytes = typeof line["dropped_bytes"] === "number" ? line["dropped_bytes"] : 0;
    output.collector.add(bytes, droppedBytes);
    const data = this.#init.bytes ? bytes : output.decoder.decode(bytes, { stream: true });
    // A chunk may hold no more than the beginning of a character.
    return data.length === 0 && droppedBytes === 0 ? undefined : { type, data: data as Output, droppedBytes };
  }

  *#end(line: NdjsonLine, outputs: Record<"stdout" | "stderr", OutputDecoder>): Generator<ExecEvent<Output>> {
    if (!this.#init.bytes) {
      for (const type of ["stdout", "stderr"] as const) {
        const data = outputs[type].decoder.decode();
        if (data !== "") yield { type, data: data as Output, droppedBytes: 0 };
      }
    }
    const wire = execEndFromWire(line as unknown as ExecResultWire);
    const { stdout, stderr } = outputs;
    const isTruncated = stdout.collector.isTruncated || stderr.collector.isTruncated;
    const end: ExecEnd = { ...wire, truncated: wire.truncated || isTruncated };
    this.#settle(end, stdout.collector, stderr.collector);
    yield { type: "end", ...end };
  }

  #settle(end: ExecEnd, stdout: OutputCollector, stderr: OutputCollector): void {
    const collected = this.#init.bytes
      ? { stdout: stdout.bytes(), stderr: stderr.bytes() }
      : { stdout: stdout.text(), stderr: stderr.text() };
    const result = { ...end, ...collected };
    try {
      if (this.#init.check) checkCommand(this.#init.cmd ?? end.execId, result);
      this.#resolve(result);
    } catch (error) {
      this.#reject(error);
    }
  }
}

/** One output stream: decoded as it comes, and kept up to a limit. */
class OutputDecoder {
  readonly decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  readonly collector: OutputCollector;

  constructor(limitBytes: number) {
    this.collector = new OutputCollector(limitBytes);
  }
}

function lostError(execId: string | null, cause?: ConnectionError): ConnectionError {
  const what = execId === null ? "a command was starting" : `command ${execId} was running`;
  const told: unknown = cause?.details["why"];
  const why = typeof told === "string" ? told : "the stream ended without saying how the command ended";
  return new ConnectionError(
    `the connection was lost while ${what} (${why}): a command in the foreground is killed with its connection, one in the background can be attached to again by its execId`,
    { code: "connection_lost", retryable: false, details: { execId }, cause },
  );
}
