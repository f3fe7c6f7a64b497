import type { KeyedCallOptions } from "./call-options.ts";

/** A command: a string is run by a login shell (`bash -l -c`), an array is run as it is, without a shell. */
export type Command = string | readonly string[];

/** How to run a command. */
export interface CommandOptions extends KeyedCallOptions {
  /** Working directory; default: the template's, `/home/user` in Torpor's own. */
  cwd?: string | undefined;
  /** Added to the sandbox's environment. */
  env?: Readonly<Record<string, string>> | undefined;
  /** Default `user`. */
  user?: string | undefined;
  /** Text for standard input, which is then closed. Without it standard input is empty. */
  stdin?: string | undefined;
  /** Standard input takes what `writeStdin` is given, by the command's `execId`; not together with `stdin`. */
  keepStdinOpen?: boolean | undefined;
  /** Seconds until TERM, then KILL, to all the command started; default 60, at most 86,400. Fractions allowed. */
  timeoutSeconds?: number | undefined;
  /**
   * Output kept for the result, bytes per stream; default 4 MiB, at most 64 MiB. The rest is counted, and makes the result
   * `truncated`. Events and callbacks get all output, whatever this says.
   */
  maxOutputBytes?: number | undefined;
}

/** What a caller wants of a command's end. */
interface CheckOptions {
  /** `true`: anything but exit code 0 throws CommandError, which carries the result. */
  check?: boolean | undefined;
}

/** Output as text, the default: invalid UTF-8 is replaced by U+FFFD, no character is cut in two. */
interface TextOutput {
  bytes?: false | undefined;
}

/** Output as `Uint8Array`, byte-exact. */
interface BytesOutput {
  bytes: true;
}

/** Called with output as it comes. Awaited, so that a slow callback slows the command instead of filling memory. */
interface OutputCallbacks<Output extends string | Uint8Array> {
  onStdout?: ((chunk: Output) => unknown) | undefined;
  onStderr?: ((chunk: Output) => unknown) | undefined;
}

/** Options of `execStream`. */
export interface ExecStreamTextOptions extends CommandOptions, CheckOptions, TextOutput {}
export interface ExecStreamBytesOptions extends CommandOptions, CheckOptions, BytesOutput {}
export type ExecStreamOptions = ExecStreamTextOptions | ExecStreamBytesOptions;

/** Options of `exec`. */
export interface ExecTextOptions extends ExecStreamTextOptions, OutputCallbacks<string> {}
export interface ExecBytesOptions extends ExecStreamBytesOptions, OutputCallbacks<Uint8Array> {}
export type ExecOptions = ExecTextOptions | ExecBytesOptions;

/** Options that are the client's own and not sent. */
export const CLIENT_ONLY_OPTIONS: ReadonlySet<string> = new Set([
  "signal",
  "timeoutMs",
  "idempotencyKey",
  "bytes",
  "check",
  "onStdout",
  "onStderr",
]);

/** Server's default for `timeoutSeconds`. */
const DEFAULT_TIMEOUT_SECONDS = 60;
/** Time a request may take beyond its command's own limit, milliseconds: start, kill grace, transfer. */
const GRACE_MS = 30_000;

/** `timeoutMs` of a request that runs a command: the caller's, else the command's limit and 30 s. */
export function execTimeoutMs(options: CommandOptions): number {
  return options.timeoutMs ?? (options.timeoutSeconds ?? DEFAULT_TIMEOUT_SECONDS) * 1000 + GRACE_MS;
}

/**
 * Node's fetch gives up on an answer whose headers take 300 s. Commands allowed to run this long, milliseconds, are
 * read as a stream, whose headers come at once.
 */
const LONGEST_BUFFERED_MS = 240_000;

/** Whether the answer may come in one piece, which is the quicker way. */
export function canBeBuffered(options: ExecOptions): boolean {
  const isShort = (options.timeoutSeconds ?? DEFAULT_TIMEOUT_SECONDS) * 1000 <= LONGEST_BUFFERED_MS;
  return isShort && options.onStdout === undefined && options.onStderr === undefined;
}
