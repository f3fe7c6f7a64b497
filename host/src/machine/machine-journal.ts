import type { Clock, Log } from "@torpor/base";
import type { BrokenEntry, Journal, MachineEntry } from "../journal.ts";
import type { EventFeed } from "./event-feed.ts";
import { toMachine } from "./machine-record.ts";
import { noteMove } from "./meter.ts";

/** From an end to the moment at which nothing of its environment is left in the journal's log, at most. */
const SETTLE_AFTER_MS = 2_000;

/**
 * The journal as machines write it. An end is not put off because the journal cannot be written, as on a full disk: what
 * has ended is kept here until it can.
 */
export class MachineJournal {
  readonly #journal: Journal;
  readonly #feed: EventFeed;
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #unwritten = new Map<string, MachineEntry>();
  #settling: (() => void) | undefined;
  #isOpen = true;
  /** Living machines whose latest word could not be written. */
  readonly #behind = new Map<string, MachineEntry>();

  constructor(journal: Journal, feed: EventFeed, clock: Clock, log: Log) {
    this.#journal = journal;
    this.#feed = feed;
    this.#clock = clock;
    this.#log = log;
  }

  /** Machines that have not ended, as an earlier host process left them. */
  living(): { entries: MachineEntry[]; broken: BrokenEntry[] } {
    return this.#journal.living();
  }

  /** A machine that ended within the last 7 days. */
  ended(id: string): MachineEntry | undefined {
    return this.#unwritten.get(id) ?? this.#journal.get(id);
  }

  /** See {@link Journal.nextTurn}. */
  nextTurn(): number {
    return this.#journal.nextTurn();
  }

  /** Gives up a record that cannot be read. */
  remove(id: string): void {
    this.#journal.remove(id);
  }

  /** Durable against `kill -9` when this returns. @throws when it cannot be written */
  commit(entry: MachineEntry): void {
    const { meter } = entry;
    noteMove(entry, this.#clock.now());
    try {
      this.#journal.put(entry);
    } catch (error) {
      entry.meter = meter;
      throw error;
    }
    this.#behind.delete(entry.id);
  }

  /** Intent on the way to an end, or back from a failure: written now, or by a later {@link MachineJournal.catchUp}. */
  note(entry: MachineEntry): void {
    try {
      this.commit(entry);
    } catch (error) {
      this.#behind.set(entry.id, entry);
      this.#log.error({
        op: "machine.write",
        outcome: "failed",
        sandboxId: entry.id,
        state: entry.state,
        err: error,
      });
    }
  }

  /** The machine has ended: written and told of, now or by a later {@link MachineJournal.catchUp}. */
  end(entry: MachineEntry): void {
    this.#behind.delete(entry.id);
    noteMove(entry, this.#clock.now());
    this.#unwritten.set(entry.id, entry);
    this.catchUp();
  }

  /** The log still holds what the machine was given; emptied once for many ends, since that waits for the disk. */
  #settleSoon(): void {
    this.#settling ??= this.#clock.after(SETTLE_AFTER_MS, () => {
      this.#settling = undefined;
      try {
        this.#journal.settle();
      } catch (error) {
        this.#log.warn({ op: "journal.settle", outcome: "later", err: error });
        if (this.#isOpen) this.#settleSoon();
      }
    });
  }

  /** Stops what it does by itself; the journal may be closed then. */
  letGo(): void {
    this.#isOpen = false;
    this.#settling?.();
  }

  /** Writes what could not be written before. */
  catchUp(): void {
    for (const entry of this.#behind.values()) this.note(entry);
    for (const entry of this.#unwritten.values()) {
      try {
        this.#journal.put(entry);
        this.#feed.add("ended", toMachine(entry), entry.endedAt ?? this.#clock.now());
        this.#unwritten.delete(entry.id);
        this.#settleSoon();
      } catch (error) {
        this.#log.error(
          { op: "machine.write", outcome: "failed", sandboxId: entry.id, err: error },
          "will be tried again by the watch",
        );
      }
    }
  }
}
