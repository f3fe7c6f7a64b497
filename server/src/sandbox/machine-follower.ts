import { isEnding, type Machine } from "@torpor/protocol";
import type { Placement } from "../host/placement.ts";
import type { SandboxRecord } from "../store/sandbox-record.ts";
import type { SandboxChanges, SandboxStore } from "../store/sandbox-store.ts";
import { stateWay } from "./state-way.ts";

export interface MachineFollowerOptions {
  store: SandboxStore;
  placement: Placement;
  onEnded: (record: SandboxRecord, machine: Machine) => Promise<SandboxRecord>;
}

/** Where a record that another moves under us is read anew at most this often. */
const MAX_TRIES = 5;

/**
 * Brings records to where their machines stand. The host alone moves a machine between running, paused and hibernated, so
 * the record follows: it asks the host for the machine as it is now, one question at a time for a sandbox, and never
 * trusts an event's copy, which may be late or out of order.
 */
export class MachineFollower {
  readonly #options: MachineFollowerOptions;
  readonly #asking = new Map<string, Promise<SandboxRecord>>();
  readonly #waiting = new Map<string, Promise<SandboxRecord>>();

  constructor(options: MachineFollowerOptions) {
    this.#options = options;
  }

  /**
   * The record after it has caught up with its machine. Callers that come while one question is under way share the next
   * one, which sees what they saw.
   *
   * @throws CodedError host_unavailable
   */
  follow(record: SandboxRecord): Promise<SandboxRecord> {
    const { id } = record;
    const asking = this.#asking.get(id);
    if (asking === undefined) return this.#start(record);
    let next = this.#waiting.get(id);
    if (next === undefined) {
      next = asking
        .catch(() => {})
        .then(() => {
          this.#waiting.delete(id);
          return this.#start(record);
        });
      this.#waiting.set(id, next);
    }
    return next;
  }

  #start(record: SandboxRecord): Promise<SandboxRecord> {
    const { id } = record;
    const asking = this.#follow(record).finally(() => this.#asking.delete(id));
    this.#asking.set(id, asking);
    return asking;
  }

  async #follow(seen: SandboxRecord): Promise<SandboxRecord> {
    const { store, placement, onEnded } = this.#options;
    const host = await placement.of(seen.host);
    const machine = await host.client.findMachine(seen);
    let record = (await store.reload(seen)) ?? seen;
    for (let tries = 0; tries < MAX_TRIES; tries += 1) {
      if (machine === undefined || isEnding(record.state) || record.state === "creating") return record;
      if (machine.state === "ended" || machine.state === "failed") return await onEnded(record, machine);
      const moved = await this.#step(record, machine);
      if (moved !== undefined) return moved;
      record = (await store.reload(record)) ?? record;
    }
    return record;
  }

  /** @returns undefined when another moved the record meanwhile. */
  async #step(record: SandboxRecord, machine: Machine): Promise<SandboxRecord | undefined> {
    const { store } = this.#options;
    const changes = differences(record, machine);
    const { state } = machine;
    // What is under way on the host is told by its end.
    if (state !== "running" && state !== "paused" && state !== "hibernated")
      return await store.note(record, changes);
    const way = stateWay(record.state, state) ?? [];
    let current: SandboxRecord | undefined = record;
    for (const [index, next] of way.entries()) {
      current = await store.advance(current, next, index === way.length - 1 ? changes : {});
      if (current === undefined) return undefined;
    }
    return way.length === 0 ? await store.note(record, changes) : current;
  }
}

/** What the machine says that its record does not: one statement's worth, empty when they agree. */
export function differences(record: SandboxRecord, machine: Machine): SandboxChanges {
  const changes: SandboxChanges = {};
  if (machine.generation > record.generation) {
    changes.generation = machine.generation;
    changes.attestation = machine.attestation;
  }
  if (machine.deadline_unix_ms !== record.expiresAt) changes.expiresAt = machine.deadline_unix_ms;
  if (machine.on_expire !== record.onExpire) changes.onExpire = machine.on_expire;
  if (machine.idle_timeout_seconds !== record.idleTimeoutSeconds)
    changes.idleTimeoutSeconds = machine.idle_timeout_seconds;
  if (machine.on_idle !== record.onIdle) changes.onIdle = machine.on_idle;
  if (machine.retention_seconds !== record.retentionSeconds)
    changes.retentionSeconds = machine.retention_seconds;
  if (machine.auto_wake !== record.autoWake) changes.autoWake = machine.auto_wake;
  if (machine.image?.created_at !== record.image?.created_at) changes.image = machine.image;
  return changes;
}
