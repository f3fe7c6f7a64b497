import pino from "pino";

/** Structured log: one wide line per operation (`op`, `outcome`, `durationMs`, ids, `err`). */
export type Log = Pick<pino.Logger, "debug" | "info" | "warn" | "error">;

/** Fields whose values never reach a log, wherever they stand. */
const REDACTED_PATHS = [
  "authorization",
  "*.authorization",
  "headers.authorization",
  "key",
  "*.key",
  "access_token",
  "*.access_token",
  "host_key",
  "*.host_key",
  "env",
  "*.env",
  "secrets",
  "*.secrets",
];

export interface LogOptions {
  name: string;
  level?: "debug" | "info" | "warn" | "error" | "silent";
  /** Has the last word on each line. Default: it stays as it is. */
  redact?: (line: string) => string;
}

/**
 * An error as a log has it: its message stands in the line once. The line's own message says it where there is no other, so
 * pino's habits of a message, a stack that begins with it and one with those of all causes are not followed.
 *
 * @param told what the line says already
 */
function loggedError(error: Error, told: string): object {
  const { name: _name, message: _message, stack: _stack, cause: _cause, ...facts } = error;
  return { ...plainError(error, told, new Set()), ...facts };
}

/**
 * What every error says, and what is behind it: the cause, and the errors that an AggregateError gathers. Of those no other
 * facts are told: the redacted paths do not reach so deep.
 */
function plainError(error: Error, told: string, seen: Set<unknown>): object {
  seen.add(error);
  const { name, message, stack, cause } = error;
  const code: unknown = "code" in error ? error.code : undefined;
  const frames = stack?.split("\n").filter((line) => /^\s+at /.test(line));
  const behind = (each: unknown): unknown => {
    if (seen.has(each)) return "(told above)";
    if (each instanceof Error) return plainError(each, `${told}\n${message}`, seen);
    return typeof each === "string" ? each : Object.prototype.toString.call(each);
  };
  return {
    type: name,
    ...(told.includes(message) ? {} : { message }),
    ...(typeof code === "string" || typeof code === "number" ? { code } : {}),
    ...(frames === undefined || frames.length === 0 ? {} : { stack: frames.join("\n") }),
    ...(cause === undefined ? {} : { cause: behind(cause) }),
    ...(error instanceof AggregateError ? { errors: error.errors.map(behind) } : {}),
  };
}

/** JSON lines on standard error, secrets redacted here and nowhere else. */
export function createLog({ name, level = "info", redact }: LogOptions): Log {
  return pino(
    {
      name,
      level,
      redact: { paths: REDACTED_PATHS, censor: "[redacted]" },
      timestamp: pino.stdTimeFunctions.isoTime,
      serializers: { err: (error: unknown) => error }, // logMethod has done it
      hooks: {
        logMethod(args, method) {
          const [fields, message] = args as unknown[];
          const error =
            typeof fields === "object" && fields !== null && "err" in fields ? fields.err : undefined;
          if (!(error instanceof Error)) {
            method.apply(this, args);
            return;
          }
          const told = typeof message === "string" ? message : error.message;
          method.call(this, { ...(fields as object), err: loggedError(error, told) }, told);
        },
        ...(redact === undefined ? {} : { streamWrite: redact }),
      },
    },
    pino.destination({ dest: 2, sync: true }),
  );
}

/** Discards everything: for tests. */
export const silentLog: Log = pino({ level: "silent" });
