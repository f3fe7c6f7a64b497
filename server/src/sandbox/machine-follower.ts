import { isEnding, type Machine, type Sandbox, sameNetwork } from "@torpor/protocol";
import type { Placement } from "../host/placement.ts";
import type { SandboxRecord } from "../store/sandbox-record.ts";
import type { SandboxChanges } from "../store/sandbox-changes.ts";
import type { SandboxStore } from "../store/sandbox-store.ts";
import { tellsNews, toldHoldings } from "../ledger/binding-changes.ts";
import { tellsMoves, toldUse } from "../usage/metered.ts";
import { stateWay } from "./state-way.ts";
import type { UnaskedWakes } from "./unasked-wakes.ts";

export interface MachineFollowerOptions {
  store: SandboxStore;
  placement: Placement;
  unaskedWakes: UnaskedWakes;
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
  /** By sandbox: who has asked for the move that is under way. */
  readonly #actors = new Map<string, string>();
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
    const { store, placement, unaskedWakes, onEnded } = this.#options;
    const host = await placement.of(seen.host);
    const machine = await host.client.findMachine(seen);
    let record = (await store.reload(seen)) ?? seen;
    if (machine !== undefined) await this.settleAddress(record, machine);
    for (let tries = 0; tries < MAX_TRIES; tries += 1) {
      if (machine === undefined || isEnding(record.state) || record.state === "creating") return record;
      if (machine.state === "ended" || machine.state === "failed") return await onEnded(record, machine);
      if (record.state === "hibernated" && (machine.state === "running" || machine.state === "paused")) {
        // A wake that was asked for by way of a server has its record in `waking` where there are limits.
        const admitted = await unaskedWakes.admit(record);
        if (admitted === undefined) return record;
        record = admitted;
      }
      const moved = await this.#step(record, machine);
      if (moved !== undefined) return moved;
      record = (await store.reload(record)) ?? record;
    }
    return record;
  }

  /** Does what makes the machine move, in somebody's name: whoever sees the move meanwhile records it as theirs. */
  async inNameOf<T>(actor: string, id: string, act: () => Promise<T>): Promise<T> {
    this.#actors.set(id, actor);
    try {
      return await act();
    } finally {
      if (this.#actors.get(id) === actor) this.#actors.delete(id);
    }
  }

  /**
   * Makes sure that the ledger says that an address was given back before it says who has it next: its host gives it away
   * again without asking whether its last holder's release has been heard of here.
   */
  async settleAddress(record: SandboxRecord, machine: Machine): Promise<void> {
    const { store, placement } = this.#options;
    const newest = machine.incarnations.at(-1);
    if (newest === undefined || newest.number <= record.holdings.incarnation) return;
    const holder = await store.holderOf(record, newest.address);
    if (holder === undefined || holder.id === record.id) return;
    const host = await placement.of(record.host);
    const theirs = await host.client.findMachine(holder);
    // If it still has it, the ledger tells that as it is: its audit finds two holders.
    const told =
      theirs === undefined ? { incarnations: [], imageId: undefined, isUnknown: true } : toldHoldings(theirs);
    await store.noteHoldings(holder, told);
  }

  /** @returns undefined when another moved the record meanwhile. */
  async #step(record: SandboxRecord, machine: Machine): Promise<SandboxRecord | undefined> {
    const { store } = this.#options;
    const found = differences(record, machine);
    const actor = this.#actors.get(record.id);
    const changes: SandboxChanges = actor === undefined ? found : { ...found, actor };
    const { state } = machine;
    // What is under way on the host is told by its end.
    if (state !== "running" && state !== "paused" && state !== "hibernated")
      return await store.note(record, changes);
    const way = stateWay(record.state, state) ?? [];
    const took = tookMs(record, machine);
    if (way.length > 0 && took !== null) changes.tookMs = took;
    return way.length === 0
      ? await store.note(record, changes)
      : await store.advanceAlong(record, way, changes);
  }
}

/** How long the move to where it stands took on its host; null for one that is not timed. */
function tookMs(record: SandboxRecord, { state, generation, took_ms: took }: Machine): number | null {
  if (state === "hibernated") return took.hibernate;
  return generation > record.generation ? took.wake : null;
}

function shownImage({ image }: Machine): Sandbox["image"] {
  return image === null
    ? null
    : { size_bytes: image.size_bytes, created_at: image.created_at, memory: image.memory };
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
  if (machine.hibernate_memory !== record.hibernateMemory) changes.hibernateMemory = machine.hibernate_memory;
  if (!sameNetwork(machine.network, record.network)) changes.network = machine.network;
  if (machine.image?.created_at !== record.image?.created_at) changes.image = shownImage(machine);
  const told = toldHoldings(machine);
  if (tellsNews(record.holdings, told)) changes.told = told;
  if (tellsMoves(record.metered, machine)) changes.use = toldUse(machine);
  return changes;
}
