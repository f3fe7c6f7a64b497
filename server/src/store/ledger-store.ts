import { createHash } from "node:crypto";
import type { Kysely, Transaction } from "kysely";
import { systemClock, type Clock } from "@torpor/base";
import type { LedgerEntry, LedgerHead, LedgerLine, ShownLedgerEntry } from "@torpor/protocol";
import type { OperatorScope, TenantScope } from "../auth/tenant-scope.ts";
import type { Database } from "./open-database.ts";
import type { Tables } from "./schema.ts";

/** An entry without its place in the chain. */
export type LedgerDraft = Omit<LedgerEntry, "v" | "seq" | "prev" | "at">;

/** Whoever changes a binding says so in the transaction of the change. */
export interface LedgerWriter {
  append(transaction: Transaction<Tables>, drafts: readonly LedgerDraft[]): Promise<void>;
}

export interface LedgerFilter {
  sandboxId?: string;
  tenant?: string;
  /** Entries below this number. */
  before?: number;
  limit: number;
}

/**
 * The chain of entries, only ever added to. Its head is a row: whoever appends holds that row until its transaction ends,
 * so that numbers have no gaps and several servers make one chain.
 */
export class LedgerStore implements LedgerWriter {
  readonly #db: Kysely<Tables>;
  readonly #clock: Clock;

  constructor(database: Database, clock: Clock = systemClock) {
    this.#db = database.db;
    this.#clock = clock;
  }

  append(transaction: Transaction<Tables>, drafts: readonly LedgerDraft[]): Promise<void> {
    return appendToLedger(transaction, drafts, this.#clock.now());
  }

  /** Entries that belong to no other change. */
  async add(drafts: readonly LedgerDraft[]): Promise<void> {
    await this.#db.transaction().execute((transaction) => this.append(transaction, drafts));
  }

  /** How far it goes. */
  async head(_operator: OperatorScope): Promise<LedgerHead> {
    const { ledger, seq, hash } = await this.#db
      .selectFrom("ledger_head")
      .selectAll()
      .executeTakeFirstOrThrow();
    return { ledger, seq, hash };
  }

  /** Entries about what is the caller's own, newest first. */
  async list(scope: TenantScope, filter: LedgerFilter): Promise<ShownLedgerEntry[]> {
    let query = this.#db.selectFrom("ledger").select(["hash", "entry"]).where("account", "=", scope.account);
    if (scope.tenant !== null) query = query.where("tenant", "=", scope.tenant);
    if (filter.tenant !== undefined) query = query.where("tenant", "=", filter.tenant);
    if (filter.sandboxId !== undefined) query = query.where("sandbox_id", "=", filter.sandboxId);
    if (filter.before !== undefined) query = query.where("seq", "<", filter.before);
    const rows = await query.orderBy("seq", "desc").limit(filter.limit).execute();
    return rows.map(({ hash, entry }) => ({ ...(JSON.parse(entry) as LedgerEntry), hash }));
  }

  /** Lines of the whole chain after `after` and up to `to`, in order. */
  async lines(
    _operator: OperatorScope,
    { after, to, limit }: { after: number; to: number; limit: number },
  ): Promise<LedgerLine[]> {
    return await this.#db
      .selectFrom("ledger")
      .select(["seq", "hash", "account", "tenant", "sandbox_id", "entry"])
      .where("seq", ">", after)
      .where("seq", "<=", to)
      .orderBy("seq")
      .limit(limit)
      .execute();
  }

  /** Rows beyond the head, of which there are none unless somebody put them there; at most 100. */
  async strays(_operator: OperatorScope): Promise<LedgerLine[]> {
    // One statement, so that what is appended meanwhile is on both sides or on none.
    return await this.#db
      .selectFrom("ledger")
      .select(["seq", "hash", "account", "tenant", "sandbox_id", "entry"])
      .where("seq", ">", (query) => query.selectFrom("ledger_head").select("seq"))
      .orderBy("seq")
      .limit(100)
      .execute();
  }
}

/** Adds entries to the chain, in order; durable when `transaction` is. */
export async function appendToLedger(
  transaction: Kysely<Tables>,
  drafts: readonly LedgerDraft[],
  now: number,
): Promise<void> {
  if (drafts.length === 0) return;
  // Taking the numbers takes the row: on PostgreSQL other servers wait here, on SQLite this is the one writer.
  const head = await transaction
    .updateTable("ledger_head")
    .set((row) => ({ seq: row("seq", "+", drafts.length) }))
    .returning(["seq", "hash"])
    .executeTakeFirstOrThrow();
  const at = new Date(now).toISOString();
  let prev = head.hash;
  let seq = head.seq - drafts.length;
  const rows = drafts.map((draft) => {
    seq += 1;
    const entry = JSON.stringify({ v: 1, seq, prev, at, ...draft } satisfies LedgerEntry);
    prev = sha256(entry);
    const { account, tenant, sandbox_id } = draft;
    return { seq, hash: prev, account, tenant, sandbox_id, entry };
  });
  await transaction.insertInto("ledger").values(rows).execute();
  await transaction.updateTable("ledger_head").set({ hash: prev }).execute();
}

/** Of a text's UTF-8 bytes, in hexadecimal. */
export function sha256(text: string): string {
  return createHash("sha256").update(text, "utf8").digest("hex");
}
