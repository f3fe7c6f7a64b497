import type { Clock, Log } from "@torpor/base";
import type { DenialReason, LedgerResource } from "@torpor/protocol";
import type { LedgerDraft, LedgerStore } from "../store/ledger-store.ts";
import type { OwnedKind, Owner, OwnerStore } from "../store/owner-store.ts";

/** Whose key it was. */
export interface DeniedKey extends Owner {
  id: string;
}

export interface DenialLogOptions {
  ledger: Pick<LedgerStore, "add">;
  owners: Pick<OwnerStore, "ownersOf">;
  clock: Clock;
  log: Log;
}

/** What a request named that was not the caller's, as far as the caller can know. */
interface Missed {
  key: DeniedKey;
  route: string;
  kind: OwnedKind;
  id: string;
  count: number;
}

interface Counted {
  draft: LedgerDraft;
  /** Not written yet. */
  count: number;
  /** On the monotonic clock; undefined before the first. */
  writtenAt: number | undefined;
}

/** A first denial is written this soon; it costs a commit of its own. */
const WRITE_AFTER_MS = 1_000;
/** Repeats of one are counted, and written once in this time. */
const REPEATS_EVERY_MS = 60_000;
/** Different denials of one key that are told apart within that time; what comes beyond is counted together. */
const TOLD_APART = 32;
/** Ids of what was not found that wait to be looked up; more within a second are not. */
const MAX_MISSED = 2_000;

/**
 * Requests that were refused, on their way to the ledger: a live, revoked or expired key asked for what it may not. Nobody
 * fills the disk with them: repeats of one key on one route are counted and written once a minute, so that a key costs at
 * most {@link TOLD_APART} + 1 entries a minute, and one that is unknown costs none. A `kill -9` loses the last second's, and
 * the last minute's repeats.
 *
 * What belongs to another is entered under its owner, who may see it; the caller, who must not learn that it exists, does not.
 */
export class DenialLog {
  readonly #options: DenialLogOptions;
  readonly #counted = new Map<string, Counted>();
  readonly #missed = new Map<string, Missed>();
  /** By key: how many of its denials are told apart now. */
  readonly #told = new Map<string, number>();
  #cancel: (() => void) | undefined;
  #flushing: Promise<void> = Promise.resolve();
  #closed = false;

  constructor(options: DenialLogOptions) {
    this.#options = options;
  }

  /** A key that was refused for what it is. */
  note(key: DeniedKey, route: string, reason: DenialReason): void {
    this.#count(key, key, route, reason, []);
    this.#schedule();
  }

  /** Something was named that is not the caller's: a denial if it is somebody else's, nothing if it does not exist. */
  noteMissed(key: DeniedKey, route: string, kind: OwnedKind, id: string): void {
    const name = JSON.stringify([key.id, route, kind, id]);
    const missed = this.#missed.get(name);
    if (missed !== undefined) missed.count += 1;
    else if (this.#missed.size < MAX_MISSED) this.#missed.set(name, { key, route, kind, id, count: 1 });
    this.#schedule();
  }

  /** Writes what is due; with `all`, the repeats too. */
  flush(all = false): Promise<void> {
    this.#flushing = this.#flushing.then(() => this.#flush(all));
    return this.#flushing;
  }

  async close(): Promise<void> {
    this.#closed = true;
    this.#cancel?.();
    await this.flush(true);
  }

  #count(
    owner: Owner,
    key: DeniedKey,
    route: string,
    reason: DenialReason,
    resources: LedgerResource[],
    count = 1,
  ): void {
    const named = JSON.stringify([key.id, route, reason, resources]);
    const told = this.#told.get(key.id) ?? 0;
    const isApart = this.#counted.has(named) || told < TOLD_APART;
    const name = isApart ? named : JSON.stringify([key.id]);
    const counted = this.#counted.get(name);
    if (counted !== undefined) {
      counted.count += count;
      return;
    }
    if (isApart) this.#told.set(key.id, told + 1);
    const { account, tenant } = isApart ? owner : key;
    this.#counted.set(name, {
      draft: {
        action: "deny",
        account,
        tenant,
        sandbox_id: resources[0]?.kind === "sandbox" && isApart ? resources[0].id : null,
        generation: null,
        host: null,
        actor: key.id,
        reason,
        resources: isApart ? resources : [],
        route: isApart ? route : "(many)",
      },
      count,
      writtenAt: undefined,
    });
  }

  #schedule(): void {
    if (this.#closed) return;
    this.#cancel ??= this.#options.clock.after(WRITE_AFTER_MS, () => {
      this.#cancel = undefined;
      void this.flush().then(() => {
        if (this.#counted.size + this.#missed.size > 0) this.#schedule();
      });
    });
  }

  async #flush(all: boolean): Promise<void> {
    const { ledger, clock, log } = this.#options;
    try {
      await this.#lookUp();
      const now = clock.monotonic();
      const due = [...this.#counted.values()].filter(
        ({ count, writtenAt }) =>
          count > 0 && (all || writtenAt === undefined || now - writtenAt >= REPEATS_EVERY_MS),
      );
      const writing = due.map((counted) => ({ counted, count: counted.count }));
      if (writing.length > 0)
        await ledger.add(writing.map(({ counted, count }) => ({ ...counted.draft, count })));
      for (const { counted, count } of writing) {
        counted.count -= count;
        counted.writtenAt = now;
      }
      this.#forget(now);
    } catch (error) {
      // They stay and are tried again: a store that cannot be written must not stop requests from being refused.
      log.error({ op: "ledger.deny", outcome: "not written yet", err: error });
    }
  }

  /** Which of the ids that were missed are somebody else's. */
  async #lookUp(): Promise<void> {
    const missed = [...this.#missed.entries()];
    for (const kind of new Set(missed.map(([, one]) => one.kind))) {
      const ofKind = missed.filter(([, one]) => one.kind === kind);
      const ids = [...new Set(ofKind.map(([, one]) => one.id))];
      const owners = await this.#options.owners.ownersOf(kind, ids);
      for (const [name, { key, route, id, count }] of ofKind) {
        this.#missed.delete(name);
        const owner = owners.get(id);
        if (owner === undefined || isOwn(key, owner)) continue; // ended since, or a race with its end
        const resources: LedgerResource[] = kind === "sandbox" || kind === "snapshot" ? [{ kind, id }] : [];
        this.#count(owner, key, route, "foreign_id", resources, count);
      }
    }
  }

  #forget(now: number): void {
    for (const [name, { count, writtenAt, draft }] of this.#counted) {
      if (count > 0 || writtenAt === undefined || now - writtenAt < REPEATS_EVERY_MS) continue;
      this.#counted.delete(name);
      const told = (this.#told.get(draft.actor) ?? 0) - (draft.route === "(many)" ? 0 : 1);
      if (told > 0) this.#told.set(draft.actor, told);
      else this.#told.delete(draft.actor);
    }
  }
}

function isOwn(key: DeniedKey, { account, tenant }: Owner): boolean {
  return key.account === account && (key.tenant === null || key.tenant === tenant);
}
