import { z } from "zod";
import { sandboxIdSchema, templateNameSchema, tenantSchema } from "./ids.ts";
import { DEFAULT_TEMPLATE, LIMITS } from "./limits.ts";
import { SANDBOX_STATES } from "./states.ts";

const noNul = (text: string): boolean => !text.includes("\0");

const PLAIN_TEXT = "must not contain NUL or half of a surrogate pair";

/** Text that every store keeps unchanged: PostgreSQL takes neither NUL nor lone surrogates. */
const isPlainText = (text: string): boolean => noNul(text) && !/\p{Surrogate}/u.test(text);

function totalBytes(record: Record<string, string>): number {
  const encoder = new TextEncoder();
  let bytes = 0;
  for (const [key, value] of Object.entries(record))
    bytes += encoder.encode(key).length + encoder.encode(value).length;
  return bytes;
}

/** Key-value labels of the caller: at most 64 entries and 16 KiB in all. */
export const metadataSchema = z
  .record(
    z.string().min(1).max(128).refine(isPlainText, PLAIN_TEXT),
    z.string().max(4096).refine(isPlainText, PLAIN_TEXT),
  )
  .refine(
    (value) => Object.keys(value).length <= LIMITS.maxMetadataEntries,
    `at most ${LIMITS.maxMetadataEntries} entries`,
  )
  .refine(
    (value) => totalBytes(value) <= LIMITS.maxMetadataBytes,
    `at most ${LIMITS.maxMetadataBytes} bytes in all`,
  );

/** Environment variables: names as a shell takes them, at most 256 entries and 128 KiB in all. */
export const envSchema = z
  .record(
    z
      .string()
      .max(256)
      .regex(/^[A-Za-z_][A-Za-z0-9_]*$/, "must be letters, digits and '_', not starting with a digit"),
    z.string().refine(noNul, "must not contain NUL"),
  )
  .refine(
    (value) => Object.keys(value).length <= LIMITS.maxEnvEntries,
    `at most ${LIMITS.maxEnvEntries} entries`,
  )
  .refine((value) => totalBytes(value) <= LIMITS.maxEnvBytes, `at most ${LIMITS.maxEnvBytes} bytes in all`);

/** `ttl_seconds`: whole seconds from 1 to 30 days. */
export const ttlSecondsSchema = z
  .number({ error: "must be a whole number of seconds, e.g. 300" })
  .int("must be a whole number of seconds")
  .min(1, "must be at least 1")
  .max(LIMITS.maxTtlSeconds, `must be at most ${LIMITS.maxTtlSeconds} (30 days)`);

export const networkSchema = z.enum(["internet", "none"]);
export type NetworkPolicy = z.infer<typeof networkSchema>;

/** Body of `POST /v1/sandboxes`. Unknown fields are refused, so that a misspelt option is never ignored. */
export const createSandboxSchema = z.strictObject({
  template: templateNameSchema.default(DEFAULT_TEMPLATE),
  /** Wall-clock deadline counted from create. */
  ttl_seconds: ttlSecondsSchema.default(LIMITS.defaultTtlSeconds),
  on_expire: z.enum(["destroy"]).default("destroy"),
  name: z.string().min(1).max(128).refine(isPlainText, PLAIN_TEXT).optional(),
  tenant: tenantSchema.optional(),
  metadata: metadataSchema.default({}),
  env: envSchema.default({}),
  /** CPU limit in cores; fractions allowed. */
  cpu: z.number().min(LIMITS.minCpu).max(1024).default(LIMITS.defaultCpu),
  memory_mb: z.number().int().min(LIMITS.minMemoryMb).max(16_777_216).default(LIMITS.defaultMemoryMb),
  disk_mb: z.number().int().min(LIMITS.minDiskMb).max(16_777_216).default(LIMITS.defaultDiskMb),
  network: networkSchema.default("internet"),
  /** Only `false` until persistent sandboxes exist: a clear refusal beats a promise not kept. */
  persistent: z
    .literal(false, {
      error: "persistent sandboxes are not available in this version; leave it out or send false",
    })
    .optional(),
});

export type CreateSandboxRequest = z.output<typeof createSandboxSchema>;

/** One thing `init` did after a restore, as the guest attests it. */
export const attestationSchema = z.object({
  generation: z.number().int(),
  steps: z.array(
    z.object({
      name: z.string(),
      outcome: z.enum(["done", "not_needed", "failed"]),
      detail: z.string().optional(),
      duration_us: z.number().optional(),
    }),
  ),
  clock_offset_ms: z.number().optional(),
  complete: z.boolean(),
});
export type Attestation = z.infer<typeof attestationSchema>;

const timestamp = z.string().describe("RFC 3339, UTC");

/** What the API shows of a sandbox. */
export const sandboxSchema = z.object({
  id: sandboxIdSchema,
  name: z.string().nullable(),
  state: z.enum(SANDBOX_STATES),
  /** Why it ended; null while it lives. */
  reason: z.string().nullable(),
  template: z.string(),
  driver: z.string(),
  tenant: z.string(),
  persistent: z.boolean(),
  metadata: z.record(z.string(), z.string()),
  cpu: z.number(),
  memory_mb: z.number().int(),
  disk_mb: z.number().int(),
  network: networkSchema,
  on_expire: z.enum(["destroy"]),
  generation: z.number().int(),
  host: z.string().nullable(),
  created_at: timestamp,
  started_at: timestamp.nullable(),
  expires_at: timestamp.nullable(),
  idle_at: timestamp.nullable(),
  last_activity_at: timestamp,
  ended_at: timestamp.nullable(),
  attestation: attestationSchema.nullable(),
});
export type Sandbox = z.infer<typeof sandboxSchema>;

/** Body of `PATCH /v1/sandboxes/{id}/lifecycle`: the deadline is counted from now. */
export const updateLifecycleSchema = z.strictObject({ ttl_seconds: ttlSecondsSchema });
export type UpdateLifecycleRequest = z.infer<typeof updateLifecycleSchema>;

/** A page of results; `next_cursor` is null on the last one. */
export interface Page<T> {
  items: T[];
  next_cursor: string | null;
}
