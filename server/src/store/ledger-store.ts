import { createHash } from "node:crypto";
import type { Kysely, Transaction } from "kysely";
import { systemClock, type Clock } from "@torpor/base";
import type { LedgerEntry, LedgerHead, LedgerLine, ShownLedgerEntry } from "@torpor/protocol";
import type { OperatorScope, TenantScope } from "../auth/tenant-scope.ts";
import { KeptQueries } from "./kept-queries.ts";
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
  /** Where the chain ended when this server last wrote to it. A guess: another may have, or what was written be undone. */
  #lastHead: ChainHead | undefined;
  readonly #queries = new KeptQueries();

  constructor(database: Database, clock: Clock = systemClock) {
    this.#db = database.db;
    this.#clock = clock;
  }

  async append(transaction: Transaction<Tables>, drafts: readonly LedgerDraft[]): Promise<void> {
    const now = this.#clock.now();
    this.#lastHead = await appendToLedger(transaction, drafts, now, this.#queries, this.#lastHead);
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

/** Where the chain ends. */
interface ChainHead {
  seq: number;
  hash: string;
}

/**
 * Adds entries to the chain, in order; durable when `transaction` is. Whoever moves the head has its row until then: on
 * PostgreSQL other servers wait for it, on SQLite this is the one writer.
 *
 * @param guess where the chain may end; one that is wrong costs two statements more
 * @returns where it ends now
 */
export async function appendToLedger(
  transaction: Kysely<Tables>,
  drafts: readonly LedgerDraft[],
  now: number,
  queries: KeptQueries,
  guess?: ChainHead,
): Promise<ChainHead | undefined> {
  if (drafts.length === 0) return guess;
  const at = new Date(now).toISOString();
  let rows = guess === undefined ? [] : chained(drafts, guess, at);
  if (guess === undefined || !(await moveHead(transaction, queries, guess, headOf(rows, guess)))) {
    // The row first, by a change that changes nothing.
    const head = await transaction
      .updateTable("ledger_head")
      .set((row) => ({ seq: row.ref("seq") }))
      .returning(["seq", "hash"])
      .executeTakeFirstOrThrow();
    rows = chained(drafts, head, at);
    await moveHead(transaction, queries, head, headOf(rows, head));
  }
  const values = rows.flatMap((row) => Object.values(row));
  await queries.run(transaction, `insert ${rows.length}`, values, () =>
    transaction.insertInto("ledger").values(rows),
  );
  return rows.at(-1);
}

/** @returns whether the chain ended at `from` */
async function moveHead(
  transaction: Kysely<Tables>,
  queries: KeptQueries,
  from: ChainHead,
  to: ChainHead,
): Promise<boolean> {
  const parameters = [to.seq, to.hash, from.seq, from.hash];
  const { numAffectedRows } = await queries.run(transaction, "head", parameters, () =>
    transaction
      .updateTable("ledger_head")
      .set({ seq: to.seq, hash: to.hash })
      .where("seq", "=", from.seq)
      .where("hash", "=", from.hash),
  );
  return numAffectedRows === 1n;
}

function headOf(rows: readonly ChainHead[], before: ChainHead): ChainHead {
  return rows.at(-1) ?? before;
}

/** The entries' rows, each with the hash of the one before it. */
function chained(drafts: readonly LedgerDraft[], head: ChainHead, at: string): LedgerLine[] {
  let { seq, hash: prev } = head;
  return drafts.map((draft) => {
    seq += 1;
    const entry = JSON.stringify({ v: 1, seq, prev, at, ...draft } satisfies LedgerEntry);
    prev = sha256(entry);
    const { account, tenant, sandbox_id } = draft;
    return { seq, hash: prev, account, tenant, sandbox_id, entry };
  });
}

/** Of a text's UTF-8 bytes, in hexadecimal. */
export function sha256(text: string): string {
  return createHash("sha256").update(text, "utf8").digest("hex");
}
