import type { Clock, Log } from "@torpor/base";
import { CodedError, costOf, type Prices, quantitiesIn } from "@torpor/protocol";
import type { ServerScope } from "../auth/tenant-scope.ts";
import type { Placement } from "../host/placement.ts";
import type { EventStore } from "../store/event-store.ts";
import type { SandboxRecord } from "../store/sandbox-record.ts";
import type { IdlePlace, SandboxStore } from "../store/sandbox-store.ts";

export interface IdleWatchOptions {
  sandboxes: SandboxStore;
  events: EventStore;
  placement: Placement;
  /** Of an account. */
  prices: (account: string) => Promise<Prices>;
  clock: Clock;
  log: Log;
  /** How many are looked at in one sweep; the next goes on behind them. Default 500. */
  atOnce?: number;
}

/** Awake and unused for so long is worth a word: six times the default idle timeout, milliseconds. */
const LONG_MS = 30 * 60_000;
const DAY_SECONDS = 86_400;

/** Names sandboxes that have been awake for long and are not used, with what that costs. */
export class IdleWatch {
  readonly #options: Required<IdleWatchOptions>;
  #place: IdlePlace | null = null;

  constructor(options: IdleWatchOptions) {
    this.#options = { atOnce: 500, ...options };
  }

  /** @returns of how many it told: each once in an idle spell. A host that does not answer is looked at the next time. */
  async sweep(scope: ServerScope): Promise<number> {
    const { sandboxes, clock, log, atOnce } = this.#options;
    let told = 0;
    const away = new Set<string>();
    const idle = await sandboxes.idleSince(scope, clock.now() - LONG_MS, this.#place, atOnce);
    this.#place = idle.next;
    for (const record of idle.records) {
      if (away.has(record.host)) continue;
      try {
        if (await this.#look(record)) told += 1;
      } catch (error) {
        if (error instanceof CodedError && error.code === "host_unavailable") away.add(record.host);
        log.warn({ op: "sandbox.idle_awake", outcome: "not looked at", sandboxId: record.id, err: error });
      }
    }
    return told;
  }

  async #look(record: SandboxRecord): Promise<boolean> {
    const { events, placement, prices, clock } = this.#options;
    const machine = await (await placement.of(record.host)).client.findMachine(record);
    // Its host knows what the record does not: a command that has run for hours is activity all the while.
    if (machine === undefined || machine.state !== "running" || machine.holds.length > 0) return false;
    const idleFrom = Math.max(record.lastActivityAt, Date.parse(machine.last_activity_at));
    const idleSeconds = Math.floor((clock.now() - idleFrom) / 1_000);
    if (idleSeconds * 1_000 < LONG_MS) return false;
    const { cpu, memoryMb: memory_mb, diskMb: disk_mb } = record;
    const priced = await prices(record.account);
    const cost = (seconds: number): number =>
      costOf(quantitiesIn("running", { cpu, memory_mb, disk_mb, image_bytes: 0 }, seconds), priced);
    const changes = {
      idle_since: new Date(idleFrom).toISOString(),
      idle_seconds: idleSeconds,
      cost_so_far: cost(idleSeconds),
      cost_per_day: cost(DAY_SECONDS),
      currency: priced.currency,
    };
    return await events.tellOnce(record, "sandbox.idle_awake", changes, idleFrom);
  }
}
