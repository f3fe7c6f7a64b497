import { z } from "zod";
import { sandboxIdSchema, snapshotIdSchema, templateNameSchema, tenantSchema } from "./ids.ts";
import { DEFAULT_TEMPLATE, LIMITS } from "./limits.ts";
import { networkSchema, shownNetworkSchema } from "./network-policy.ts";
import { SANDBOX_STATES } from "./states.ts";
import { workloadSchema } from "./workload.ts";

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

/** As a shell takes them. */
const variableNameSchema = z
  .string()
  .max(256)
  .regex(/^[A-Za-z_][A-Za-z0-9_]*$/, "must be letters, digits and '_', not starting with a digit");

/** Environment variables: names as a shell takes them, at most 256 entries and 128 KiB in all. */
export const envSchema = z
  .record(variableNameSchema, z.string().refine(noNul, "must not contain NUL"))
  .refine(
    (value) => Object.keys(value).length <= LIMITS.maxEnvEntries,
    `at most ${LIMITS.maxEnvEntries} entries`,
  )
  .refine((value) => totalBytes(value) <= LIMITS.maxEnvBytes, `at most ${LIMITS.maxEnvBytes} bytes in all`);

/** Environment variables whose values are shown to nobody: at most 64 entries and 64 KiB in all. */
export const secretsSchema = z
  .record(variableNameSchema, z.string().refine(noNul, "must not contain NUL"))
  .refine(
    (value) => Object.keys(value).length <= LIMITS.maxSecretEntries,
    `at most ${LIMITS.maxSecretEntries} entries`,
  )
  .refine(
    (value) => totalBytes(value) <= LIMITS.maxSecretBytes,
    `at most ${LIMITS.maxSecretBytes} bytes in all`,
  );

/** `ttl_seconds`: whole seconds from 1 to 30 days. */
export const ttlSecondsSchema = z
  .number({ error: "must be a whole number of seconds, e.g. 300" })
  .int("must be a whole number of seconds")
  .min(1, "must be at least 1")
  .max(LIMITS.maxTtlSeconds, `must be at most ${LIMITS.maxTtlSeconds} (30 days)`);

/** `idle_timeout_seconds`: whole seconds without owner activity. */
export const idleTimeoutSecondsSchema = z
  .number({ error: "must be a whole number of seconds, e.g. 300, or null" })
  .int("must be a whole number of seconds")
  .min(1, "must be at least 1")
  .max(LIMITS.maxTtlSeconds, `must be at most ${LIMITS.maxTtlSeconds} (30 days)`);

/** `retention_seconds`: how long a hibernation image or a snapshot is kept. */
export const retentionSecondsSchema = z
  .number({ error: "must be a whole number of seconds, or null to keep it" })
  .int("must be a whole number of seconds")
  .min(1, "must be at least 1")
  .max(LIMITS.maxRetentionSeconds, `must be at most ${LIMITS.maxRetentionSeconds} (10 years)`);

/** What happens to a sandbox whose idle timeout is over. */
export const onIdleSchema = z.enum(["hibernate", "pause", "destroy", "none"]);
export type OnIdle = z.infer<typeof onIdleSchema>;

/** What happens to a sandbox whose TTL is over. */
export const onExpireSchema = z.enum(["destroy", "hibernate"]);
export type OnExpire = z.infer<typeof onExpireSchema>;

const nameSchema = z.string().min(1).max(128).refine(isPlainText, PLAIN_TEXT);

/** Body of `POST /v1/sandboxes`. Unknown fields are refused, so that a misspelt option is never ignored. */
export const createSandboxSchema = z.strictObject({
  template: templateNameSchema
    .optional()
    .describe(`Default \`${DEFAULT_TEMPLATE}\`, or that of \`from_snapshot\`.`),
  ttl_seconds: ttlSecondsSchema
    .nullable()
    .optional()
    .describe(
      `Wall-clock deadline counted from create. Default ${LIMITS.defaultTtlSeconds}; of a persistent one null, none.`,
    ),
  on_expire: onExpireSchema.optional().describe("Default `destroy`."),
  idle_timeout_seconds: idleTimeoutSecondsSchema
    .nullable()
    .optional()
    .describe(
      `Time without owner activity until \`on_idle\`. Default null, none; of a persistent one ${LIMITS.defaultIdleTimeoutSeconds}.`,
    ),
  on_idle: onIdleSchema.optional().describe("Default `hibernate`."),
  retention_seconds: retentionSecondsSchema
    .nullable()
    .optional()
    .describe("How long a hibernated one is kept; default null, for ever."),
  auto_wake: z.boolean().default(true).describe("Whether work asked of it wakes it."),
  hibernate_memory: z
    .boolean()
    .default(true)
    .describe(
      "Whether a hibernation keeps memory and processes where nothing else is said. Without them it boots from its files, and no work wakes it.",
    ),
  persistent: z
    .boolean()
    .optional()
    .describe("Lives until its owner destroys it, asleep when idle. Needs a tenant. Default false."),
  lifecycle: z
    .literal("auto")
    .optional()
    .describe(
      "Shape, clocks and what they do are as `POST /v1/advise` would have them for the workload, but for what is set here; the answer's `advice` tells what was chosen and why.",
    ),
  workload: workloadSchema
    .optional()
    .describe("What is known of what it is for. Untrusted code in a persistent sandbox takes `accept_risk`."),
  accept_risk: z
    .boolean()
    .default(false)
    .describe("Keeps untrusted code in a persistent sandbox: what it leaves behind meets every later use."),
  from_snapshot: snapshotIdSchema.optional().describe("Starts from this snapshot of the same tenant."),
  name: nameSchema.optional(),
  tenant: tenantSchema.optional(),
  metadata: metadataSchema.default({}),
  env: envSchema.default({}),
  secrets: secretsSchema
    .default({})
    .describe(
      "Environment variables, over those of `env`, that no answer, event, log or error tells. Given again after every wake; children of a fork and sandboxes made from a snapshot get them too.",
    ),
  cpu: z
    .number()
    .min(LIMITS.minCpu)
    .max(1024)
    .optional()
    .describe(`CPU limit in cores; fractions allowed. Default ${LIMITS.defaultCpu}.`),
  memory_mb: z
    .number()
    .int()
    .min(LIMITS.minMemoryMb)
    .max(16_777_216)
    .optional()
    .describe(`Default ${LIMITS.defaultMemoryMb}.`),
  disk_mb: z
    .number()
    .int()
    .min(LIMITS.minDiskMb)
    .max(16_777_216)
    .optional()
    .describe(`Default ${LIMITS.defaultDiskMb}.`),
  network: networkSchema.optional().describe("Default `internet`."),
});

export type CreateSandboxRequest = z.output<typeof createSandboxSchema>;

/** Body of `POST /v1/sessions`: what to make when there is none yet, and the name it is found by. */
export const openSessionSchema = z.strictObject({
  ...createSandboxSchema.shape,
  key: z.string().min(1).max(256).refine(isPlainText, PLAIN_TEXT),
  persistent: z.boolean().optional().describe('Default true; with `lifecycle: "auto"` as advised.'),
});
export type OpenSessionRequest = z.output<typeof openSessionSchema>;

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
  network: shownNetworkSchema,
  on_expire: onExpireSchema,
  idle_timeout_seconds: z.number().int().nullable(),
  on_idle: onIdleSchema,
  retention_seconds: z.number().int().nullable(),
  auto_wake: z.boolean(),
  hibernate_memory: z.boolean(),
  /** What it wakes from, while it is hibernated; without `memory` from its files alone. */
  image: z.object({ size_bytes: z.number().int(), created_at: timestamp, memory: z.boolean() }).nullable(),
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

/** Body of `PATCH /v1/sandboxes/{id}/lifecycle`: what is left out stays; a TTL is counted from now. */
export const updateLifecycleSchema = z
  .strictObject({
    ttl_seconds: ttlSecondsSchema.nullable().optional(),
    on_expire: onExpireSchema.optional(),
    idle_timeout_seconds: idleTimeoutSecondsSchema.nullable().optional(),
    on_idle: onIdleSchema.optional(),
    retention_seconds: retentionSecondsSchema.nullable().optional(),
    auto_wake: z.boolean().optional(),
    hibernate_memory: z.boolean().optional(),
  })
  .refine(
    (value) => Object.values(value).some((field) => field !== undefined),
    "is empty: name at least one of ttl_seconds, on_expire, idle_timeout_seconds, on_idle, retention_seconds, auto_wake, hibernate_memory",
  );
export type UpdateLifecycleRequest = z.infer<typeof updateLifecycleSchema>;

/** Body of `POST /v1/sandboxes/{id}/hibernate`. */
export const hibernateSchema = z.strictObject({
  memory: z
    .boolean()
    .optional()
    .describe(
      "False: its files alone are kept, and its processes end; it boots from them at `wake`, which no work does by itself. Default: as its `hibernate_memory`, true.",
    ),
});

/** What can hold a sandbox awake: a request of the API, one to a port of it, a command that runs. */
export const holdKindSchema = z.enum(["request", "port", "exec"]);
export type HoldKind = z.infer<typeof holdKindSchema>;

/** What counts as activity. */
export const activityKindSchema = z.enum([
  ...holdKindSchema.options,
  "create",
  "wake",
  "resume",
  "snapshot",
  "adopt",
]);
export type ActivityKind = z.infer<typeof activityKindSchema>;

const clock = { seconds: z.number().int().nullable(), at: timestamp.nullable() };

/** Answer of `GET /v1/sandboxes/{id}/lifecycle`: the three clocks, and why it is not idle. */
export const lifecycleSchema = z.object({
  id: sandboxIdSchema,
  state: z.enum(SANDBOX_STATES),
  reason: z.string().nullable(),
  persistent: z.boolean(),
  auto_wake: z.boolean(),
  hibernate_memory: z.boolean(),
  clocks: z.object({
    ttl: z.object({ ...clock, on_expire: onExpireSchema }),
    idle: z.object({ ...clock, on_idle: onIdleSchema }),
    retention: z.object(clock),
    /** The end that no clock puts off; null for none. `seconds` are those left. */
    max_lifetime: z.object(clock),
  }),
  last_activity_at: timestamp,
  /** What that was; null when its host cannot tell. */
  last_activity: z.object({ kind: activityKindSchema, what: z.string() }).nullable(),
  /** What keeps it from being idle now: requests as method and path, commands by their exec id. */
  holds: z.array(z.object({ kind: holdKindSchema, what: z.string(), since: timestamp })),
  /** Why it ended; null while it lives. */
  reaped_because: z.string().nullable(),
});
export type Lifecycle = z.infer<typeof lifecycleSchema>;

/** Body of `POST /v1/sandboxes/{id}/promote`. */
export const promoteSchema = z.strictObject({
  persistent: z.boolean(),
  /** Kept with who asked, for those who audit. */
  reason: z.string().min(1).max(1000).refine(isPlainText, PLAIN_TEXT),
  /** A check: the tenant of a sandbox never changes. */
  tenant: tenantSchema.optional(),
});
export type PromoteRequest = z.infer<typeof promoteSchema>;

/** Body of `POST /v1/sandboxes/{id}/fork`. */
export const forkSchema = z.strictObject({
  count: z.number().int("must be a whole number").min(1).max(LIMITS.maxForkCount).default(1),
  ttl_seconds: ttlSecondsSchema.optional().describe("Of the children; default as the parent's."),
  metadata: metadataSchema.optional().describe("Of the children, over the parent's."),
  secrets: secretsSchema.optional().describe("Of the children, over the parent's."),
});
export type ForkRequest = z.infer<typeof forkSchema>;

/** Answer of a fork: a child each, or why it could not be made. */
export const forkedSchema = z.object({
  children: z.array(
    z.union([
      z.object({ sandbox: sandboxSchema }),
      z.object({ error: z.object({ code: z.string(), message: z.string() }) }),
    ]),
  ),
});
export type Forked = z.infer<typeof forkedSchema>;

/** Body of `POST /v1/sandboxes/{id}/snapshots`. */
export const takeSnapshotSchema = z.strictObject({
  name: nameSchema.optional(),
  retention_seconds: retentionSecondsSchema.nullable().default(null),
});

/** A snapshot: memory and files of one sandbox at one instant. */
export const snapshotSchema = z.object({
  id: snapshotIdSchema,
  name: z.string().nullable(),
  sandbox_id: sandboxIdSchema,
  tenant: z.string(),
  template: z.string(),
  size_bytes: z.number().int(),
  generation: z.number().int(),
  created_at: timestamp,
  retention_seconds: z.number().int().nullable(),
});
export type Snapshot = z.infer<typeof snapshotSchema>;

/** A page of results; `next_cursor` is null on the last one. */
export interface Page<T> {
  /** Ids of what belongs here and cannot be read; left out when there is none. */
  unreadable?: string[] | undefined;
  items: T[];
  next_cursor: string | null;
}
