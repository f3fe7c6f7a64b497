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

/** JSON lines on standard error, secrets redacted here and nowhere else. */
export function createLog({ name, level = "info", redact }: LogOptions): Log {
  return pino(
    {
      name,
      level,
      redact: { paths: REDACTED_PATHS, censor: "[redacted]" },
      timestamp: pino.stdTimeFunctions.isoTime,
      ...(redact === undefined ? {} : { hooks: { streamWrite: redact } }),
    },
    pino.destination({ dest: 2, sync: true }),
  );
}

/** Discards everything: for tests. */
export const silentLog: Log = pino({ level: "silent" });
