import { CodedError, type HostHealth } from "@torpor/protocol";
import type { Clock, Log } from "@torpor/base";
import { HostScope } from "../auth/tenant-scope.ts";
import type { HostClient } from "./host-client.ts";

/** What a sandbox asks of a host. */
export interface Demand {
  cpu: number;
  memoryMb: number;
  diskMb: number;
}

/** One host, to be spoken to of sandboxes whose record one holds. */
export interface PlacedHost {
  readonly hostId: string;
  readonly client: HostClient;
}

/** One host, and the right to hear of all that is placed on it. */
export interface LinkedHost extends PlacedHost {
  readonly scope: HostScope;
}

/** Chooses hosts for new sandboxes and finds those of existing ones. */
export interface Placement {
  /** @throws CodedError invalid_request when no host is large enough, host_unavailable when none answers. */
  choose(demand: Demand): Promise<PlacedHost>;
  /** @throws CodedError host_unavailable when that host is not connected. */
  of(hostId: string): Promise<PlacedHost>;
  /** Every host this server is told to use, connected or not. */
  readonly links: readonly HostLink[];
}

/** How long a host's capacity and pool figures are believed, milliseconds. */
const HEALTH_AGE_MS = 5_000;

/** The connection to one host, which tells its id and size when it first answers. */
export class HostLink {
  readonly client: HostClient;
  readonly #clock: Clock;
  #health: { value: HostHealth; at: number } | undefined;
  #host: LinkedHost | undefined;
  #asking: Promise<HostHealth> | undefined;

  constructor(client: HostClient, clock: Clock) {
    this.client = client;
    this.#clock = clock;
  }

  /** The host, asked for its id if it has not told yet. @throws CodedError host_unavailable */
  async host(): Promise<LinkedHost> {
    if (this.#host === undefined) await this.health();
    if (this.#host === undefined)
      throw new CodedError("host_unavailable", "the host answered without telling its id");
    return this.#host;
  }

  /** What the host last said of itself, at most 5 s ago unless it has become unreachable since. */
  lastHealth(): HostHealth | undefined {
    return this.#health?.value;
  }

  /** Asks the host how it is; concurrent callers share one call. @throws CodedError host_unavailable */
  health(): Promise<HostHealth> {
    this.#asking ??= this.#ask().finally(() => {
      this.#asking = undefined;
    });
    return this.#asking;
  }

  /** The last answer if it is fresh, else a new one. */
  async freshHealth(): Promise<HostHealth> {
    const known = this.#health;
    if (known !== undefined && this.#clock.monotonic() - known.at < HEALTH_AGE_MS) return known.value;
    return await this.health();
  }

  async #ask(): Promise<HostHealth> {
    const value = await this.client.health();
    this.#health = { value, at: this.#clock.monotonic() };
    if (this.#host?.hostId !== value.host_id) {
      this.#host = {
        hostId: value.host_id,
        scope: HostScope.fromHostLink(value.host_id),
        client: this.client,
      };
    }
    return value;
  }
}

/** Placement over a fixed list of hosts: the first that is large enough. */
export class FixedPlacement implements Placement {
  readonly links: readonly HostLink[];
  readonly #log: Log;

  constructor(links: readonly HostLink[], log: Log) {
    this.links = links;
    this.#log = log;
  }

  async choose(demand: Demand): Promise<PlacedHost> {
    let unreachable: unknown;
    let tooSmall: CodedError | undefined;
    for (const link of this.links) {
      try {
        // Sizes change with the machine, not with its load: a known one serves without asking again.
        const health = link.lastHealth() ?? (await link.health());
        const refusal = beyondCapacity(demand, health);
        if (refusal === undefined) return await link.host();
        tooSmall = refusal;
      } catch (error) {
        unreachable = error;
        this.#log.warn({ op: "placement.choose", outcome: "unreachable", err: error });
      }
    }
    if (tooSmall !== undefined) throw tooSmall;
    throw unreachable ?? new CodedError("host_unavailable", "no host is configured: set TORPOR_HOST_URL");
  }

  async of(hostId: string): Promise<PlacedHost> {
    let unreachable: unknown;
    for (const link of this.links) {
      try {
        const host = await link.host();
        if (host.hostId === hostId) return host;
      } catch (error) {
        unreachable = error;
      }
    }
    throw (
      unreachable ??
      new CodedError(
        "host_unavailable",
        `host ${hostId}, which holds this sandbox, is not connected to this server; connect it and try again`,
      )
    );
  }
}

function beyondCapacity(demand: Demand, { capacity }: HostHealth): CodedError | undefined {
  const limits = [
    { field: "cpu", asked: demand.cpu, most: capacity.cpus, unit: "cores" },
    { field: "memory_mb", asked: demand.memoryMb, most: capacity.memory_mb, unit: "MiB" },
    { field: "disk_mb", asked: demand.diskMb, most: capacity.disk_mb, unit: "MiB" },
  ];
  const issues = limits
    .filter(({ asked, most }) => asked > most)
    .map(({ field, asked, most, unit }) => ({
      path: field,
      message: `is ${asked}, but the largest host has ${most} ${unit}`,
    }));
  if (issues.length === 0) return undefined;
  return new CodedError(
    "invalid_request",
    issues.map(({ path, message }) => `${path} ${message}`).join("; "),
    { details: { issues } },
  );
}
