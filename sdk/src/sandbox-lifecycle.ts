import type { CallOptions } from "./call-options.ts";
import type { Network } from "./network-policy.ts";
import { requestJson } from "./request-json.ts";
import { dateOrNull, type OnExpire, type OnIdle, type SandboxState } from "./sandbox-info.ts";
import type { Transport } from "./transport.ts";
import type { LifecycleWire, SandboxWire } from "./wire.ts";

/** Images of gigabytes are written and read, milliseconds. */
export const IMAGE_TIMEOUT_MS = 300_000;

/** A sandbox's clocks, and what holds it awake. */
export interface Lifecycle {
  state: SandboxState;
  persistent: boolean;
  autoWake: boolean;
  hibernateMemory: boolean;
  /** `seconds`: those left. */
  ttl: { seconds: number | null; at: Date | null; onExpire: OnExpire };
  /** `seconds`: the timeout. `at` is null while something holds it. */
  idle: { seconds: number | null; at: Date | null; onIdle: OnIdle };
  /** `at` is null unless it is hibernated. */
  retention: { seconds: number | null; at: Date | null };
  /** The end that no clock puts off, if the server sets one. `seconds`: those left. */
  maxLifetime: { seconds: number | null; at: Date | null };
  lastActivityAt: Date;
  /** What that was; null when its host cannot tell. */
  lastActivity: {
    kind: "request" | "port" | "exec" | "create" | "wake" | "resume" | "snapshot" | "adopt";
    what: string;
  } | null;
  /** What keeps it from being idle now: requests as method and path, commands by their exec id. */
  holds: { kind: "request" | "port" | "exec"; what: string; since: Date }[];
  /** Why it ended; null while it lives. */
  reapedBecause: string | null;
}

/** What to change of a sandbox's clocks; what is left out stays. */
export interface LifecycleUpdate {
  /** Counted from now; null for none, of a persistent sandbox only. */
  ttlSeconds?: number | null | undefined;
  onExpire?: OnExpire | undefined;
  idleTimeoutSeconds?: number | null | undefined;
  onIdle?: OnIdle | undefined;
  retentionSeconds?: number | null | undefined;
  autoWake?: boolean | undefined;
  hibernateMemory?: boolean | undefined;
}

/** How a sandbox is put to storage. */
export interface HibernateOptions extends CallOptions {
  /**
   * False: its files alone; its processes end with it. It boots from them when `wake` is called, which no work does by
   * itself. Default: its `hibernateMemory`, true.
   */
  memory?: boolean | undefined;
}

/** Sleep, wake and clocks of one sandbox. Its public face is on Sandbox. */
export class SandboxLifecycle {
  readonly #transport: Transport;
  readonly #root: string;

  /** `root` is the path of the sandbox's resource. */
  constructor(transport: Transport, root: string) {
    this.#transport = transport;
    this.#root = root;
  }

  move(
    verb: "pause" | "resume" | "wake",
    { signal, timeoutMs = IMAGE_TIMEOUT_MS }: CallOptions,
  ): Promise<SandboxWire> {
    return this.#transport.json({ method: "POST", path: `${this.#root}/${verb}`, signal, timeoutMs });
  }

  hibernate({ memory, signal, timeoutMs = IMAGE_TIMEOUT_MS }: HibernateOptions): Promise<SandboxWire> {
    const path = `${this.#root}/hibernate`;
    return this.#transport.json({
      method: "POST",
      path,
      ...(memory === undefined ? {} : { json: JSON.stringify({ memory }) }),
      signal,
      timeoutMs,
    });
  }

  async get({ signal, timeoutMs }: CallOptions): Promise<Lifecycle> {
    const path = `${this.#root}/lifecycle`;
    const wire = await this.#transport.json<LifecycleWire>({ method: "GET", path, signal, timeoutMs });
    const { ttl, idle, retention, max_lifetime: maxLifetime } = wire.clocks;
    return {
      state: wire.state,
      persistent: wire.persistent,
      autoWake: wire.auto_wake,
      hibernateMemory: wire.hibernate_memory,
      ttl: { seconds: ttl.seconds, at: dateOrNull(ttl.at), onExpire: ttl.on_expire },
      idle: { seconds: idle.seconds, at: dateOrNull(idle.at), onIdle: idle.on_idle },
      retention: { seconds: retention.seconds, at: dateOrNull(retention.at) },
      maxLifetime: { seconds: maxLifetime.seconds, at: dateOrNull(maxLifetime.at) },
      lastActivity: wire.last_activity,
      lastActivityAt: new Date(wire.last_activity_at),
      holds: wire.holds.map(({ kind, what, since }) => ({ kind, what, since: new Date(since) })),
      reapedBecause: wire.reaped_because,
    };
  }

  set(update: LifecycleUpdate, { signal, timeoutMs }: CallOptions): Promise<SandboxWire> {
    const json = requestJson(update, new Set());
    const path = `${this.#root}/lifecycle`;
    return this.#transport.json({ method: "PATCH", path, json, signal, timeoutMs });
  }

  setNetwork(network: Network, { signal, timeoutMs }: CallOptions): Promise<SandboxWire> {
    const json = JSON.stringify({ network });
    const path = `${this.#root}/network`;
    return this.#transport.json({ method: "PATCH", path, json, signal, timeoutMs });
  }

  promote(
    change: { persistent: boolean; reason: string; tenant?: string | undefined },
    { signal, timeoutMs }: CallOptions,
  ): Promise<SandboxWire> {
    const json = requestJson(change, new Set());
    const path = `${this.#root}/promote`;
    return this.#transport.json({ method: "POST", path, json, signal, timeoutMs });
  }
}
