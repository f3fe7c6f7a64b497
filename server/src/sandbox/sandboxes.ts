import type { Clock, Log } from "@torpor/base";
import {
  CodedError,
  type CreateSandboxRequest,
  type EndReason,
  isEnding,
  LIMITS,
  type Machine,
  type MachineUpdate,
  type NetworkPolicy,
  newSandboxId,
  type UpdateLifecycleRequest,
} from "@torpor/protocol";
import type { Advisor } from "../advise/advisor.ts";
import type { TenantScope } from "../auth/tenant-scope.ts";
import type { PlacedHost, Placement } from "../host/placement.ts";
import type { AccountRecord, AccountStore } from "../store/account-store.ts";
import { isLimited } from "../store/quota.ts";
import { type SandboxRecord, wakesForWork } from "../store/sandbox-record.ts";
import type { SandboxStore } from "../store/sandbox-store.ts";
import type { SnapshotStore } from "../store/snapshot-store.ts";
import { type CreatePlan, createPlan, refused, snapshotNotFound, type WantedMachine } from "./create-plan.ts";
import { CreateTurns } from "./create-turns.ts";
import { MachineFollower } from "./machine-follower.ts";
import { toldHoldings } from "../ledger/binding-changes.ts";
import { toldUse } from "../usage/metered.ts";
import { SandboxEnds } from "./sandbox-ends.ts";
import { sandboxEnded, sandboxNotFound } from "./sandbox-errors.ts";
import { UnaskedWakes } from "./unasked-wakes.ts";

export interface SandboxesOptions {
  store: SandboxStore;
  accountStore: AccountStore;
  snapshotStore: SnapshotStore;
  placement: Placement;
  /** Settles what creates with `lifecycle: "auto"` leave open. */
  advisor: Advisor;
  clock: Clock;
  log: Log;
  /** The absolute end of every sandbox made from now on, seconds from its create, whatever its account allows; undefined for none. */
  maxLifetimeSeconds?: number | undefined;
}

export interface CreateOptions {
  /** Default: a new random one. */
  id?: string;
  /** Asked once the sandbox is usable: true when nobody is left to learn its id, so that it is destroyed again. */
  isAbandoned?: () => boolean;
}

/** Machines asked for at once: a restore is a tenth of a second of a core, so that a few for each keep it busy. */
const CREATES_PER_CORE = 4;
const LEAST_CREATES_AT_ONCE = 12;
const MAX_TURN_WAIT_MS = 60_000;

/**
 * Makes, moves and changes sandboxes: the record's states on one side, the host's machines on the other.
 *
 * Intent is committed before the host is asked and the result after, so a crash in between leaves a record in
 * `creating` or `destroying`, which {@link settle} finishes or undoes.
 */
export class Sandboxes {
  readonly #store: SandboxStore;
  readonly #accounts: AccountStore;
  readonly #snapshots: SnapshotStore;
  readonly #follower: MachineFollower;
  readonly #ends: SandboxEnds;
  readonly #placement: Placement;
  readonly #advisor: Advisor;
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #maxLifetimeSeconds: number | undefined;
  readonly #turns: CreateTurns;
  /** Creates under way in this process: theirs to finish, whatever their record looks like meanwhile. */
  readonly #creating = new Set<string>();

  constructor(options: SandboxesOptions) {
    this.#store = options.store;
    this.#accounts = options.accountStore;
    this.#snapshots = options.snapshotStore;
    this.#ends = new SandboxEnds(options);
    this.#follower = new MachineFollower({
      store: options.store,
      placement: options.placement,
      unaskedWakes: new UnaskedWakes(options),
      onEnded: (record, machine) => this.#ends.noteEnded(record, machine),
    });
    this.#placement = options.placement;
    this.#advisor = options.advisor;
    this.#clock = options.clock;
    this.#log = options.log;
    this.#turns = new CreateTurns({
      atOnce: () => {
        const cores = options.placement.links.map((link) => link.lastHealth()?.capacity.cpus ?? 0);
        const inAll = cores.reduce((sum, one) => sum + one, 0);
        return Math.max(LEAST_CREATES_AT_ONCE, Math.ceil(inAll * CREATES_PER_CORE));
      },
      maxWaitMs: MAX_TURN_WAIT_MS,
      clock: options.clock,
    });
    this.#maxLifetimeSeconds = options.maxLifetimeSeconds;
  }

  /** Whether this process is making that sandbox just now. */
  isCreating(id: string): boolean {
    return this.#creating.has(id);
  }

  /**
   * What a create comes to, with what it leaves open filled in.
   *
   * @throws CodedError invalid_request, permission_denied, snapshot_not_found
   */
  async plan(scope: TenantScope, request: CreateSandboxRequest): Promise<CreatePlan> {
    const { from_snapshot: id, ttl_seconds: ttlSeconds } = request;
    const most = this.#longestLifeSeconds(await this.#accounts.own(scope));
    if (most !== null && typeof ttlSeconds === "number" && ttlSeconds > most)
      throw refused(
        "ttl_seconds",
        `is ${ttlSeconds}, but no sandbox of account ${scope.account} lives for more than ${most} s; ask for no more than that`,
      );
    const { settled, advice } =
      request.lifecycle === "auto"
        ? await this.#advisor.settle(scope, request)
        : { settled: request, advice: null };
    if (id === undefined) return createPlan(scope, settled, null, advice);
    const snapshot = await this.#snapshots.findUsable(scope, id, this.#clock.now());
    if (snapshot === undefined) throw snapshotNotFound(id);
    return createPlan(scope, settled, snapshot, advice);
  }

  /** The shorter of what the server and what the account allows, seconds; null for no end. */
  #longestLifeSeconds({ limits }: AccountRecord): number | null {
    const all = [this.#maxLifetimeSeconds, limits.max_lifetime_seconds].filter((one) => one != null);
    return all.length === 0 ? null : Math.min(...all);
  }

  /**
   * Tells a host that a create is about to be asked for, so that it gets a machine ready meanwhile; to be called as soon as
   * it is known what is wanted. A hint, which fails nobody. Not under quotas: the store may still refuse, and a tenant at
   * its limit is not to make hosts work.
   */
  async foretell(scope: TenantScope, wanted: WantedMachine): Promise<void> {
    // Of many that wait for their turn none is served sooner by it.
    if (wanted.fromSnapshot !== null || this.#creating.size >= LEAST_CREATES_AT_ONCE) return;
    const { limits, tenantLimits } = await this.#accounts.own(scope);
    if (isLimited(limits) || isLimited(tenantLimits)) return;
    const host = await this.#placement.choose(wanted).catch(() => undefined); // the create tells why
    if (host === undefined) return;
    host.client.expectMachine(wanted);
    await new Promise(setImmediate); // commits hold this thread up: that word is to be on its way before
  }

  /** Makes a sandbox and resolves when it is usable. @throws CodedError what the host refused, after undoing it. */
  async create(scope: TenantScope, plan: CreatePlan, options: CreateOptions = {}): Promise<SandboxRecord> {
    const host =
      plan.fromSnapshot === null
        ? await this.#placement.choose({ cpu: plan.cpu, memoryMb: plan.memoryMb, diskMb: plan.diskMb })
        : await this.#placement.of(plan.fromSnapshot.host);
    const id = options.id ?? newSandboxId();
    this.#creating.add(id);
    try {
      // Nothing is written before its turn: of many that wait none keeps the store from another tenant's.
      return await this.#turns.run(`${scope.account} ${plan.tenant}`, () =>
        this.#create(scope, plan, host, id, options.isAbandoned),
      );
    } finally {
      this.#creating.delete(id);
    }
  }

  async #create(
    scope: TenantScope,
    plan: CreatePlan,
    host: PlacedHost,
    id: string,
    isAbandoned?: () => boolean,
  ): Promise<SandboxRecord> {
    if (isAbandoned?.() === true)
      throw new CodedError("client_closed_request", `sandbox ${id} was not made: nobody waits for it`);
    const account = await this.#accounts.own(scope);
    const most = this.#longestLifeSeconds(account);
    const createdAt = this.#clock.now();
    const {
      ttlSeconds: planned,
      env: _env,
      secrets: _secrets,
      fromSnapshot: _fromSnapshot,
      advice: _advice,
      ...columns
    } = plan;
    const ttlSeconds = planned === null || most === null ? planned : Math.min(planned, most);
    const record = await this.#store.insert(scope, {
      ...columns,
      id,
      host: host.hostId,
      createdAt,
      expiresAt: ttlSeconds === null ? null : Math.round(createdAt + ttlSeconds * 1_000),
      maxLifetimeAt: most === null ? null : createdAt + most * 1_000,
    });
    return await this.#make(record, host, plan, isAbandoned);
  }

  async #make(
    record: SandboxRecord,
    host: PlacedHost,
    plan: CreatePlan,
    isAbandoned?: () => boolean,
  ): Promise<SandboxRecord> {
    let machine: Machine;
    try {
      machine = await host.client.putMachine(record, {
        generation: record.generation,
        template: record.template,
        tenant: record.tenant,
        cpu: record.cpu,
        memory_mb: record.memoryMb,
        disk_mb: record.diskMb,
        network: record.network,
        env: plan.env,
        secrets: plan.secrets,
        deadline_unix_ms: record.expiresAt,
        on_expire: record.onExpire,
        idle_timeout_seconds: record.idleTimeoutSeconds,
        on_idle: record.onIdle,
        retention_seconds: record.retentionSeconds,
        auto_wake: record.autoWake,
        hibernate_memory: record.hibernateMemory,
        ttl_on_wake_seconds: record.e2b?.wakeTtlSeconds ?? null,
        max_lifetime_unix_ms: record.maxLifetimeAt,
        from_snapshot: plan.fromSnapshot?.id ?? null,
      });
      if (machine.state !== "running") {
        throw new CodedError(
          "capacity_exhausted",
          `sandbox ${record.id} ended before it was usable: ${machine.message ?? machine.reason ?? machine.state}; try again`,
        );
      }
    } catch (error) {
      await this.#undoCreate(record, error);
      throw error;
    }
    const running = (await this.adopt(record, machine)) ?? (await this.#reload(record));
    if (running.state !== "running") {
      // A delete came first. The host may have made the machine after it had been told to delete it.
      await host.client.deleteMachine(record, "user");
      throw sandboxEnded(running);
    }
    if (isAbandoned?.() === true) {
      this.#log.info({
        op: "sandbox.create",
        outcome: "abandoned",
        sandboxId: record.id,
        tenant: record.tenant,
      });
      return await this.destroy(running, "abandoned", "system:create");
    }
    return running;
  }

  /** Records that the machine of a sandbox in `creating` is usable. @returns undefined when the record has moved on. */
  async adopt(record: SandboxRecord, machine: Machine): Promise<SandboxRecord | undefined> {
    await this.#follower.settleAddress(record, machine);
    return await this.#store.advance(record, "running", {
      told: toldHoldings(machine),
      use: toldUse(machine),
      actor: record.createdBy ?? "system:reconcile",
      driver: machine.driver,
      attestation: machine.attestation,
      startedAt: machine.started_at === null ? this.#clock.now() : Date.parse(machine.started_at),
      expiresAt: machine.deadline_unix_ms,
    });
  }

  async #undoCreate(record: SandboxRecord, cause: unknown): Promise<void> {
    try {
      const destroying = await this.#store.advance(record, "destroying", {
        reason: "create_failed",
        endedBy: "system:create",
      });
      // A host that does not answer now will not answer the delete either: the next reconciliation finishes it.
      const unreachable = cause instanceof CodedError && cause.code === "host_unavailable";
      if (destroying !== undefined && !unreachable) await this.#ends.finish(destroying);
    } catch (error) {
      this.#log.warn({
        op: "sandbox.create.undo",
        outcome: "left to reconciliation",
        sandboxId: record.id,
        err: error,
      });
    }
  }

  /** The caller's sandbox. @throws CodedError sandbox_not_found for an unknown id and, just the same, for another's. */
  async require(scope: TenantScope, id: string): Promise<SandboxRecord> {
    const record = await this.#store.find(scope, id);
    if (record === undefined) throw sandboxNotFound(id);
    return record;
  }

  /** The caller's sandbox and its host, awake or asleep. @throws CodedError sandbox_not_found, sandbox_ended, conflict, host_unavailable */
  async requireLiving(scope: TenantScope, id: string): Promise<{ record: SandboxRecord; host: PlacedHost }> {
    const record = await this.require(scope, id);
    if (isEnding(record.state)) throw sandboxEnded(record);
    if (record.state === "creating") {
      throw new CodedError(
        "conflict",
        `sandbox ${id} is ${record.state}, so it cannot work yet; wait for the create to answer`,
        { details: { state: record.state } },
      );
    }
    return { record, host: await this.#placement.of(record.host) };
  }

  /**
   * The caller's sandbox and its host, for work: one that sleeps is woken. One that fell asleep a moment ago, so that its
   * record does not say so yet, is woken by its host when the work arrives.
   *
   * @throws CodedError as {@link Sandboxes.requireLiving}; wrong_state when it sleeps and is not to be woken by work, as one
   *   is not that has lost its processes
   */
  async requireRunning(scope: TenantScope, id: string): Promise<{ record: SandboxRecord; host: PlacedHost }> {
    const { record, host } = await this.requireLiving(scope, id);
    if (record.state === "running") return { record, host };
    const current = wakesForWork(record) ? record : await this.#followLiving(record);
    if (current.state === "running") return { record: current, host };
    if (!wakesForWork(current)) {
      const why = current.autoWake ? "its memory was not kept" : "auto_wake is off";
      throw new CodedError(
        "wrong_state",
        `sandbox ${id} is ${current.state} and ${why}, so work does not wake it; wake it first with POST /v1/sandboxes/${id}/wake`,
        { details: { state: current.state } },
      );
    }
    const woken = await this.#follower.inNameOf(scope.keyId, id, async () => {
      await this.#wake(current, host);
      return await this.#followWoken(current, host);
    });
    return { record: woken, host };
  }

  /** For a visit of a preview URL that may wake what sleeps: within its owner's limits, as any wake. @throws as {@link Sandboxes.move} */
  async wakeForVisit(record: SandboxRecord, host: PlacedHost): Promise<void> {
    // One that is not to be woken by work its host refuses to wake.
    if (record.state !== "hibernated" || !wakesForWork(record)) return;
    await this.#follower.inNameOf("system:preview", record.id, async () => {
      await this.#wake(record, host);
      await this.#follower.follow(record);
    });
  }

  /** Puts it to sleep since its owner's budget is spent. @throws CodedError what the host refused */
  async sleepForBudget(record: SandboxRecord): Promise<void> {
    const host = await this.#placement.of(record.host);
    await this.#follower.inNameOf("system:budget", record.id, async () => {
      await host.client.moveMachine(record, "hibernate");
      await this.#follower.follow(record);
    });
  }

  /** Wakes it if its owner may have one more awake. @throws CodedError quota_exceeded; what the host refused */
  async #wake(record: SandboxRecord, host: PlacedHost): Promise<void> {
    const claimed =
      record.state === "hibernated" ? await this.#store.claimWake(record, this.#clock.now()) : record;
    try {
      await host.client.moveMachine(record, "wake");
    } catch (error) {
      // It sleeps on, and is no longer to count as awake; where the host cannot be asked, reconciliation sees to that.
      if (claimed !== record) await this.#follower.follow(claimed).catch(() => {});
      throw error;
    }
  }

  /**
   * Pauses, resumes, hibernates or wakes a sandbox; joins one under way.
   *
   * @param memory whether a hibernation keeps it; default: as the sandbox's `hibernate_memory`
   * @throws CodedError what the host refused
   */
  async move(
    scope: TenantScope,
    id: string,
    verb: "pause" | "resume" | "hibernate" | "wake",
    memory?: boolean,
  ): Promise<SandboxRecord> {
    const { record, host } = await this.requireLiving(scope, id);
    return await this.#follower.inNameOf(scope.keyId, id, async () => {
      try {
        if (verb === "wake") await this.#wake(record, host);
        else await host.client.moveMachine(record, verb, memory);
      } catch (error) {
        if (error instanceof CodedError && error.code === "sandbox_ended")
          await this.#follower.follow(record);
        throw error;
      }
      return verb === "wake" ? await this.#followWoken(record, host) : await this.#followLiving(record);
    });
  }

  /** The record once it has caught up with its machine. */
  follow(record: SandboxRecord): Promise<SandboxRecord> {
    return this.#follower.follow(record);
  }

  async #followLiving(record: SandboxRecord): Promise<SandboxRecord> {
    const current = await this.#follower.follow(record);
    if (isEnding(current.state)) throw sandboxEnded(current);
    return current;
  }

  /**
   * The record of one that its host has woken. It may have fallen asleep when the wake was on its way, so that nothing was
   * claimed for it, and is put back to sleep where there is no room for it: the wake is asked for once more as one of a sleeper.
   *
   * @throws CodedError quota_exceeded, budget_exhausted
   */
  async #followWoken(record: SandboxRecord, host: PlacedHost): Promise<SandboxRecord> {
    const current = await this.#followLiving(record);
    if (current.state !== "hibernated") return current;
    await this.#wake(current, host);
    return await this.#followLiving(current);
  }

  /** Ends a sandbox from any state. As {@link SandboxEnds.destroy}. */
  destroy(record: SandboxRecord, reason: EndReason, actor: string): Promise<SandboxRecord> {
    return this.#ends.destroy(record, reason, actor);
  }

  /** Records what the host says: the machine has ended or failed. As {@link SandboxEnds.noteEnded}. */
  noteEnded(record: SandboxRecord, machine: Machine): Promise<SandboxRecord> {
    return this.#ends.noteEnded(record, machine);
  }

  /** Records the end of a sandbox whose machine is no more. As {@link SandboxEnds.noteGone}. */
  noteGone(record: SandboxRecord, reason: EndReason, machine?: Machine): Promise<SandboxRecord> {
    return this.#ends.noteGone(record, reason, machine);
  }

  /**
   * Changes the clocks; a TTL counts from now. The host's journal is written first, since it enforces; a crash before the
   * record follows is mended by the next reconciliation. Never wakes it.
   */
  async setLifecycle(
    scope: TenantScope,
    id: string,
    { ttl_seconds: ttlSeconds, ...changes }: UpdateLifecycleRequest,
  ): Promise<SandboxRecord> {
    const { record, host } = await this.requireLiving(scope, id);
    if (ttlSeconds === null && !record.persistent) {
      throw refused(
        "ttl_seconds",
        "may be null only for a persistent sandbox; this one is ephemeral and needs an end (POST .../promote makes it persistent)",
      );
    }
    const leftSeconds =
      record.maxLifetimeAt === null ? null : (record.maxLifetimeAt - this.#clock.now()) / 1_000;
    if (typeof ttlSeconds === "number" && leftSeconds !== null && ttlSeconds > leftSeconds) {
      throw refused(
        "ttl_seconds",
        `is ${ttlSeconds}, but this sandbox ends for good in ${Math.floor(leftSeconds)} s, at the most any may live; ask for no more than that`,
      );
    }
    await host.client.updateMachine(record, { ...changes, ...deadlineIn(ttlSeconds, this.#clock) });
    return await this.#followLiving(record);
  }

  /**
   * Changes what it may reach; in force when this resolves, and durable. The host is told first, since it enforces; a crash
   * before the record follows is mended by the next reconciliation. Never wakes it.
   */
  async setNetwork(scope: TenantScope, id: string, network: NetworkPolicy): Promise<SandboxRecord> {
    const { record, host } = await this.requireLiving(scope, id);
    await host.client.updateMachine(record, { network });
    return await this.#followLiving(record);
  }

  /** Makes an ephemeral sandbox persistent or the other way round, with the clocks of its new shape. */
  async setPersistent(scope: TenantScope, id: string, persistent: boolean): Promise<SandboxRecord> {
    const { record, host } = await this.requireLiving(scope, id);
    if (record.persistent === persistent) return record;
    let current = record;
    // Made persistent before the host lets go of the deadline: what a crash leaves in between still ends by itself.
    while (current.persistent !== persistent) {
      if (isEnding(current.state)) throw sandboxEnded(current);
      current = (await this.#store.note(current, { persistent })) ?? (await this.#reload(current));
    }
    await host.client.updateMachine(record, {
      ...deadlineIn(persistent ? null : LIMITS.defaultTtlSeconds, this.#clock),
      idle_timeout_seconds: persistent
        ? (record.idleTimeoutSeconds ?? LIMITS.defaultIdleTimeoutSeconds)
        : null,
    });
    return await this.#followLiving(current);
  }

  async #reload(record: SandboxRecord): Promise<SandboxRecord> {
    const now = await this.#store.reload(record);
    if (now === undefined) throw sandboxNotFound(record.id);
    return now;
  }
}

function deadlineIn(
  ttlSeconds: number | null | undefined,
  clock: Clock,
): Pick<MachineUpdate, "deadline_unix_ms"> {
  if (ttlSeconds === undefined) return {};
  return { deadline_unix_ms: ttlSeconds === null ? null : clock.now() + ttlSeconds * 1_000 };
}
