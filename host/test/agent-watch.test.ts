import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { FakeClock } from "@torpor/base";
import { AgentWatch } from "../src/machine/agent-watch.ts";
import { GuestClient } from "../src/machine/guest-client.ts";
import type { Live } from "../src/machine/phase.ts";
import { FakeGuest } from "./fakes/fake-guest.ts";
import { fakeAddress } from "./fakes/fake-router.ts";

const PATIENCE_MS = 30_000;
/** Long enough for an answer from this machine. */
const ANSWER_WITHIN_MS = 100;

let clock: FakeClock;
let guest: FakeGuest;
let live: Live;
let cpuMs: number;
let load: number;
let hungAfterMs: number[];
let watch: AgentWatch;

beforeEach(async () => {
  clock = new FakeClock();
  guest = await FakeGuest.listen(fakeAddress(1), () => "attests", undefined, false);
  [cpuMs, load, hungAfterMs] = [0, 0, []];
  const place = {
    slot: 1,
    incarnationId: "mch",
    directory: "",
    netns: "",
    address: fakeAddress(1),
    diskMib: 1,
  };
  live = {
    handle: { place, process: { pid: 1, startTime: 1 } },
    guest: new GuestClient(fakeAddress(1)),
    oomKills: 0,
    lastOomAt: null,
  };
  watch = new AgentWatch({
    live,
    cpu: 1,
    driver: { stats: () => ({ cpuMs, memoryBytes: 0, memoryPeakBytes: 0, oomKills: 0 }) },
    clock,
    patienceMs: PATIENCE_MS,
    answerWithinMs: ANSWER_WITHIN_MS,
    load: () => load,
    onHung: (silentForMs) => hungAfterMs.push(silentForMs),
  });
});
afterEach(async () => {
  live.guest.close();
  await guest.close();
});

/** Lets `questions` questions be asked, each waited for, with the clock going on by `stepMs` between them. */
async function ask(questions: number, stepMs: number): Promise<void> {
  for (let asked = 0; asked < questions; asked += 1) {
    clock.advance(stepMs);
    const before = guest.asked;
    watch.look();
    watch.look(); // one question at a time
    await new Promise((resolve) => setTimeout(resolve, ANSWER_WITHIN_MS + 40));
    expect(guest.asked - before).toBeLessThanOrEqual(1);
  }
}

describe("the watch on an agent", () => {
  test("asks now and then, and not more often", async () => {
    for (let looks = 0; looks < 40; looks += 1) {
      clock.advance(250);
      watch.look();
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
    expect(guest.asked).toBe(1);
    expect(hungAfterMs).toEqual([]);
  });

  test("finds one that is silent to have hung, but not by a single question", async () => {
    guest.silent = true;
    await ask(3, 10_000);
    expect(hungAfterMs).toEqual([]);
    await ask(1, 10_000);
    expect(hungAfterMs).toEqual([40_000]);
  });

  test("begins anew with an answer", async () => {
    guest.silent = true;
    await ask(3, 10_000);
    guest.silent = false;
    await ask(1, 10_000);
    guest.silent = true;
    await ask(3, 10_000);
    expect(hungAfterMs).toEqual([]);
  });

  test("takes one that has no listener any more for silent too", async () => {
    await guest.close();
    await ask(4, 10_000);
    expect(hungAfterMs).toHaveLength(1);
  });

  test("is ten times as patient with a machine that uses its CPU: a fork bomb starves the agent", async () => {
    guest.silent = true;
    for (let asked = 1; asked <= 9; asked += 1) {
      cpuMs = asked * 30_000 * 0.9;
      await ask(1, 30_000);
    }
    expect(hungAfterMs).toEqual([]); // 270 s
    cpuMs = 300_000;
    await ask(1, 30_000);
    expect(hungAfterMs).toEqual([300_000]);
  });

  test("is as patient as its host is overloaded, within the same bound", async () => {
    guest.silent = true;
    load = 4;
    await ask(4, 25_000);
    expect(hungAfterMs).toEqual([]);
    await ask(1, 25_000);
    expect(hungAfterMs).toEqual([125_000]);
    load = 1000;
    hungAfterMs.length = 0;
    await ask(1, 160_000);
    expect(hungAfterMs).toEqual([]);
    await ask(1, 20_000);
    expect(hungAfterMs).toEqual([305_000]);
  });
});
