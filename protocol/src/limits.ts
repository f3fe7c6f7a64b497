/** Defaults and bounds of the public API. The host may refuse less than the upper bounds when it is smaller. */
export const LIMITS = {
  /** Default wall-clock life of an ephemeral sandbox, seconds. */
  defaultTtlSeconds: 300,
  /** Longest accepted `ttl_seconds`: 30 days. */
  maxTtlSeconds: 2_592_000,
  /** Default `idle_timeout_seconds` of a persistent sandbox. */
  defaultIdleTimeoutSeconds: 300,
  /** Longest accepted `retention_seconds`: 10 years. */
  maxRetentionSeconds: 315_360_000,
  /** Most children of one fork. */
  maxForkCount: 100,
  defaultCpu: 1,
  minCpu: 0.1,
  defaultMemoryMb: 1024,
  minMemoryMb: 128,
  defaultDiskMb: 4096,
  minDiskMb: 64,
  /** Largest JSON request body, bytes. File content is streamed and not bound by it. */
  maxJsonBodyBytes: 2 * 1024 * 1024,
  maxMetadataEntries: 64,
  maxMetadataBytes: 16 * 1024,
  maxEnvEntries: 256,
  maxEnvBytes: 128 * 1024,
  maxSecretEntries: 64,
  maxSecretBytes: 64 * 1024,
  /** Entries of a network policy, `allow` and `deny` together. */
  maxNetworkEntries: 1000,
  /** Linux PATH_MAX less the NUL. */
  maxPathBytes: 4095,
  maxCommandBytes: 1024 * 1024,
  /** Characters of a template's start command. */
  maxStartCommandLength: 64 * 1024,
  defaultExecTimeoutSeconds: 60,
  defaultCodeTimeoutSeconds: 300,
  maxExecTimeoutSeconds: 86_400,
  /** Default and largest kept output of a buffered exec, bytes per stream. */
  defaultMaxOutputBytes: 4 * 1024 * 1024,
  maxMaxOutputBytes: 64 * 1024 * 1024,
  defaultPageSize: 50,
  maxPageSize: 200,
  /** An ended sandbox stays readable this long, seconds: 7 days. */
  endedRetentionSeconds: 604_800,
  /** An idempotency key is remembered this long, seconds: 24 hours. */
  idempotencyRetentionSeconds: 86_400,
  /** Events are kept this long, seconds: 7 days, as ended sandboxes are. */
  eventRetentionSeconds: 604_800,
  /** And never more than this many of all accounts together, the newest: about 400 MB. */
  maxEvents: 1_000_000,
} as const;

/** Port of the guest agent inside every sandbox (E2B's envd port). */
export const GUEST_PORT = 49_983;

/** Template used when a create names none. */
export const DEFAULT_TEMPLATE = "code-interpreter";
