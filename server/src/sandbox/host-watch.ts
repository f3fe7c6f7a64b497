import { type Clock, type Log, pause } from "@torpor/base";
import { CodedError, type HostEvent, type Machine } from "@torpor/protocol";
import type { HostLink, LinkedHost } from "../host/placement.ts";
import { ReportedMachine } from "../host/owned-machine.ts";
import type { HostSandboxStore } from "../store/host-sandbox-store.ts";
import type { SandboxRecord } from "../store/sandbox-record.ts";
import { differences } from "./machine-follower.ts";
import type { Sandboxes } from "./sandboxes.ts";

export interface HostWatchOptions {
  link: HostLink;
  store: HostSandboxStore;
  sandboxes: Sandboxes;
  clock: Clock;
  log: Log;
  /** Whether no other server shares the store: then what an earlier process left half done is nobody's work any more. */
  soleServer: boolean;
  /** A record or machine younger than this may be one half of a create under way elsewhere. Default 30,000. */
  newbornGraceMs?: number;
  /** Between full comparisons while the host stays connected. Default 60,000. */
  reconcileEveryMs?: number;
  /** How long one poll waits for events. Default 20,000. */
  pollMs?: number;
}

const FIRST_BACKOFF_MS = 100;
const MAX_BACKOFF_MS = 5_000;
/** After its own end a sandbox is taken for ended though its host can no longer tell, milliseconds: clocks differ. */
const LOST_GRACE_MS = 60_000;
/** How often it is noted of a sandbox that sleeps that its host still has it, milliseconds. */
const ASLEEP_SEEN_MS = 60 * 60_000;

/**
 * Keeps the records of one host true: follows its events, and on every (re)connect compares both sides in full.
 *
 * An error on either side ends the comparison without an action: a host or store that cannot be read never means that
 * nothing exists.
 */
export class HostWatch {
  readonly #options: Required<HostWatchOptions>;
  readonly #closing = new AbortController();
  readonly #startedAt: number;
  #running: Promise<void> | undefined;
  #wake: AbortController = new AbortController();
  #connected = false;
  /** Whether the last comparison left something alone for being young: then the next one comes when it no longer is. */
  #sawNewborn = false;

  constructor(options: HostWatchOptions) {
    this.#options = { newbornGraceMs: 30_000, reconcileEveryMs: 60_000, pollMs: 20_000, ...options };
    this.#startedAt = options.clock.now();
  }

  /** Whether the last poll of the host worked. */
  get connected(): boolean {
    return this.#connected;
  }

  start(): void {
    this.#running ??= this.#run();
  }

  /** Compares both sides soon instead of at the next turn. */
  reconcileSoon(): void {
    this.#wake.abort();
  }

  async close(): Promise<void> {
    this.#closing.abort();
    this.#wake.abort();
    await this.#running;
  }

  async #run(): Promise<void> {
    const { clock, log } = this.#options;
    let backoffMs = FIRST_BACKOFF_MS;
    while (!this.#closing.signal.aborted) {
      try {
        await this.#follow(() => {
          backoffMs = FIRST_BACKOFF_MS;
        });
      } catch (error) {
        if (this.#closing.signal.aborted) break;
        if (this.#connected || backoffMs === FIRST_BACKOFF_MS)
          log.warn({ op: "host.watch", outcome: "disconnected", err: error });
        this.#connected = false;
      }
      await pause(clock, backoffMs, this.#closing.signal);
      backoffMs = Math.min(backoffMs * 2, MAX_BACKOFF_MS);
    }
  }

  async #follow(onConnected: () => void): Promise<void> {
    const { link, clock, log, pollMs, reconcileEveryMs, newbornGraceMs } = this.#options;
    await link.health();
    const host = await link.host();
    let after = await this.#catchUp(host);
    for (;;) {
      const startedAt = clock.monotonic();
      await this.reconcile(host);
      if (!this.#connected)
        log.info({
          op: "host.watch",
          outcome: "connected",
          host: host.hostId,
          durationMs: clock.monotonic() - startedAt,
        });
      this.#connected = true;
      onConnected();
      const untilNext = this.#sawNewborn ? Math.min(newbornGraceMs, reconcileEveryMs) : reconcileEveryMs;
      for (;;) {
        const leftMs = untilNext - (clock.monotonic() - startedAt);
        if (leftMs <= 0) break;
        const batch = await this.#poll(host, after, Math.ceil(Math.min(pollMs, leftMs)));
        if (batch === "woken") break;
        if (batch.lastSeq < after) return; // the host's journal began anew: connect again from its start
        for (const event of batch.events)
          await this.#unlessRefused(event.machine_id, () => this.#apply(host, event));
        after = batch.lastSeq;
      }
      if (this.#closing.signal.aborted) return;
    }
  }

  async #poll(
    host: LinkedHost,
    after: number,
    waitMs: number,
  ): Promise<{ events: HostEvent[]; lastSeq: number } | "woken"> {
    if (this.#closing.signal.aborted) return "woken";
    if (this.#wake.signal.aborted) {
      this.#wake = new AbortController();
      return "woken"; // asked for while the last turn was still under way
    }
    const wake = this.#wake.signal;
    try {
      const { events, last_seq } = await host.client.events(host.scope, after, waitMs, wake);
      return { events, lastSeq: last_seq };
    } catch (error) {
      if (wake.aborted) return "woken";
      throw error;
    }
  }

  /** The number of the newest event: what came before it is covered by the comparison that follows. */
  async #catchUp(host: LinkedHost): Promise<number> {
    let after = 0;
    for (;;) {
      const batch = await host.client.events(host.scope, after, 0, this.#closing.signal);
      if (batch.events.length === 0 || batch.last_seq <= after) return Math.max(after, batch.last_seq);
      after = batch.last_seq;
    }
  }

  async #apply(host: LinkedHost, event: HostEvent): Promise<void> {
    const { store, sandboxes, log } = this.#options;
    if (sandboxes.isCreating(event.machine_id)) return; // the create under way hears of it in its own answer
    const record = await store.find(host.scope, event.machine_id);
    if (record === undefined || record.state === "destroyed") return;
    if (event.type === "started" && record.state === "creating")
      await this.#finishCreate(record, event.machine);
    else if (event.type === "ended") {
      const ended = await sandboxes.noteEnded(record, event.machine);
      log.info({ op: "sandbox.ended", outcome: ended.reason, sandboxId: ended.id, tenant: ended.tenant });
    } else if (record.state !== "creating" && disagree(record, event.machine)) await sandboxes.follow(record);
  }

  /**
   * One comparison in both directions. The host's list is read before the records, and everything younger than the
   * grace is left alone, so that neither side's newborns look like orphans.
   */
  async reconcile(host: LinkedHost): Promise<void> {
    const { store, log } = this.#options;
    this.#sawNewborn = false;
    const machines = new Map(
      (await host.client.listMachines(host.scope, this.#closing.signal)).map((machine) => [
        machine.id,
        machine,
      ]),
    );
    const { records, unreadable } = await store.live(host.scope);
    for (const { id, error } of unreadable)
      log.error({ op: "sandbox.reconcile", outcome: "record unreadable, left", sandboxId: id, err: error });
    if (machines.size === 0 && records.some(isSettled))
      return await this.#settleWithoutMachines(host, records);
    for (const record of records)
      await this.#unlessRefused(record.id, () => this.#settle(host, record, machines.get(record.id)));
    await this.#noteSeen(host, records, machines);
    const known = new Set([...records, ...unreadable].map(({ id }) => id));
    if (machines.size > 0 && known.size === 0 && !(await store.knows(host.scope))) {
      // A store that has never heard of this host is the wrong or a lost one: what runs there is somebody's all the same.
      log.error({
        op: "sandbox.reconcile",
        outcome: "the store knows nothing of this host: its machines are left",
      });
      return;
    }
    for (const machine of machines.values()) {
      if (!known.has(machine.id) && machine.state !== "ended" && machine.state !== "ending") {
        await this.#unlessRefused(machine.id, () => this.#removeOrphan(host, machine));
      }
    }
  }

  /** Of what goes on as it was; what has moved was followed, with what it used. */
  async #noteSeen(
    host: LinkedHost,
    records: readonly SandboxRecord[],
    machines: ReadonlyMap<string, Machine>,
  ): Promise<void> {
    const { store, clock } = this.#options;
    const now = clock.now();
    const seen = records.flatMap((record) => {
      const machine = machines.get(record.id);
      if (machine === undefined || machine.state !== record.state) return [];
      const isAwake = record.state === "running" || record.state === "paused";
      // One that sleeps takes little, and there may be very many of them.
      const isDue = record.state === "hibernated" && now - record.metered.seenAt > ASLEEP_SEEN_MS;
      return isAwake || isDue ? [{ record, used: machine.used }] : [];
    });
    await store.noteSeen(host.scope, seen, now);
  }

  /**
   * The host has no machine at all, not even an ended one, though there are sandboxes on record that it had: its journal
   * was lost or is another's. That says nothing of them, so they stay on record, until their own end if they have one or
   * until their owner ends them. What was only being made or ended is settled as ever.
   */
  async #settleWithoutMachines(host: LinkedHost, records: readonly SandboxRecord[]): Promise<void> {
    const { sandboxes, clock, log } = this.#options;
    const left: string[] = [];
    for (const record of records) {
      const { onExpire, expiresAt, maxLifetimeAt } = record;
      const endsAt = onExpire === "destroy" && expiresAt !== null ? expiresAt : maxLifetimeAt;
      if (!isSettled(record))
        await this.#unlessRefused(record.id, () => this.#settle(host, record, undefined));
      else if (endsAt !== null && clock.now() > endsAt + LOST_GRACE_MS)
        await sandboxes.noteGone(record, endsAt === expiresAt ? "ttl_expired" : "max_lifetime");
      else left.push(record.id);
    }
    if (left.length > 0)
      log.error({
        op: "sandbox.reconcile",
        outcome: "the host has no machine at all: what is on record is left",
        host: host.hostId,
        sandboxes: left.length,
      });
  }

  /** One sandbox the host cannot deal with must not keep the others from being looked at. */
  async #unlessRefused(id: string, step: () => Promise<void>): Promise<void> {
    try {
      await step();
    } catch (error) {
      if (
        !(error instanceof CodedError) ||
        error.code === "host_unavailable" ||
        error.code === "client_closed_request"
      )
        throw error;
      this.#options.log.warn({ op: "sandbox.reconcile", outcome: error.code, sandboxId: id, err: error });
    }
  }

  async #settle(host: LinkedHost, record: SandboxRecord, listed: Machine | undefined): Promise<void> {
    const { sandboxes, log } = this.#options;
    if (sandboxes.isCreating(record.id)) return;
    if (record.state === "failed") return await this.#settleFailed(host, record, listed);
    if (record.state === "destroying") {
      await sandboxes.destroy(record, "user", "system:reconcile");
      return;
    }
    const machine = listed ?? (await host.client.findMachine(record, this.#closing.signal));
    if (machine === undefined) {
      if (this.#isNewborn(record.createdAt)) return;
      const reason = record.state === "creating" ? "create_failed" : "host_lost";
      log.warn({ op: "sandbox.reconcile", outcome: reason, sandboxId: record.id, tenant: record.tenant });
      await sandboxes.noteGone(record, reason);
    } else if (machine.state === "ended" || machine.state === "failed") {
      await (record.state === "creating"
        ? sandboxes.noteGone(record, "create_failed", machine)
        : sandboxes.noteEnded(record, machine));
    } else if (machine.state === "running" && record.state === "creating") {
      await this.#finishCreate(record, machine);
    } else if (record.state !== "creating" && disagree(record, machine)) await sandboxes.follow(record);
  }

  /** What is left of it stays on the host until its owner or a clock ends it. */
  async #settleFailed(host: LinkedHost, record: SandboxRecord, listed: Machine | undefined): Promise<void> {
    const { sandboxes } = this.#options;
    if (listed?.state === "failed") return;
    const machine = listed ?? (await host.client.findMachine(record, this.#closing.signal));
    if (machine === undefined) await sandboxes.noteGone(record, "host_lost");
    else if (machine.state === "ended") await sandboxes.noteEnded(record, machine);
  }

  /**
   * A create whose server died on the way: finished when somebody can still come back for it; otherwise nobody has its
   * id, and it is undone once no other server can be at it any more.
   */
  async #finishCreate(record: SandboxRecord, machine: Machine): Promise<void> {
    const { sandboxes, store, log, soleServer } = this.#options;
    const isLeftBehind = soleServer && record.createdAt < this.#startedAt;
    if (await store.isAwaited(record)) await sandboxes.adopt(record, machine);
    else if (isLeftBehind || !this.#isNewborn(record.createdAt)) {
      log.warn({
        op: "sandbox.reconcile",
        outcome: "abandoned",
        sandboxId: record.id,
        tenant: record.tenant,
      });
      await sandboxes.destroy(record, "abandoned", "system:reconcile");
    }
  }

  #isNewborn(createdAt: number): boolean {
    const { clock, newbornGraceMs } = this.#options;
    if (clock.now() - createdAt >= newbornGraceMs) return false;
    this.#sawNewborn = true;
    return true;
  }

  async #removeOrphan(host: LinkedHost, machine: Machine): Promise<void> {
    const { store, log } = this.#options;
    if (this.#isNewborn(Date.parse(machine.created_at))) return;
    const record = await store.find(host.scope, machine.id);
    if (record !== undefined && record.state !== "destroyed") return; // made since the lists were read
    const rests = machine.state !== "running" && machine.state !== "creating" && machine.state !== "failed";
    if (record === undefined && rests) {
      // It costs nothing while it rests and holds what its owner keeps: without a record that says it has ended, a person decides.
      log.error({ op: "sandbox.reconcile", outcome: "resting orphan left", sandboxId: machine.id });
      return;
    }
    log.warn({
      op: "sandbox.reconcile",
      outcome: "orphan removed",
      sandboxId: machine.id,
      tenant: machine.tenant,
    });
    await host.client.deleteMachine(
      ReportedMachine.of(host.scope, machine.id),
      record?.reason ?? "host_lost",
    );
  }
}

/** Whether the record is of a sandbox that was whole, rather than being made or ended. */
function isSettled({ state }: SandboxRecord): boolean {
  return state !== "creating" && state !== "destroying";
}

/** Whether the record must be brought up to what the host says. */
function disagree(record: SandboxRecord, machine: Machine): boolean {
  return machine.state !== record.state || Object.keys(differences(record, machine)).length > 0;
}
