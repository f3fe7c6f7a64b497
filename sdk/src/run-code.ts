import type { CallOptions } from "./call-options.ts";
import type { CodeContext } from "./code-contexts.ts";
import { downloadStream } from "./download-stream.ts";
import { errorFromLine } from "./error-from-response.ts";
import { decodeNdjson, type NdjsonLine } from "./ndjson.ts";
import { requestJson } from "./request-json.ts";
import type { Transport } from "./transport.ts";

/** One thing code showed, by media type; images and PDF are base64. What it has not is absent. */
export interface CodeResult {
  text?: string;
  html?: string;
  markdown?: string;
  svg?: string;
  png?: string;
  jpeg?: string;
  pdf?: string;
  latex?: string;
  json?: unknown;
  javascript?: string;
  /** A table's columns. */
  data?: unknown;
  /** A chart's own data. */
  chart?: unknown;
  /** The value of the last expression, rather than something displayed on the way. */
  isMainResult: boolean;
}

/**
 * An exception in the code, a limit (`TimeoutError`), or `ExecutionLost`: the sandbox fell asleep or ended meanwhile. Of one
 * that sleeps the code goes on after the wake, unheard.
 */
export interface CodeError {
  name: string;
  value: string;
  traceback: string;
}

/** What code came to. */
export interface CodeExecution {
  results: CodeResult[];
  stdout: string;
  stderr: string;
  error: CodeError | null;
  /** Counts the executions of its kernel. */
  executionCount: number | null;
  /** Text of the main result; null when there is none. */
  text: string | null;
}

export interface RunCodeOptions extends CallOptions {
  /** Which kernel; default the one of `language`. */
  context?: CodeContext | string | undefined;
  /** Default `python`. Not together with `context`. */
  language?: string | undefined;
  /** Then it is interrupted; default 300, 0 for no limit. */
  timeoutSeconds?: number | undefined;
  /** Called as it happens, and awaited. */
  onStdout?: ((text: string) => unknown) | undefined;
  onStderr?: ((text: string) => unknown) | undefined;
  onResult?: ((result: CodeResult) => unknown) | undefined;
}

/** Default `timeoutSeconds` of the server. */
const DEFAULT_TIMEOUT_SECONDS = 300;
const GRACE_MS = 30_000;

export async function runCode(
  transport: Transport,
  path: string,
  code: string,
  options: RunCodeOptions,
): Promise<CodeExecution> {
  const { context, language, timeoutSeconds, signal } = options;
  const limitSeconds = timeoutSeconds ?? DEFAULT_TIMEOUT_SECONDS;
  const timeoutMs = options.timeoutMs ?? (limitSeconds === 0 ? 0 : limitSeconds * 1_000 + GRACE_MS);
  const contextId = typeof context === "object" ? context.id : context;
  const open = await transport.open({
    method: "POST",
    path,
    json: requestJson({ code, contextId, language, timeoutSeconds }, new Set()),
    accept: "application/x-ndjson",
    deadline: transport.deadline(`POST ${path}`, { signal, timeoutMs }),
  });
  const execution: CodeExecution = {
    results: [],
    stdout: "",
    stderr: "",
    error: null,
    executionCount: null,
    text: null,
  };
  for await (const line of decodeNdjson(downloadStream(open, "the output of code", true)))
    await take(line, execution, options);
  return execution;
}

async function take(line: NdjsonLine, execution: CodeExecution, options: RunCodeOptions): Promise<void> {
  const { type, ...rest } = line;
  switch (type) {
    case "stdout":
    case "stderr": {
      const text = textOf(rest["text"]);
      execution[type] += text;
      await (type === "stdout" ? options.onStdout : options.onStderr)?.(text);
      break;
    }
    case "result": {
      const { is_main_result: isMainResult, ...shown } = rest;
      const result: CodeResult = { ...shown, isMainResult: isMainResult === true };
      execution.results.push(result);
      if (result.isMainResult) execution.text = result.text ?? null;
      await options.onResult?.(result);
      break;
    }
    case "error": {
      const { name, value, traceback } = rest;
      execution.error = {
        name: textOf(name),
        value: textOf(value),
        traceback: textOf(traceback),
      };
      break;
    }
    case "number_of_executions":
      if (typeof rest["execution_count"] === "number") execution.executionCount = rest["execution_count"];
      break;
    default:
      // Signs of life, and what a later version adds. The server's own failure is an envelope.
      if (type === undefined && "error" in rest) throw errorFromLine(rest);
  }
}

function textOf(value: unknown): string {
  return typeof value === "string" ? value : "";
}
