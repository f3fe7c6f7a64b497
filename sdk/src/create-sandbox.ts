import { type Workload, withWorkload } from "./advise.ts";
import type { KeyedCallOptions } from "./call-options.ts";
import { TimeoutError } from "./errors.ts";
import type { Network } from "./network-policy.ts";
import { pathSegment } from "./request-path.ts";
import { NOT_SENT, requestJson } from "./request-json.ts";
import { newIdempotencyKey, type Transport } from "./transport.ts";
import type { OnExpire, OnIdle } from "./sandbox-info.ts";
import type { CreatedSandboxWire, SandboxWire } from "./wire.ts";

/** What to create. Numbers out of bounds and unknown options are refused by the server, by name. */
export interface SandboxCreateOptions extends KeyedCallOptions {
  /** Default `code-interpreter`. */
  template?: string | undefined;
  /**
   * `true`: it lives until you destroy it and sleeps when idle, memory and processes kept. Needs a tenant. Default
   * `false`: ephemeral, gone at the end of its TTL.
   */
  persistent?: boolean | undefined;
  /**
   * Wall-clock seconds until `onExpire`, counted from now or from the last `setTtl`; default 300, at most 30 days. Of a
   * persistent one null, none.
   */
  ttlSeconds?: number | null | undefined;
  /** Default `destroy`. */
  onExpire?: OnExpire | undefined;
  /** Seconds without activity of its owner until `onIdle`. Default null, none; of a persistent one 300. */
  idleTimeoutSeconds?: number | null | undefined;
  /** Default `hibernate`. */
  onIdle?: OnIdle | undefined;
  /** How long it is kept once hibernated, seconds; default null, for ever. */
  retentionSeconds?: number | null | undefined;
  /** Whether work asked of it wakes it; default true. */
  autoWake?: boolean | undefined;
  /**
   * Whether a hibernation, as those by its clocks, keeps memory and processes; default true. Without them it boots from its
   * files when it wakes, and only `wake` wakes it.
   */
  hibernateMemory?: boolean | undefined;
  /** Starts with the memory and files of this snapshot, which must be of the same tenant. */
  fromSnapshot?: string | undefined;
  /** For people; needs not be unique. */
  name?: string | undefined;
  /** Whose data is inside. Default: `metadata.tenant_id`, else the account. */
  tenant?: string | undefined;
  /** Labels to find it by, sent as they are. */
  metadata?: Readonly<Record<string, string>> | undefined;
  /** Environment of everything that runs in it. */
  env?: Readonly<Record<string, string>> | undefined;
  /**
   * Environment variables, over those of `env`, that no answer, event, log or error tells: API keys and the like. Given
   * again after every wake; forks and sandboxes made from its snapshots get them too.
   */
  secrets?: Readonly<Record<string, string>> | undefined;
  /** Limit, cores; default 1, fractions allowed. */
  cpu?: number | undefined;
  /** Default 1024. */
  memoryMb?: number | undefined;
  /** Default 4096. */
  diskMb?: number | undefined;
  /** What it may reach. Default `internet`: public addresses only. `none`: nothing. */
  network?: Network | undefined;
  /** `auto`: shape and clocks are as `Sandbox.advise` has them for the workload, but for what you set; see `sandbox.advice`. */
  lifecycle?: "auto" | undefined;
  /** What is known of what it is for. */
  workload?: Workload | undefined;
  /** Keeps code that the workload calls untrusted in a persistent sandbox; refused without. */
  acceptRisk?: boolean | undefined;
}

/** Longest time for a create: a miss of the pool restores on the spot, milliseconds. */
export const CREATE_TIMEOUT_MS = 120_000;
/** Longest time for undoing an aborted create, milliseconds. */
const UNDO_TIMEOUT_MS = 30_000;

/**
 * Creates a sandbox. When the call is aborted or runs out of time, whether it was made is unknown; then it is undone
 * in the background, unless the caller gave an idempotency key, which says that they mean to ask again.
 */
export async function createSandbox(
  transport: Transport,
  options: SandboxCreateOptions,
): Promise<CreatedSandboxWire> {
  options.signal?.throwIfAborted();
  const idempotencyKey = options.idempotencyKey ?? newIdempotencyKey();
  const json = requestJson(withWorkload(options), NOT_SENT);
  const { signal, timeoutMs = CREATE_TIMEOUT_MS } = options;
  try {
    const answer = await transport.json<CreatedSandboxWire>({
      method: "POST",
      path: "/v1/sandboxes",
      json,
      idempotencyKey,
      signal,
      timeoutMs,
    });
    return answer;
  } catch (error) {
    const isUnknown = signal?.aborted || error instanceof TimeoutError;
    if (isUnknown && options.idempotencyKey === undefined)
      undoCreate(transport, json, idempotencyKey).catch(() => {});
    throw error;
  }
}

/** Asking again with the same key gives the sandbox's id; a failure leaves it to its TTL. */
async function undoCreate(transport: Transport, json: string, idempotencyKey: string): Promise<void> {
  const timeoutMs = UNDO_TIMEOUT_MS;
  const answer = await transport.json<SandboxWire>({
    method: "POST",
    path: "/v1/sandboxes",
    json,
    idempotencyKey,
    timeoutMs,
  });
  const { id } = answer;
  await transport.text({ method: "DELETE", path: `/v1/sandboxes/${pathSegment("id", id)}`, timeoutMs });
}
