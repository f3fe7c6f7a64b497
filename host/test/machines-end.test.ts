import fc from "fast-check";
import { appendFileSync, mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Machine } from "@torpor/protocol";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { TEST_SPEC } from "./fakes/journal-entry.ts";
import { MachineBench, NOTHING } from "./fakes/machine-bench.ts";
import { until } from "./fakes/until.ts";

let bench: MachineBench;
beforeEach(async () => {
  bench = new MachineBench();
  await bench.open();
});
afterEach(() => bench.close());

function setDeadline(id: string, deadline: number | null): Machine {
  return bench.machines.update(id, { deadline_unix_ms: deadline });
}

function state(id: string): string | undefined {
  return bench.machines.get(id)?.state;
}

describe("ending a machine", () => {
  test("removes every trace and keeps the record with its reason", async () => {
    await bench.machines.create("one", TEST_SPEC);
    const ended = await bench.machines.end("one", "idle", "nobody used it");
    expect(ended).toMatchObject({ state: "ended", reason: "idle", message: "nobody used it" });
    expect(bench.inPlace).toEqual(NOTHING);
    expect(bench.machines.get("one")).toEqual(ended);
    expect(bench.machines.list()).toEqual([]);
    expect(bench.events).toEqual(["started", "ended: idle"]);
  });

  test("happens once: whoever asks meanwhile joins, whoever asks later reads the first reason", async () => {
    await bench.machines.create("one", TEST_SPEC);
    const answers = await Promise.all([
      bench.machines.end("one", "user"),
      bench.machines.end("one", "idle"),
      bench.machines.end("one", "shutdown"),
    ]);
    expect(new Set(answers.map(({ reason }) => reason))).toEqual(new Set(["user"]));
    expect((await bench.machines.end("one", "budget")).reason).toBe("user");
    expect(bench.driver.kills).toBe(1);
    expect(bench.events).toEqual(["started", "ended: user"]);
  });

  test("refuses one that never was", async () => {
    await expect(bench.machines.end("never", "user")).rejects.toMatchObject({ code: "sandbox_not_found" });
  });

  test("shuts the way in at once, saying why", async () => {
    await bench.machines.create("one", TEST_SPEC);
    const release = bench.driver.hold("kill");
    const end = bench.machines.end("one", "user");
    expect(() => bench.machines.reach("one")).toThrow(/has ended: user/);
    release();
    await end;
    expect(() => bench.machines.reach("one")).toThrow(/has ended: user/);
    expect(() => bench.machines.reach("never")).toThrow(/no machine never/);
  });

  test("that fails keeps the machine in sight, out of reach, and is tried again", async () => {
    await bench.machines.create("one", TEST_SPEC);
    bench.driver.fail("kill", 2);
    await expect(bench.machines.end("one", "user")).rejects.toMatchObject({ code: "internal" });
    expect(state("one")).toBe("ending");
    expect(() => bench.machines.reach("one")).toThrow(/has ended: user/);
    bench.machines.watch();
    await until(() => state("one") === "ended");
    expect(bench.machines.get("one")?.reason).toBe("user");
    expect(bench.inPlace).toEqual(NOTHING);
  });

  test("is not put off by a full disk, and is written when there is room again", async () => {
    await bench.machines.create("one", TEST_SPEC);
    bench.journal.full = true;
    expect((await bench.machines.end("one", "user")).state).toBe("ended");
    expect(bench.inPlace).toEqual(NOTHING);
    expect(bench.machines.get("one")).toMatchObject({ state: "ended", reason: "user" });
    expect(bench.journal.get("one")?.state).toBe("running");
    bench.journal.full = false;
    bench.machines.watch();
    await until(() => bench.journal.get("one")?.state === "ended");
    expect(bench.events).toEqual(["started", "ended: user"]);
  });
});

describe("a deadline", () => {
  const at = (ms: number): number => bench.clock.now() + ms;

  test("ends the machine when it comes, not a moment before", async () => {
    const deadline = at(1000);
    await bench.machines.create("one", { ...TEST_SPEC, deadline_unix_ms: deadline });
    bench.clock.advance(999);
    expect(state("one")).toBe("running");
    bench.clock.advance(1);
    await until(() => state("one") === "ended");
    expect(bench.machines.get("one")).toMatchObject({
      reason: "ttl_expired",
      message: expect.stringContaining(new Date(deadline).toISOString()) as string,
    });
  });

  test("can be put off a millisecond before, taken away, and set again", async () => {
    await bench.machines.create("one", { ...TEST_SPEC, deadline_unix_ms: at(1000) });
    bench.clock.advance(999);
    expect(setDeadline("one", at(500)).deadline_unix_ms).toBe(at(500));
    bench.clock.advance(499);
    setDeadline("one", null);
    bench.clock.advance(1_000_000);
    expect(state("one")).toBe("running");
    setDeadline("one", at(1));
    bench.clock.advance(1);
    await until(() => state("one") === "ended");
    expect(bench.events).toEqual([
      "started",
      "deadline_changed",
      "deadline_changed",
      "deadline_changed",
      "ended: ttl_expired",
    ]);
  });

  test("in the past ends the machine right away", async () => {
    await bench.machines.create("one", { ...TEST_SPEC, deadline_unix_ms: at(-5000) });
    bench.clock.advance(0);
    await until(() => state("one") === "ended");
  });

  test("is moved by no jump of the wall clock", async () => {
    await bench.machines.create("one", { ...TEST_SPEC, deadline_unix_ms: at(1000) });
    bench.clock.jump(86_400_000);
    bench.clock.advance(999);
    expect(state("one")).toBe("running");
    bench.clock.advance(1);
    await until(() => state("one") === "ended");
  });

  test("cannot be set on a machine that is ending or has ended", async () => {
    await bench.machines.create("one", TEST_SPEC);
    const release = bench.driver.hold("kill");
    const end = bench.machines.end("one", "user");
    expect(() => setDeadline("one", at(1))).toThrow(
      expect.objectContaining({ code: "sandbox_ended" }) as Error,
    );
    release();
    await end;
    expect(() => setDeadline("one", at(1))).toThrow(
      expect.objectContaining({ code: "sandbox_ended" }) as Error,
    );
  });

  test("is in the journal when it is answered", async () => {
    await bench.machines.create("one", TEST_SPEC);
    setDeadline("one", at(7));
    expect(bench.journal.get("one")?.deadlineUnixMs).toBe(at(7));
  });

  test("set just before it comes either counts or is refused, never both", async () => {
    let round = 0;
    await fc.assert(
      fc.asyncProperty(
        fc.array(
          fc.record({ waitMs: fc.integer({ min: 0, max: 12 }), nextMs: fc.integer({ min: 1, max: 12 }) }),
          { maxLength: 8 },
        ),
        async (steps) => {
          const id = `race${round++}`;
          let due = at(10);
          await bench.machines.create(id, { ...TEST_SPEC, deadline_unix_ms: due });
          for (const { waitMs, nextMs } of steps) {
            bench.clock.advance(waitMs);
            const expired = bench.clock.now() >= due;
            let accepted = true;
            try {
              due = setDeadline(id, at(nextMs)).deadline_unix_ms ?? 0;
            } catch {
              accepted = false;
            }
            expect(accepted).toBe(!expired);
            if (expired) break;
            expect(state(id)).toBe("running");
          }
          bench.clock.advance(Math.max(0, due - bench.clock.now()));
          await until(() => state(id) === "ended");
          expect(bench.machines.get(id)?.reason).toBe("ttl_expired");
          expect(bench.inPlace).toEqual(NOTHING);
        },
      ),
      { numRuns: 25 },
    );
  });
});

describe("the watch", () => {
  beforeEach(async () => {
    await bench.machines.create("one", TEST_SPEC);
    bench.machines.watch();
  });

  test("fails a machine whose process has died, with the runtime's last words, and keeps its files", async () => {
    writeFileSync(join(bench.directory, "machines", "1", "console.log"), "last words");
    await bench.driver.crash(1, "panic: something went wrong\nsecond line\n");
    await until(() => bench.events.length === 2);
    const failed = {
      state: "failed",
      reason: "runtime_crashed",
      message: expect.stringMatching(/: panic: something went wrong$/) as string,
      ended_at: new Date(bench.clock.now()).toISOString(),
    };
    expect(bench.machines.get("one")).toMatchObject(failed);
    expect(bench.inPlace).toEqual({ machines: [], networks: [], directories: ["1"] });
    expect(await bench.machines.console("one")).toBe("last words");
    await expect(bench.machines.awaken("one")).rejects.toMatchObject({
      code: "sandbox_ended",
      details: { reason: "runtime_crashed" },
    });
    bench.clock.advance(5);
    expect(await bench.machines.end("one", "user")).toMatchObject({ ...failed, state: "ended" });
    expect(bench.inPlace).toEqual(NOTHING);
    expect(bench.events).toEqual(["started", "failed: runtime_crashed", "ended: runtime_crashed"]);
  });

  test("removes what is left of a failed one when its ttl ends, or after a day", async () => {
    await bench.machines.create("two", { ...TEST_SPEC, deadline_unix_ms: bench.clock.now() + 60_000 });
    for (const slot of [1, 2]) await bench.driver.crash(slot);
    await until(() => ["one", "two"].every((id) => state(id) === "failed"));
    await until(() => bench.inPlace.networks.length === 0);
    bench.clock.advance(60_000);
    await until(() => state("two") === "ended");
    expect([state("one"), bench.machines.get("two")?.reason]).toEqual(["failed", "runtime_crashed"]);
    bench.clock.advance(24 * 3600_000);
    await until(() => state("one") === "ended");
    expect(bench.inPlace).toEqual(NOTHING);
  });

  test("tries again to stop what is left of a failed one, and a destroy at that moment wins", async () => {
    bench.driver.fail("stop", 2);
    await bench.driver.crash(1);
    await until(() => bench.driver.machines.size === 0);
    expect(state("one")).toBe("failed");
    expect((await bench.machines.end("one", "user")).state).toBe("ended");
    expect(bench.inPlace).toEqual(NOTHING);
  });

  test("sees a crash in the middle of a sleep", async () => {
    const release = bench.driver.hold("checkpoint");
    const sleep = bench.machines.hibernate("one").catch(() => "refused");
    await until(() => bench.driver.machine(1).guest?.freezes === 1);
    await bench.driver.crash(1);
    await new Promise((resolve) => setTimeout(resolve, 300));
    release();
    expect(await sleep).toBe("refused");
    await until(() => state("one") === "failed");
    expect(bench.machines.get("one")?.reason).toBe("runtime_crashed");
    expect(bench.imagesInPlace).toEqual([]);
  });

  test("says so when it died for lack of memory", async () => {
    bench.driver.machine(1).oomKills = 1;
    await bench.driver.crash(1);
    await until(() => state("one") === "failed");
    expect(bench.machines.get("one")).toMatchObject({
      reason: "oom",
      message: expect.stringContaining("512 MB") as string,
    });
  });

  test("notes when something inside was ended for lack of memory, close to when it happened", async () => {
    expect(bench.machines.get("one")?.last_oom_at).toBeNull();
    const happened = bench.clock.now();
    bench.driver.machine(1).oomKills = 2;
    await until(() => bench.machines.list()[0]?.last_oom_at !== null);
    bench.clock.advance(60_000);
    expect(bench.machines.get("one")?.last_oom_at).toBe(new Date(happened).toISOString());
    expect(state("one")).toBe("running");
  });

  test("cuts a console that grows without end", async () => {
    const file = join(bench.directory, "machines", "1", "console.log");
    appendFileSync(file, Buffer.alloc(1024 * 1024 + 1, "x"));
    await until(() => {
      appendFileSync(file, "");
      return bench.machines.get("one") !== undefined;
    });
    let length = Infinity;
    await until(() => {
      void bench.machines.console("one").then((text) => (length = text.length));
      return length === 0;
    });
  });
});

test("the console is the last mebibyte of what was written, in text", async () => {
  await bench.machines.create("one", TEST_SPEC);
  mkdirSync(join(bench.directory, "machines", "1"), { recursive: true });
  writeFileSync(
    join(bench.directory, "machines", "1", "console.log"),
    `${"a".repeat(10)}${"b".repeat(1024 * 1024)}`,
  );
  expect(await bench.machines.console("one")).toBe("b".repeat(1024 * 1024));
  await expect(bench.machines.console("never")).rejects.toMatchObject({ code: "sandbox_not_found" });
});
