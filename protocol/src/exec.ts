import { z } from "zod";
import { LIMITS } from "./limits.ts";
import { envSchema } from "./sandbox.ts";

const noNul = (text: string): boolean => !text.includes("\0");

/** Absolute or home-relative (`~`, `~/x`) path inside the sandbox. */
export const guestPathSchema = z
  .string()
  .min(1, "must not be empty")
  .refine(noNul, "must not contain NUL")
  .refine(
    (path) => new TextEncoder().encode(path).length <= LIMITS.maxPathBytes,
    `must be at most ${LIMITS.maxPathBytes} bytes`,
  )
  .refine(
    (path) => path.startsWith("/") || path === "~" || path.startsWith("~/"),
    "must be absolute (start with '/') or start with '~/'",
  )
  .refine((path) => !path.split("/").includes(".."), "must not contain '..'");

/** A user inside a sandbox, by name. */
export const userNameSchema = z.string().regex(/^[a-z_][a-z0-9_-]{0,31}$/, "must be a user name");

/** Body of `POST /v1/sandboxes/{id}/exec`. */
export const execRequestSchema = z.strictObject({
  /** A string is run by `bash -l -c`; an array is run as it is, without a shell. */
  cmd: z.union([
    z.string().min(1, "must not be empty").max(LIMITS.maxCommandBytes).refine(noNul, "must not contain NUL"),
    z.array(z.string().max(LIMITS.maxCommandBytes).refine(noNul, "must not contain NUL")).min(1).max(4096),
  ]),
  /** Default: the template's working directory. */
  cwd: guestPathSchema.optional(),
  env: envSchema.optional(),
  /** Default `user`. */
  user: userNameSchema.optional(),
  /** Text given to the command on standard input, which is then closed. Without it standard input is empty. */
  stdin: z.string().max(LIMITS.maxCommandBytes).optional(),
  /** Standard input stays open for `POST .../processes/{pid}/stdin`. Not together with `stdin`, which closes it. */
  keep_stdin_open: z.boolean().default(false),
  /**
   * Seconds until TERM to the whole process group, then KILL. Fractions allowed. Default 60; a background command
   * has no limit unless one is given. Time in which the sandbox is paused, written to an image or asleep does not count.
   */
  timeout_seconds: z.number().positive("must be more than 0").max(LIMITS.maxExecTimeoutSeconds).optional(),
  /**
   * Output that the JSON answer holds per stream; the rest is counted and dropped. The NDJSON form is not bound by it: it
   * passes everything on. What can be followed later (`.../processes/{process}/output`, a repeated Idempotency-Key) is the
   * newest 1 MiB per stream.
   */
  max_output_bytes: z
    .number()
    .int()
    .min(0)
    .max(LIMITS.maxMaxOutputBytes)
    .default(LIMITS.defaultMaxOutputBytes)
    .describe("Output that the JSON answer holds per stream; the NDJSON form passes all of it on."),
  /** How output is written in JSON: `utf8` replaces invalid bytes by U+FFFD, `base64` is byte-exact. */
  encoding: z.enum(["utf8", "base64"]).default("utf8"),
  /**
   * Goes on after the client leaves: list it under `/processes`, attach again with its `exec_id`. The JSON form answers
   * 202 with `{exec_id, pid}` as soon as it has started; the NDJSON form streams until the client leaves.
   */
  background: z.boolean().default(false),
});
export type ExecRequest = z.output<typeof execRequestSchema>;

/**
 * How a command ended. `lost`: the sandbox or its host ended before the outcome was known, or the sandbox was hibernated;
 * then the command goes on when it wakes, or has ended, where the memory was not kept.
 */
export const EXEC_OUTCOMES = ["exited", "signalled", "timed_out", "oom", "lost"] as const;
export type ExecOutcome = (typeof EXEC_OUTCOMES)[number];

export const execResultSchema = z.object({
  exec_id: z.string(),
  /** Null unless the command exited by itself. 128 + signal is never made up. */
  exit_code: z.number().int().nullable(),
  /** `SIGKILL`, `SIGTERM`, ... or null. */
  signal: z.string().nullable(),
  outcome: z.enum(EXEC_OUTCOMES),
  stdout: z.string(),
  stderr: z.string(),
  encoding: z.enum(["utf8", "base64"]),
  truncated: z.boolean(),
  /** Bytes the command produced, kept or not. */
  stdout_bytes: z.number().int(),
  stderr_bytes: z.number().int(),
  duration_ms: z.number(),
  /** Says why when the outcome is `lost` or `oom`. */
  message: z.string().optional(),
});
export type ExecResult = z.infer<typeof execResultSchema>;

/** Answer of `POST .../exec` with `background: true`: the command has started. */
export const startedExecSchema = z.object({ exec_id: z.string(), pid: z.number().int() });
export type StartedExec = z.infer<typeof startedExecSchema>;

/**
 * One line of the NDJSON stream (`Accept: application/x-ndjson`). Output is base64 so that it is byte-exact
 * whatever the command writes; `dropped_bytes` on the first line of a replay says what the ring no longer holds.
 */
export type ExecEvent =
  | { type: "start"; exec_id: string; pid: number }
  | { type: "stdout" | "stderr"; data: string; dropped_bytes?: number }
  | { type: "keepalive" }
  | ({ type: "end" } & Omit<ExecResult, "stdout" | "stderr" | "encoding">);

export const processSchema = z.object({
  pid: z.number().int(),
  exec_id: z.string().nullable(),
  cmd: z.string(),
  args: z.array(z.string()),
  cwd: z.string().nullable(),
  user: z.string().nullable(),
  tag: z.string().nullable(),
  started_at: z.string().nullable(),
});
export type SandboxProcess = z.infer<typeof processSchema>;
