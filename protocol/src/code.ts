import { z } from "zod";
import { LIMITS } from "./limits.ts";

/** Port of the code server inside a sandbox whose template has one (E2B's code interpreter). */
export const CODE_PORT = 49_999;

const languageSchema = z.string().min(1).max(64);
const contextIdSchema = z.string().min(1).max(128);

/** Body of `POST /v1/sandboxes/{id}/code`. */
export const runCodeSchema = z.strictObject({
  code: z.string().max(LIMITS.maxCommandBytes),
  context_id: contextIdSchema.optional().describe("Default: the default context of its language."),
  language: languageSchema.optional().describe("Default `python`. Not together with `context_id`."),
  timeout_seconds: z
    .number()
    .min(0)
    .max(LIMITS.maxExecTimeoutSeconds)
    .default(LIMITS.defaultCodeTimeoutSeconds)
    .describe("Then it is interrupted; 0 for no limit."),
});
export type RunCodeRequest = z.infer<typeof runCodeSchema>;

/** One thing code showed, by media type; those it has not are left out. Images and PDF are base64. */
export const codeResultSchema = z.looseObject({
  text: z.string().optional(),
  html: z.string().optional(),
  markdown: z.string().optional(),
  svg: z.string().optional(),
  png: z.string().optional(),
  jpeg: z.string().optional(),
  pdf: z.string().optional(),
  latex: z.string().optional(),
  json: z.unknown().optional(),
  javascript: z.string().optional(),
  data: z.unknown().optional(),
  chart: z.unknown().optional(),
  /** The value of the last expression, rather than something displayed on the way. */
  is_main_result: z.boolean().optional(),
});
export type CodeResult = z.infer<typeof codeResultSchema>;

export const codeErrorSchema = z.object({ name: z.string(), value: z.string(), traceback: z.string() });
export type CodeError = z.infer<typeof codeErrorSchema>;

/** What code came to. An exception in it is in `error`. */
export const codeExecutionSchema = z.object({
  results: z.array(codeResultSchema),
  stdout: z.string(),
  stderr: z.string(),
  error: codeErrorSchema.nullable(),
  execution_count: z.number().int().nullable(),
});
export type CodeExecution = z.infer<typeof codeExecutionSchema>;

/** Body of `POST /v1/sandboxes/{id}/code/contexts`. */
export const createCodeContextSchema = z.strictObject({
  language: languageSchema.optional(),
  cwd: z.string().min(1).max(LIMITS.maxPathBytes).optional(),
});

/** A kernel with variables of its own. */
export const codeContextSchema = z.object({ id: z.string(), language: z.string(), cwd: z.string() });
export type CodeContext = z.infer<typeof codeContextSchema>;
