import type { IncomingMessage } from "node:http";
import {
  CODE_PORT,
  type CodeContext,
  codeContextSchema,
  CodedError,
  type CodeExecution,
  codeErrorSchema,
  type RunCodeRequest,
} from "@torpor/protocol";
import { z } from "zod";
import { GuestRefusal } from "../host/answer-error.ts";
import { type CallOptions, type HostClient, readAll } from "../host/host-client.ts";
import type { OwnedMachine } from "../host/owned-machine.ts";

/** Largest line taken from a code server, bytes: one image, base64. */
const MAX_LINE_BYTES = 32 * 1024 * 1024;
/** Largest answer gathered in memory, bytes of lines. */
const MAX_GATHERED_BYTES = 64 * 1024 * 1024;
const MAX_CONTEXTS_BYTES = 1024 * 1024;
/** A kernel that starts under load. */
const CONTEXT_TIMEOUT_MS = 120_000;

const CUT_MESSAGE =
  "the connection to the code broke off, so it was interrupted: a snapshot, a fork or a hibernation came while it ran (they wait 2 s for it), or the sandbox has ended; run it again, or as a command, which goes on";

/** One line of an execution, as the code server tells it. */
export type CodeLine = { type: string } & Record<string, unknown>;

const lineSchema = z.looseObject({ type: z.string() });

/** The code server of one sandbox: E2B's code-interpreter protocol, spoken through the sandbox's host. */
export class CodeServer {
  readonly #host: HostClient;
  readonly #machine: OwnedMachine;

  constructor(host: HostClient, machine: OwnedMachine) {
    this.#host = host;
    this.#machine = machine;
  }

  /**
   * Runs code and yields its lines as they come; after the time limit the last one is an error named TimeoutError. Leaving
   * it, like an abort, cuts the connection, which interrupts the code.
   *
   * @throws CodedError not_found for an unknown context, invalid_request, guest_unavailable when no code server answers
   */
  async *run(
    { timeout_seconds: timeoutSeconds, ...request }: RunCodeRequest,
    signal: AbortSignal,
  ): AsyncGenerator<CodeLine> {
    const limit = new AbortController();
    const timer = timeoutSeconds === 0 ? undefined : setTimeout(() => limit.abort(), timeoutSeconds * 1_000);
    const either = AbortSignal.any([signal, limit.signal]);
    try {
      const answer = await this.#call("POST", "/execute", request, { headTimeoutMs: 0, signal: either });
      const cut = (): void => void answer.destroy();
      either.addEventListener("abort", cut, { once: true });
      try {
        if (either.aborted) cut();
        for await (const line of lines(answer)) yield line;
      } catch (error) {
        if (error instanceof CodedError || either.aborted) throw error;
        throw new CodedError("guest_unavailable", CUT_MESSAGE, { cause: error });
      } finally {
        either.removeEventListener("abort", cut);
        answer.destroy();
      }
    } catch (error) {
      if (!limit.signal.aborted || signal.aborted) throw error;
      yield {
        type: "error",
        name: "TimeoutError",
        value: `the code ran for longer than its ${timeoutSeconds} s and was interrupted`,
        traceback: "",
      };
    } finally {
      clearTimeout(timer);
    }
  }

  async contexts(signal: AbortSignal): Promise<CodeContext[]> {
    return z.array(codeContextSchema).parse(await this.#json("GET", "/contexts", undefined, signal));
  }

  async createContext(
    request: { language?: string | undefined; cwd?: string | undefined },
    signal: AbortSignal,
  ): Promise<CodeContext> {
    return codeContextSchema.parse(await this.#json("POST", "/contexts", request, signal));
  }

  /** Starts its kernel anew: its variables are gone. @throws CodedError not_found */
  async restartContext(id: string, signal: AbortSignal): Promise<void> {
    await this.#text("POST", `/contexts/${encodeURIComponent(id)}/restart`, {}, signal);
  }

  /** Ends its kernel. @throws CodedError not_found */
  async deleteContext(id: string, signal: AbortSignal): Promise<void> {
    await this.#text("DELETE", `/contexts/${encodeURIComponent(id)}`, undefined, signal);
  }

  async #json(method: string, path: string, body: unknown, signal: AbortSignal): Promise<unknown> {
    return JSON.parse(await this.#text(method, path, body, signal));
  }

  async #text(method: string, path: string, body: unknown, signal: AbortSignal): Promise<string> {
    const answer = await this.#call(method, path, body, { headTimeoutMs: CONTEXT_TIMEOUT_MS, signal });
    return (await readAll(answer, MAX_CONTEXTS_BYTES)).toString("utf8");
  }

  async #call(method: string, path: string, body: unknown, options: CallOptions): Promise<IncomingMessage> {
    try {
      return await this.#host.guest(this.#machine, CODE_PORT, method, path, {
        ...options,
        ...(body === undefined
          ? {}
          : { headers: { "content-type": "application/json" }, body: Buffer.from(JSON.stringify(body)) }),
      });
    } catch (error) {
      throw meaningOf(error);
    }
  }
}

/** Gathers an execution's lines into one answer. @throws CodedError unsupported when they are too large for one */
export async function gatherCode(progress: AsyncIterable<CodeLine>): Promise<CodeExecution> {
  const execution: CodeExecution = {
    results: [],
    stdout: "",
    stderr: "",
    error: null,
    execution_count: null,
  };
  let bytes = 0;
  for await (const line of progress) {
    bytes += JSON.stringify(line).length;
    if (bytes > MAX_GATHERED_BYTES) {
      throw new CodedError(
        "unsupported",
        `the code showed more than the ${MAX_GATHERED_BYTES} bytes one answer holds; ask for application/x-ndjson to get it as it comes`,
      );
    }
    const { type, ...rest } = line;
    if (type === "stdout" || type === "stderr")
      execution[type] += typeof rest["text"] === "string" ? rest["text"] : "";
    else if (type === "result") execution.results.push(rest);
    else if (type === "error") execution.error = codeErrorSchema.safeParse(rest).data ?? unreadableError;
    else if (type === "number_of_executions" && Number.isInteger(rest["execution_count"]))
      execution.execution_count = Number(rest["execution_count"]);
  }
  return execution;
}

const unreadableError = {
  name: "Error",
  value: "the code server told of an error it did not name",
  traceback: "",
};

/** Whole lines of the answer, each an object: what is inside is untrusted, so both its size and its form are bounded. */
async function* lines(answer: IncomingMessage): AsyncGenerator<CodeLine> {
  let parts: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of answer as AsyncIterable<Buffer>) {
    let start = 0;
    for (let end = chunk.indexOf(10); end !== -1; end = chunk.indexOf(10, start)) {
      parts.push(chunk.subarray(start, end));
      start = end + 1;
      const line = parseLine(Buffer.concat(parts));
      parts = [];
      bytes = 0;
      if (line !== undefined) yield line;
    }
    parts.push(chunk.subarray(start));
    bytes += chunk.length - start;
    if (bytes > MAX_LINE_BYTES)
      throw new CodedError("unsupported", `the code showed one thing larger than ${MAX_LINE_BYTES} bytes`);
  }
  const last = parseLine(Buffer.concat(parts));
  if (last !== undefined) yield last;
}

function parseLine(bytes: Buffer): CodeLine | undefined {
  const text = bytes.toString("utf8").trim();
  if (text === "") return undefined;
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    throw new CodedError("guest_unavailable", "the code server's answer is not readable", { cause });
  }
  const line = lineSchema.safeParse(value);
  if (!line.success) throw new CodedError("guest_unavailable", "the code server's answer is not readable");
  return line.data;
}

/** The code server's plain refusals in our words. */
function meaningOf(error: unknown): unknown {
  if (error instanceof GuestRefusal) {
    const options = { cause: error };
    if (error.guestCode === "404")
      return new CodedError(
        "not_found",
        `${error.message}; list contexts with GET .../code/contexts`,
        options,
      );
    if (error.guestCode === "400" || error.guestCode === "422")
      return new CodedError("invalid_request", `the code was not run: ${error.message}`, options);
    return new CodedError("guest_unavailable", `the code server refused: ${error.message}`, options);
  }
  if (error instanceof CodedError && error.code === "guest_unavailable") {
    return new CodedError(
      "guest_unavailable",
      `no code server answers on port ${CODE_PORT}: it is part of the template code-interpreter and of those that say so (${error.message})`,
      { cause: error },
    );
  }
  return error;
}
