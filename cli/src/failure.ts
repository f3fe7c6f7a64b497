import { CommanderError, InvalidArgumentError } from "commander";
import { CodedError, type ErrorEnvelope } from "@torpor/protocol";
import { inCommandLineWords } from "./command-line-words.ts";
import type { Style } from "./output/style.ts";

/** Exit codes of `torpor`. `run` and `exec` otherwise end with the command's own. */
export const EXIT = {
  ok: 0,
  /** Torpor answered with an error, or a required `doctor` check failed. */
  failure: 1,
  /** The command line makes no sense. */
  usage: 2,
  /** `run`, `exec`: the command hit its time limit, as timeout(1) has it. */
  timedOut: 124,
  /** `run`, `exec`: Torpor failed, not the command. */
  torporFailed: 125,
  /** `run`, `exec`: the command was ended by signal N: 128 + N, as shells have it. */
  signalBase: 128,
} as const;

/** The command line cannot be understood, beyond what the parser sees. Exit code 2. */
export class UsageError extends Error {
  constructor(message: string) {
    super(message);
    this.name = "UsageError";
  }
}

/** Ends the command with this exit code and nothing more to say. */
export class ExitWith extends Error {
  readonly exitCode: number;

  constructor(exitCode: number) {
    super(`exit ${exitCode}`);
    this.name = "ExitWith";
    this.exitCode = exitCode;
  }
}

/** An error with something to do about it that whoever made it could not know. */
export class HintedError extends Error {
  override readonly cause: Error;
  readonly hint: string;

  constructor(cause: Error, hint: string) {
    super(cause.message);
    this.name = "HintedError";
    this.cause = cause;
    this.hint = hint;
  }
}

/** Why something failed, for a line of several. */
export function failureMessage(error: unknown): string {
  return describe(error).message;
}

interface Failure {
  code: string;
  message: string;
  details: Record<string, unknown>;
  requestId: string;
  retryable: boolean;
}

/** Whatever was thrown, as the fields of the error envelope. */
function describe(error: unknown): Failure {
  if (error instanceof HintedError) {
    const failure = describe(error.cause);
    return { ...failure, message: `${failure.message}\n${error.hint}` };
  }
  if (error instanceof UsageError) {
    return { code: "invalid_request", message: error.message, details: {}, requestId: "", retryable: false };
  }
  if (error instanceof CodedError) {
    return {
      code: error.code,
      message: error.message,
      details: error.details,
      requestId: "",
      retryable: error.retryable,
    };
  }
  if (error instanceof Error) {
    // The client library's errors carry the server's envelope under its own names.
    const { code, requestId, details, retryable } = error as Partial<Record<keyof Failure, unknown>>;
    const known = typeof code === "string" && /^[a-z_]+$/.test(code);
    const facts = typeof details === "object" && details !== null ? (details as Record<string, unknown>) : {};
    return {
      code: known ? code : "internal",
      message: inCommandLineWords(withCause(error), facts),
      details: facts,
      requestId: typeof requestId === "string" ? requestId : "",
      retryable: retryable === true,
    };
  }
  return { code: "internal", message: String(error), details: {}, requestId: "", retryable: false };
}

function withCause(error: Error): string {
  const cause = error.cause instanceof Error ? error.cause.message : "";
  return cause === "" || error.message.includes(cause) ? error.message : `${error.message}: ${cause}`;
}

/**
 * What a person (or, with `json`, a program) is told on standard error, and the exit code. Never a stack trace;
 * TORPOR_DEBUG=1 adds it for whoever mends Torpor.
 */
export function reportFailure(
  error: unknown,
  options: { json: boolean; style: Style; debug: boolean; torporFailedExit?: number },
): { text: string; exitCode: number } {
  if (error instanceof ExitWith) return { text: "", exitCode: error.exitCode };
  // The parser reports those it catches from an option's own parser; one thrown by an action is nobody's else to report.
  if (error instanceof InvalidArgumentError) return reportFailure(new UsageError(error.message), options);
  if (error instanceof CommanderError) {
    // The parser has written its message already, unless JSON was asked for.
    const exitCode = error.exitCode === 0 ? EXIT.ok : EXIT.usage;
    if (exitCode === EXIT.ok || !options.json) return { text: "", exitCode };
    const message = error.message.replace(/^error: /, "");
    return { text: envelope({ ...describe(new UsageError(message)) }), exitCode };
  }
  const failure = describe(error);
  const exitCode = error instanceof UsageError ? EXIT.usage : (options.torporFailedExit ?? EXIT.failure);
  if (options.json) return { text: envelope(failure), exitCode };
  const lines = [`${options.style.red("error:")} ${failure.message}`];
  if (failure.requestId !== "")
    lines.push(options.style.dim(`(${failure.code}, request ${failure.requestId})`));
  if (options.debug && error instanceof Error && error.stack !== undefined)
    lines.push(options.style.dim(error.stack));
  return { text: `${lines.join("\n")}\n`, exitCode };
}

function envelope(failure: Failure): string {
  const body: { error: Omit<ErrorEnvelope["error"], "code"> & { code: string } } = {
    error: {
      code: failure.code,
      message: failure.message,
      details: failure.details,
      request_id: failure.requestId,
      retryable: failure.retryable,
    },
  };
  return `${JSON.stringify(body)}\n`;
}
