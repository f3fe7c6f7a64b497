import type { Clock, Log } from "@torpor/base";
import {
  CodedError,
  type CreateSandboxRequest,
  type EndReason,
  isEnding,
  type Machine,
  newSandboxId,
  tenantSchema,
} from "@torpor/protocol";
import type { TenantScope } from "../auth/tenant-scope.ts";
import type { PlacedHost, Placement } from "../host/placement.ts";
import type { SandboxRecord } from "../store/sandbox-record.ts";
import type { SandboxStore } from "../store/sandbox-store.ts";
import { sandboxEnded, sandboxNotFound } from "./sandbox-errors.ts";

export interface SandboxesOptions {
  store: SandboxStore;
  placement: Placement;
  clock: Clock;
  log: Log;
}

export interface CreateOptions {
  /** Default: a new random one. */
  id?: string;
  /** Asked once the sandbox is usable: true when nobody is left to learn its id, so that it is destroyed again. */
  isAbandoned?: () => boolean;
}

/**
 * Makes and ends sandboxes: the record's states on one side, the host's machines on the other.
 *
 * Intent is committed before the host is asked and the result after, so a crash in between leaves a record in
 * `creating` or `destroying`, which {@link settle} finishes or undoes.
 */
export class Sandboxes {
  readonly #store: SandboxStore;
  readonly #placement: Placement;
  readonly #clock: Clock;
  readonly #log: Log;
  /** Creates under way in this process: theirs to finish, whatever their record looks like meanwhile. */
  readonly #creating = new Set<string>();
  readonly #destroying = new Map<string, Promise<SandboxRecord>>();

  constructor(options: SandboxesOptions) {
    this.#store = options.store;
    this.#placement = options.placement;
    this.#clock = options.clock;
    this.#log = options.log;
  }

  /** Whether this process is making that sandbox just now. */
  isCreating(id: string): boolean {
    return this.#creating.has(id);
  }

  /** Makes a sandbox and resolves when it is usable. @throws CodedError what the host refused, after undoing it. */
  async create(
    scope: TenantScope,
    request: CreateSandboxRequest,
    options: CreateOptions = {},
  ): Promise<SandboxRecord> {
    const tenant = tenantOf(scope, request);
    const host = await this.#placement.choose({
      cpu: request.cpu,
      memoryMb: request.memory_mb,
      diskMb: request.disk_mb,
    });
    const id = options.id ?? newSandboxId();
    this.#creating.add(id);
    try {
      const createdAt = this.#clock.now();
      const record = await this.#store.insert(scope, {
        id,
        tenant,
        name: request.name ?? null,
        template: request.template,
        metadata: request.metadata,
        cpu: request.cpu,
        memoryMb: request.memory_mb,
        diskMb: request.disk_mb,
        network: request.network,
        host: host.hostId,
        createdAt,
        expiresAt: createdAt + request.ttl_seconds * 1_000,
      });
      return await this.#make(record, host, request, options.isAbandoned);
    } finally {
      this.#creating.delete(id);
    }
  }

  async #make(
    record: SandboxRecord,
    host: PlacedHost,
    request: CreateSandboxRequest,
    isAbandoned?: () => boolean,
  ): Promise<SandboxRecord> {
    let machine: Machine;
    try {
      machine = await host.client.putMachine(record.id, {
        generation: record.generation,
        template: record.template,
        tenant: record.tenant,
        cpu: record.cpu,
        memory_mb: record.memoryMb,
        disk_mb: record.diskMb,
        network: record.network,
        env: request.env,
        deadline_unix_ms: record.expiresAt,
        on_expire: record.onExpire,
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
      await host.client.deleteMachine(record.id, "user");
      throw sandboxEnded(running);
    }
    if (isAbandoned?.() === true) {
      this.#log.info({
        op: "sandbox.create",
        outcome: "abandoned",
        sandboxId: record.id,
        tenant: record.tenant,
      });
      return await this.destroy(running, "abandoned");
    }
    return running;
  }

  /** Records that the machine of a sandbox in `creating` is usable. @returns undefined when the record has moved on. */
  adopt(record: SandboxRecord, machine: Machine): Promise<SandboxRecord | undefined> {
    return this.#store.advance(record, "running", {
      driver: machine.driver,
      attestation: machine.attestation,
      startedAt: machine.started_at === null ? this.#clock.now() : Date.parse(machine.started_at),
      expiresAt: machine.deadline_unix_ms,
    });
  }

  async #undoCreate(record: SandboxRecord, cause: unknown): Promise<void> {
    try {
      const destroying = await this.#store.advance(record, "destroying", { reason: "create_failed" });
      // A host that does not answer now will not answer the delete either: the next reconciliation finishes it.
      const unreachable = cause instanceof CodedError && cause.code === "host_unavailable";
      if (destroying !== undefined && !unreachable) await this.#finishDestroy(destroying);
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

  /** The caller's sandbox and its host, for work. @throws CodedError sandbox_not_found, sandbox_ended, conflict, host_unavailable */
  async requireRunning(scope: TenantScope, id: string): Promise<{ record: SandboxRecord; host: PlacedHost }> {
    const record = await this.require(scope, id);
    if (isEnding(record.state)) throw sandboxEnded(record);
    if (record.state !== "running") {
      throw new CodedError(
        "conflict",
        `sandbox ${id} is ${record.state}, so it cannot work yet; wait for the create to answer`,
        { details: { state: record.state } },
      );
    }
    return { record, host: await this.#placement.of(record.host) };
  }

  /**
   * Ends a sandbox from any state and resolves with its final record. Callers that come while it ends share one end.
   *
   * @throws CodedError host_unavailable when the host cannot be told: the record stays `destroying` and is finished
   *   when the host is back.
   */
  destroy(record: SandboxRecord, reason: EndReason): Promise<SandboxRecord> {
    if (record.state === "destroyed") return Promise.resolve(record);
    let ending = this.#destroying.get(record.id);
    if (ending === undefined) {
      ending = this.#destroy(record, reason).finally(() => this.#destroying.delete(record.id));
      this.#destroying.set(record.id, ending);
    }
    return ending;
  }

  async #destroy(record: SandboxRecord, reason: EndReason): Promise<SandboxRecord> {
    let current = record;
    while (current.state !== "destroying") {
      if (current.state === "destroyed") return current;
      const moved = await this.#store.advance(current, "destroying", { reason });
      current = moved ?? (await this.#reload(current));
    }
    return await this.#finishDestroy(current);
  }

  async #finishDestroy(record: SandboxRecord): Promise<SandboxRecord> {
    const host = await this.#placement.of(record.host);
    const machine = await host.client.deleteMachine(record.id, record.reason ?? "user");
    return await this.#recordEnd(record, machine);
  }

  async #recordEnd(record: SandboxRecord, machine: Machine | undefined): Promise<SandboxRecord> {
    const ownReason = record.reason === "create_failed" || record.reason === "abandoned";
    const reason = ownReason ? record.reason : (machine?.reason ?? record.reason ?? "user");
    const endedAt = machine?.ended_at == null ? this.#clock.now() : Date.parse(machine.ended_at);
    const ended = await this.#store.advance(record, "destroyed", {
      endedAt,
      ...(reason === null ? {} : { reason }),
    });
    return ended ?? (await this.#reload(record));
  }

  /** Records what the host says: the machine has ended. From any state; a record that has ended already stays as it is. */
  async noteEnded(record: SandboxRecord, machine: Machine): Promise<SandboxRecord> {
    return await this.noteGone(record, machine.reason ?? "runtime_crashed", machine);
  }

  /** Records the end of a sandbox whose machine is no more, with or without the host's last word on it. */
  async noteGone(record: SandboxRecord, reason: EndReason, machine?: Machine): Promise<SandboxRecord> {
    let current = record;
    while (current.state !== "destroyed") {
      if (current.state === "destroying") return await this.#recordEnd(current, machine);
      const moved = await this.#store.advance(current, "destroying", { reason });
      current = moved ?? (await this.#reload(current));
    }
    return current;
  }

  /**
   * Moves the deadline, counted from now. The host's journal is written first, since it enforces; a crash before the
   * record follows is mended by the next reconciliation.
   */
  async setTtl(scope: TenantScope, id: string, ttlSeconds: number): Promise<SandboxRecord> {
    const { record, host } = await this.requireRunning(scope, id);
    const deadline = this.#clock.now() + ttlSeconds * 1_000;
    const machine = await host.client.updateMachine(id, { deadline_unix_ms: deadline });
    const updated = await this.#store.setDeadline(record, machine.deadline_unix_ms);
    if (updated === undefined) throw sandboxEnded(await this.#reload(record));
    return updated;
  }

  async #reload(record: SandboxRecord): Promise<SandboxRecord> {
    const now = await this.#store.reload(record);
    if (now === undefined) throw sandboxNotFound(record.id);
    return now;
  }
}

/** Tenant of a create: the body's, else `metadata.tenant_id`, else the account. A tenant-bound key forces its own. */
function tenantOf(scope: TenantScope, request: CreateSandboxRequest): string {
  const fromMetadata = request.metadata["tenant_id"];
  const named = request.tenant ?? fromMetadata;
  if (request.tenant === undefined && fromMetadata !== undefined) {
    const checked = tenantSchema.safeParse(fromMetadata);
    if (!checked.success) {
      const message = checked.error.issues[0]?.message ?? "is not a tenant name";
      throw new CodedError("invalid_request", `metadata.tenant_id ${message}`, {
        details: { issues: [{ path: "metadata.tenant_id", message }] },
      });
    }
  }
  if (scope.tenant === null) return named ?? scope.account;
  if (named !== undefined && named !== scope.tenant) {
    throw new CodedError(
      "permission_denied",
      `this API key is bound to tenant ${scope.tenant}, so it cannot create a sandbox of tenant ${named}; leave the tenant out or use a key of that tenant`,
    );
  }
  return scope.tenant;
}
