import { setMaxListeners } from "node:events";
import { mkdtempSync, rmSync, statSync, truncateSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { HostEvent } from "@torpor/protocol";
import Database from "better-sqlite3";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { Journal } from "../src/journal.ts";
import { EventFeed } from "../src/machine/event-feed.ts";
import { toMachine } from "../src/machine/machine-record.ts";
import { journalEntry } from "./fakes/journal-entry.ts";

const DAY_MS = 24 * 3600 * 1000;

let directory: string;
let path: string;
let journal: Journal;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "torpor-test-journal-"));
  path = join(directory, "journal.sqlite");
  journal = new Journal(path);
});
afterEach(() => {
  journal.close();
  rmSync(directory, { recursive: true });
});

function reopen(): void {
  journal.close();
  journal = new Journal(path);
}

function event(id: string): Omit<HostEvent, "seq"> {
  return {
    type: "started",
    machine_id: id,
    at: new Date(0).toISOString(),
    machine: toMachine(journalEntry({ id })),
  };
}

describe("the journal", () => {
  test("gives back after a reopen what was put, and the last state of it", () => {
    const entry = journalEntry({ id: "one", state: "creating", slot: null });
    journal.put(entry);
    const later = { ...entry, state: "running" as const, slot: 7, deadlineUnixMs: 123 };
    journal.put(later);
    reopen();
    expect(journal.get("one")).toEqual(later);
    expect(journal.get("two")).toBeUndefined();
  });

  test("is whole for a second reader without a close, as after kill -9", () => {
    journal.put(journalEntry({ id: "one" }));
    const second = new Journal(path);
    expect(second.living().entries.map(({ id }) => id)).toEqual(["one"]);
    second.close();
  });

  test("lists as living what has not ended", () => {
    for (const state of ["creating", "running", "ending", "ended"] as const)
      journal.put(journalEntry({ id: state, state, endedAt: state === "ended" ? 1 : null }));
    expect(
      journal
        .living()
        .entries.map(({ id }) => id)
        .sort(),
    ).toEqual(["creating", "ending", "running"]);
  });

  test("is bounded: the newest events, at most so many ended machines, and a log that is cut again", () => {
    const insert = new Database(path);
    insert.exec(`
      WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100500)
      INSERT INTO machines (id, state, slot, ended_at, body) SELECT 'm' || i, 'ended', -1, i, '{}' FROM n;
      WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30000)
      INSERT INTO events (body) SELECT '{}' FROM n;
    `);
    journal.put(journalEntry({ id: "living" }));
    journal.prune(100_600);
    const count = (table: string): unknown => insert.prepare(`SELECT count(*) FROM ${table}`).pluck().get();
    expect([count("machines"), count("events")]).toEqual([100_001, 10_000]);
    expect(insert.prepare("SELECT min(ended_at) FROM machines WHERE state = 'ended'").pluck().get()).toBe(
      501,
    );
    insert.close();
    expect(statSync(`${path}-wal`).size).toBeLessThanOrEqual(17 * 1024 * 1024);
  });

  test("forgets what ended more than 7 days ago, and never what lives", () => {
    const now = 100 * DAY_MS;
    journal.put(journalEntry({ id: "old", state: "ended", endedAt: now - 7 * DAY_MS - 1 }));
    journal.put(journalEntry({ id: "kept", state: "ended", endedAt: now - 7 * DAY_MS }));
    journal.put(journalEntry({ id: "alive", createdAt: 0 }));
    journal.prune(now);
    expect(["old", "kept", "alive"].map((id) => journal.get(id)?.id)).toEqual([undefined, "kept", "alive"]);
  });

  test("keeps the newest 10,000 events, and their numbers go on", () => {
    for (let index = 1; index <= 10_003; index++) journal.addEvent(event(`m${index}`));
    journal.prune(0);
    expect(journal.eventsAfter(0)[0]).toMatchObject({ seq: 4, machine_id: "m4" });
    reopen();
    expect(journal.addEvent(event("next")).seq).toBe(10_004);
  });

  test("answers at most 500 events at once, oldest first, from where it was asked", () => {
    for (let index = 1; index <= 510; index++) journal.addEvent(event(`m${index}`));
    expect(journal.eventsAfter(0).map(({ seq }) => seq)).toEqual(
      Array.from({ length: 500 }, (_, index) => index + 1),
    );
    expect(journal.eventsAfter(505).map(({ seq }) => seq)).toEqual([506, 507, 508, 509, 510]);
    expect([journal.eventsAfter(510), journal.lastEventSeq()]).toEqual([[], 510]);
  });

  test("never gives a number twice, also after all events were pruned away", () => {
    journal.addEvent(event("one"));
    journal.prune(0);
    reopen();
    expect(journal.addEvent(event("two")).seq).toBe(2);
  });

  test("keeps facts, replaces them, and knows null from absent", () => {
    expect(journal.fact("router")).toBeUndefined();
    journal.setFact("router", { block: 3 });
    journal.setFact("router", { block: 4 });
    reopen();
    expect(journal.fact("router")).toEqual({ block: 4 });
    journal.setFact("router", null);
    expect(journal.fact("router")).toBeNull();
  });

  test("refuses to open a file that is damaged, instead of taking it for an empty one", () => {
    for (let index = 0; index < 200; index++) journal.put(journalEntry({ id: `m${index}` }));
    journal.close();
    truncateSync(path, 10_000);
    expect(() => {
      journal = new Journal(path);
      journal.living();
    }).toThrow(/malformed|corrupt|disk image/);
    journal = new Journal(join(directory, "another"));
  });
});

describe("the event feed", () => {
  const never = new AbortController().signal;
  setMaxListeners(100, never);
  const machine = toMachine(journalEntry({ id: "one" }));

  test("answers what is there at once", async () => {
    const feed = new EventFeed(journal);
    feed.add("started", machine, 1000);
    const { events, last_seq } = await feed.after(0, 60_000, never);
    expect(events).toEqual([
      { seq: 1, type: "started", machine_id: "one", at: "1970-01-01T00:00:01.000Z", machine },
    ]);
    expect(last_seq).toBe(1);
  });

  test("wakes every waiting reader when something happens", async () => {
    const feed = new EventFeed(journal);
    const readers = Array.from({ length: 50 }, () => feed.after(0, 60_000, never));
    feed.add("ended", machine, 1000);
    for (const { events } of await Promise.all(readers))
      expect(events.map(({ type }) => type)).toEqual(["ended"]);
  });

  test("answers nothing, with the place to go on from, when nothing happens in time", async () => {
    const feed = new EventFeed(journal);
    feed.add("started", machine, 1000);
    expect(await feed.after(1, 10, never)).toEqual({ events: [], last_seq: 1 });
    expect(await feed.after(1, 0, never)).toEqual({ events: [], last_seq: 1 });
  });

  test("lets go of a reader that leaves", async () => {
    const feed = new EventFeed(journal);
    const leaving = new AbortController();
    const read = feed.after(0, 60_000, leaving.signal);
    leaving.abort();
    expect((await read).events).toEqual([]);
    expect((await feed.after(0, 60_000, leaving.signal)).events).toEqual([]);
  });
});
