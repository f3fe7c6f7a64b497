import type { CallOptions } from "./call-options.ts";
import { downloadStream } from "./download-stream.ts";
import { decodeNdjson, type NdjsonLine } from "./ndjson.ts";
import { PagedList } from "./sandbox-list.ts";
import type { Transport } from "./transport.ts";
import type { LedgerCheckpointWire, LedgerEntryWire, PageWire } from "./wire.ts";

/** What can be bound to a tenant. */
export interface LedgerResource {
  kind: "sandbox" | "machine" | "address" | "snapshot" | "image";
  id: string;
  /** Of a machine: counts the machines of its sandbox from 1. */
  number?: number | undefined;
  /** Of a machine: `pool` (a pristine one that waited), `shell`, `cold`, `snapshot`, `image`. */
  source?: string | undefined;
  /** Of an address: its host's count of all it gives and takes back, at that moment. */
  turn?: number | undefined;
  /** Of a machine: the snapshot or image whose memory went into it. */
  from?: string | undefined;
}

/** One entry of the ledger: what was bound to a tenant, given back, or refused. */
export interface LedgerEntry {
  /** Its place in the chain. */
  seq: number;
  at: Date;
  action: "bind" | "release" | "deny";
  account: string;
  tenant: string | null;
  sandboxId: string | null;
  generation: number | null;
  host: string | null;
  /** Id of an API key, or `system:` and what of Torpor did it. */
  actor: string;
  reason: string;
  resources: LedgerResource[];
  /** Of a denial: what was asked, and how often since the one before. */
  route: string | null;
  count: number | null;
  hash: string;
  /** Hash of the entry before it, which may be another tenant's. */
  prev: string;
}

/** Which entries to list; all conditions must hold. */
export interface LedgerFilter extends CallOptions {
  sandboxId?: string | undefined;
  tenant?: string | undefined;
  /** Entries per request; default 50, at most 200. */
  pageSize?: number | undefined;
}

/** A signed statement of how far the ledger went, as the API and `torpor ledger verify` have it. */
export type LedgerCheckpoint = LedgerCheckpointWire;

/** `client.ledger`: who held what. */
export class Ledger {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Entries about one's own tenants, the newest first, fetched page by page as they are iterated. */
  list({ sandboxId, tenant, pageSize, signal, timeoutMs }: LedgerFilter = {}): PagedList<LedgerEntry> {
    return new PagedList(async (cursor) => {
      const page = await this.#transport.json<PageWire<LedgerEntryWire>>({
        method: "GET",
        path: "/v1/ledger",
        query: { sandbox_id: sandboxId, tenant, limit: pageSize, cursor },
        signal,
        timeoutMs,
      });
      return { items: page.items.map(ledgerEntryFromWire), nextCursor: page.next_cursor };
    });
  }

  /** How far the ledger goes, signed. Needs a key with the scope `operator`. */
  checkpoint({ signal, timeoutMs }: CallOptions = {}): Promise<LedgerCheckpoint> {
    return this.#transport.json({ method: "GET", path: "/v1/ledger/checkpoint", signal, timeoutMs });
  }

  /**
   * The whole ledger, of all accounts, as it is to be kept and verified: one JSON object a line, the first of which says
   * how far it goes. Needs a key with the scope `operator`.
   */
  async *export({ signal, timeoutMs }: CallOptions = {}): AsyncGenerator<NdjsonLine, void, undefined> {
    const path = "/v1/ledger/export";
    const open = await this.#transport.open({
      method: "GET",
      path,
      accept: "application/x-ndjson",
      signal,
      timeoutMs,
    });
    try {
      yield* decodeNdjson(downloadStream(open, "exporting the ledger", true));
    } finally {
      open.deadline.abort(new DOMException("the export was left", "AbortError"));
    }
  }
}

function ledgerEntryFromWire(wire: LedgerEntryWire): LedgerEntry {
  return {
    seq: wire.seq,
    at: new Date(wire.at),
    action: wire.action,
    account: wire.account,
    tenant: wire.tenant,
    sandboxId: wire.sandbox_id,
    generation: wire.generation,
    host: wire.host,
    actor: wire.actor,
    reason: wire.reason,
    resources: wire.resources,
    route: wire.route ?? null,
    count: wire.count ?? null,
    hash: wire.hash,
    prev: wire.prev,
  };
}
