import type { Clock, Log } from "@torpor/base";
import { newSnapshotId, type SnapshotDefaults } from "@torpor/protocol";
import type { ServerScope, TenantScope } from "../auth/tenant-scope.ts";
import type { Placement } from "../host/placement.ts";
import type { Sandboxes } from "../sandbox/sandboxes.ts";
import type { SandboxRecord } from "../store/sandbox-record.ts";
import type { SnapshotRecord, SnapshotStore } from "../store/snapshot-store.ts";

export interface SnapshotsOptions {
  store: SnapshotStore;
  sandboxes: Sandboxes;
  placement: Placement;
  clock: Clock;
  log: Log;
}

export interface TakeOptions {
  kind: SnapshotRecord["kind"];
  /** Children of a fork. Default 0. */
  copies?: number;
  name: string | null;
  retentionSeconds: number | null;
  /** What commands in sandboxes made from it start with. Default: as in the sandbox itself. */
  defaults?: SnapshotDefaults;
}

/** One under way this long is left by a server that died: the longest fork of 100 is far shorter. */
const ABANDONED_AFTER_MS = 30 * 60_000;
const SWEEP_ROWS = 200;

/**
 * Takes and removes snapshots: records here, bytes on the host. Intent is committed before the host is asked, so that
 * whatever a crash leaves in between is found by the sweep.
 */
export class Snapshots {
  readonly #options: SnapshotsOptions;

  constructor(options: SnapshotsOptions) {
    this.#options = options;
  }

  /** Takes one of a sandbox, woken if it sleeps; it goes on. @throws CodedError what the host refused, after undoing it */
  async take(
    scope: TenantScope,
    sandboxId: string,
    { kind, copies = 0, name, retentionSeconds, defaults }: TakeOptions,
  ): Promise<{ snapshot: SnapshotRecord; sandbox: SandboxRecord }> {
    const { store, sandboxes, clock } = this.#options;
    const { record: sandbox, host } = await sandboxes.requireRunning(scope, sandboxId);
    const createdAt = clock.now();
    const intent = await store.insert(scope, {
      id: newSnapshotId(),
      account: sandbox.account,
      tenant: sandbox.tenant,
      sandbox_id: sandbox.id,
      host: sandbox.host,
      name,
      kind,
      template: sandbox.template,
      cpu: sandbox.cpu,
      memory_mb: sandbox.memoryMb,
      disk_mb: sandbox.diskMb,
      network: sandbox.network,
      size_bytes: 0,
      generation: sandbox.generation,
      retention_seconds: retentionSeconds,
      created_at: createdAt,
      expires_at: retentionSeconds === null ? null : createdAt + retentionSeconds * 1_000,
    });
    try {
      const made = await host.client.takeSnapshot(sandbox, {
        id: intent.id,
        name,
        copies,
        ...(defaults === undefined ? {} : { defaults }),
      });
      const snapshot = await store.finish(intent, {
        sizeBytes: made.size_bytes,
        generation: made.generation,
      });
      if (snapshot === undefined) throw new Error(`snapshot ${intent.id} was swept while it was being taken`);
      return { snapshot, sandbox };
    } catch (error) {
      await this.#removeOrLeave(intent, scope.keyId);
      throw error;
    }
  }

  /** Removes one; `actor` asked for it. @throws CodedError host_unavailable: nobody finds it any more, and the sweep removes its bytes later */
  async remove(snapshot: SnapshotRecord, actor = "system:sweep"): Promise<void> {
    const { store, placement } = this.#options;
    await store.markDeleting(snapshot);
    const host = await placement.of(snapshot.host);
    await host.client.deleteSnapshot(snapshot);
    await store.remove(snapshot, actor);
  }

  /** Removes those past their retention and what crashes left. @returns how many. */
  async sweep(scope: ServerScope): Promise<number> {
    const { store, clock } = this.#options;
    const now = clock.now();
    const leftovers = await store.leftovers(scope, now, now - ABANDONED_AFTER_MS, SWEEP_ROWS);
    let removed = 0;
    for (const snapshot of leftovers) if (await this.#removeOrLeave(snapshot)) removed += 1;
    return removed;
  }

  /** Removes one whose end nobody waits for: a failure leaves it to the next sweep. */
  async #removeOrLeave(snapshot: SnapshotRecord, actor?: string): Promise<boolean> {
    try {
      await this.remove(snapshot, actor);
      return true;
    } catch (error) {
      this.#options.log.warn({
        op: "snapshot.remove",
        outcome: "left to the next sweep",
        snapshotId: snapshot.id,
        tenant: snapshot.tenant,
        err: error,
      });
      return false;
    }
  }

  /** Takes one for as long as `use` runs, which makes so many copies. */
  async during<T>(
    scope: TenantScope,
    sandboxId: string,
    copies: number,
    use: (snapshot: SnapshotRecord, sandbox: SandboxRecord) => Promise<T>,
  ): Promise<T> {
    const taken = await this.take(scope, sandboxId, {
      kind: "fork",
      copies,
      name: null,
      retentionSeconds: null,
    });
    try {
      return await use(taken.snapshot, taken.sandbox);
    } finally {
      await this.#removeOrLeave(taken.snapshot, scope.keyId);
    }
  }
}
