import type { CallOptions, KeyedCallOptions } from "./call-options.ts";
import { NotFoundError } from "./errors.ts";
import { pathSegment } from "./request-path.ts";
import { NOT_SENT, requestJson } from "./request-json.ts";
import { IMAGE_TIMEOUT_MS } from "./sandbox-lifecycle.ts";
import { PagedList } from "./sandbox-list.ts";
import type { Transport } from "./transport.ts";
import type { PageWire, SnapshotWire } from "./wire.ts";

/** Memory and files of one sandbox at one instant: create from it with `fromSnapshot`. */
export interface Snapshot {
  id: string;
  name: string | null;
  sandboxId: string;
  tenant: string;
  template: string;
  sizeBytes: number;
  /** Of the sandbox when it was taken. */
  generation: number;
  createdAt: Date;
  /** Deleted this long after it was taken; null for never. */
  retentionSeconds: number | null;
}

export interface SnapshotOptions extends KeyedCallOptions {
  /** For people; needs not be unique. */
  name?: string | undefined;
  retentionSeconds?: number | null | undefined;
}

/** Which snapshots to list; all conditions must hold. */
export interface SnapshotFilter extends CallOptions {
  sandboxId?: string | undefined;
  name?: string | undefined;
  tenant?: string | undefined;
  /** Snapshots per request; default 50, at most 200. */
  pageSize?: number | undefined;
}

export async function takeSnapshot(
  transport: Transport,
  root: string,
  options: SnapshotOptions,
): Promise<Snapshot> {
  const { signal, idempotencyKey, timeoutMs = IMAGE_TIMEOUT_MS } = options;
  const json = requestJson(options, NOT_SENT);
  const path = `${root}/snapshots`;
  const wire = await transport.json<SnapshotWire>({
    method: "POST",
    path,
    json,
    signal,
    timeoutMs,
    idempotencyKey,
  });
  return snapshotFromWire(wire);
}

/** `client.snapshots`. */
export class Snapshots {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Snapshots, the newest first, fetched page by page as they are iterated. */
  list({ sandboxId, name, tenant, pageSize, signal, timeoutMs }: SnapshotFilter = {}): PagedList<Snapshot> {
    return new PagedList(async (cursor) => {
      const query = { sandbox_id: sandboxId, name, tenant, limit: pageSize, cursor };
      const page = await this.#transport.json<PageWire<SnapshotWire>>({
        method: "GET",
        path: "/v1/snapshots",
        query,
        signal,
        timeoutMs,
      });
      return { items: page.items.map(snapshotFromWire), nextCursor: page.next_cursor };
    });
  }

  /** @throws NotFoundError `snapshot_not_found` */
  async get(id: string, { signal, timeoutMs }: CallOptions = {}): Promise<Snapshot> {
    const path = `/v1/snapshots/${pathSegment("id", id)}`;
    return snapshotFromWire(
      await this.#transport.json<SnapshotWire>({ method: "GET", path, signal, timeoutMs }),
    );
  }

  /** Returns false when there was none. Sandboxes made from it live on. */
  async delete(id: string, { signal, timeoutMs }: CallOptions = {}): Promise<boolean> {
    const path = `/v1/snapshots/${pathSegment("id", id)}`;
    try {
      await this.#transport.text({ method: "DELETE", path, signal, timeoutMs });
      return true;
    } catch (error) {
      if (error instanceof NotFoundError) return false;
      throw error;
    }
  }
}

function snapshotFromWire(wire: SnapshotWire): Snapshot {
  return {
    id: wire.id,
    name: wire.name,
    sandboxId: wire.sandbox_id,
    tenant: wire.tenant,
    template: wire.template,
    sizeBytes: wire.size_bytes,
    generation: wire.generation,
    createdAt: new Date(wire.created_at),
    retentionSeconds: wire.retention_seconds,
  };
}
