import { EventEmitter } from "node:events";
import { setTimeout as delay } from "node:timers/promises";
import type { HostEvent, HostEvents, Machine } from "@torpor/protocol";
import type { Journal } from "../journal.ts";

/** How long events are gathered before a waiting reader gets them. */
const GATHER_MS = 20;

/** Events of this host's machines: kept in the journal, read by long poll. */
export class EventFeed {
  readonly #journal: Journal;
  readonly #added = new EventEmitter();

  constructor(journal: Journal) {
    this.#journal = journal;
    this.#added.setMaxListeners(0);
  }

  add(type: HostEvent["type"], machine: Machine, atUnixMs: number): void {
    this.#journal.addEvent({ type, machine_id: machine.id, at: new Date(atUnixMs).toISOString(), machine });
    this.#added.emit("added");
  }

  /**
   * Events after `seq`; waits up to `waitMs` for one when there is none, and a moment longer for what comes with it: a
   * create answers its caller before its event takes the server's time.
   */
  async after(seq: number, waitMs: number, signal: AbortSignal): Promise<HostEvents> {
    let events = this.#journal.eventsAfter(seq);
    if (events.length === 0 && waitMs > 0 && !signal.aborted) {
      await new Promise<void>((resolve) => {
        const done = (): void => {
          clearTimeout(timer);
          this.#added.off("added", done);
          signal.removeEventListener("abort", done);
          resolve();
        };
        const timer = setTimeout(done, waitMs);
        this.#added.once("added", done);
        signal.addEventListener("abort", done, { once: true });
      });
      if (!signal.aborted) await delay(GATHER_MS);
      events = this.#journal.eventsAfter(seq);
    }
    return { events, last_seq: events.at(-1)?.seq ?? Math.max(seq, this.#journal.lastEventSeq()) };
  }
}
