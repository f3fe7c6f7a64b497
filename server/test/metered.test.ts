import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { type MachineMove, NO_USE, type SandboxState } from "@torpor/protocol";
import {
  type ClosedInterval,
  type Metered,
  meterChanges,
  newMetered,
  type ToldUse,
} from "../src/usage/metered.ts";

const T0 = 1_700_000_000_000;

type To = MachineMove["to"];
const NEXT: Record<To, readonly To[]> = {
  running: ["paused", "hibernating", "failed", "ending"],
  paused: ["running", "hibernating", "failed", "ending"],
  hibernating: ["hibernated", "running", "ending"],
  hibernated: ["running", "ending"],
  failed: ["ending"],
  ending: [],
};

/** A life as its host tells it: moves at random times, some at the same moment. */
const lives = fc
  .array(fc.record({ pick: fc.nat(), afterMs: fc.oneof(fc.constant(0), fc.nat(100_000)), cpu: fc.nat(50) }), {
    minLength: 1,
    maxLength: 25,
  })
  .map((steps) => {
    const moves: MachineMove[] = [];
    let [at, cpu] = [T0, 0];
    for (const { pick, afterMs, cpu: more } of steps) {
      const before = moves.at(-1);
      const choices: readonly To[] = before === undefined ? ["running", "ending"] : NEXT[before.to];
      const to = choices[pick % Math.max(choices.length, 1)];
      if (to === undefined) break;
      [at, cpu] = [at + afterMs, cpu + more];
      moves.push({
        number: moves.length + 1,
        to,
        at: new Date(at).toISOString(),
        image_bytes: to === "hibernated" ? 4096 : 0,
        used: { ...NO_USE, cpu_seconds: cpu },
        noticed_after_ms: 0,
      });
    }
    return moves;
  });

const told = (moves: readonly MachineMove[]): ToldUse => ({
  moves: [...moves],
  used: moves.at(-1)?.used ?? NO_USE,
});

/** The server hears of a life in pieces: of some moves twice, of others together, late. */
function hear(
  moves: readonly MachineMove[],
  cuts: readonly number[],
): { metered: Metered; closed: ClosedInterval[] } {
  let metered = newMetered(T0);
  const closed: ClosedInterval[] = [];
  const upTo = [...new Set([...cuts.map((cut) => cut % (moves.length + 1)), moves.length])].toSorted(
    (a, b) => a - b,
  );
  for (const count of upTo) {
    const heard = moves.slice(0, count);
    const last = heard.at(-1);
    const state: SandboxState =
      last === undefined ? "creating" : last.to === "ending" ? "destroyed" : last.to;
    const at = last === undefined ? T0 : Date.parse(last.at) + 5_000;
    for (let telling = 0; telling < 2; telling += 1) {
      const changes = meterChanges(metered, told(heard), state, at);
      metered = changes.metered;
      closed.push(...changes.closed);
    }
  }
  return { metered, closed };
}

describe("the meter of a sandbox", () => {
  test("tiles any life without gap or overlap, however its moves are told", () => {
    fc.assert(
      fc.property(lives, fc.array(fc.nat()), (moves, cuts) => {
        const { metered, closed } = hear(moves, cuts);
        let at = T0;
        for (const [index, { from, to, number }] of closed.entries()) {
          expect([from, number]).toEqual([at, index + 1]);
          expect(to).toBeGreaterThan(from);
          at = to;
        }
        expect(metered.from).toBe(at);
        expect(metered.intervals).toBe(closed.length);
      }),
    );
  });

  test("says of each state what the host's own timeline says, and counts all that was used, once", () => {
    fc.assert(
      fc.property(lives, fc.array(fc.nat()), (moves, cuts) => {
        const { metered, closed } = hear(moves, cuts);
        for (const state of ["running", "paused", "hibernating", "hibernated", "failed"] as const) {
          const truth = moves.reduce((sum, { to, at }, index) => {
            const next = moves[index + 1];
            return to === state && next !== undefined ? sum + Date.parse(next.at) - Date.parse(at) : sum;
          }, 0);
          const counted = closed
            .filter((interval) => interval.state === state)
            .reduce((sum, { from, to }) => sum + to - from, 0);
          expect(counted, state).toBe(truth);
        }
        const open = metered.used.cpu_seconds - metered.base.cpu_seconds;
        const inAll = closed.reduce((sum, { used }) => sum + used.cpu_seconds, open);
        expect(inAll).toBeCloseTo(moves.at(-1)?.used.cpu_seconds ?? 0, 6);
      }),
    );
  });

  test("stops at an end that the server accepted, whatever the host tells later", () => {
    const running = meterChanges(newMetered(T0), told([moveTo(1, "running", 0)]), "running", T0).metered;
    const accepted = meterChanges(running, undefined, "destroying", T0 + 1_000);
    expect(accepted).toMatchObject({ closed: [], metered: { state: "running", until: T0 + 1_000 } });
    const late = told([moveTo(1, "running", 0), moveTo(2, "ending", 9_000)]);
    const ended = meterChanges(accepted.metered, late, "destroyed", T0 + 9_500);
    expect(ended.closed).toMatchObject([
      { state: "running", from: T0, to: T0 + 1_000 },
      { state: "destroying", from: T0 + 1_000, to: T0 + 9_500 },
    ]);
    expect(ended.metered.state).toBe("destroyed");
    // What its host did before that, and had not told yet, is in.
    const paused = told([moveTo(1, "running", 0), moveTo(2, "paused", 400), moveTo(3, "ending", 9_000)]);
    expect(meterChanges(accepted.metered, paused, "destroyed", T0 + 9_500).closed).toMatchObject([
      { state: "running", to: T0 + 400 },
      { state: "paused", from: T0 + 400, to: T0 + 1_000 },
      { state: "destroying", from: T0 + 1_000 },
    ]);
  });

  test("of a sandbox whose host is lost is counted until it was last heard of, and says how much may be missing", () => {
    const running = meterChanges(newMetered(T0), told([moveTo(1, "running", 0)]), "running", T0).metered;
    const lost = meterChanges({ ...running, seenAt: T0 + 60_000 }, "lost", "destroying", T0 + 3_600_000);
    expect(lost.closed).toMatchObject([
      { state: "running", from: T0, to: T0 + 60_000, uncertainMs: 3_540_000 },
    ]);
    expect(lost.metered).toMatchObject({ state: "destroying", from: T0 + 60_000 }); // of which nothing is counted
  });

  test("says so too when it was never heard of after it was made", () => {
    const running = meterChanges(newMetered(T0), told([moveTo(1, "running", 0)]), "running", T0).metered;
    const failed = { ...moveTo(2, "failed", 0), noticed_after_ms: 7_000 };
    const { metered, closed } = meterChanges(
      running,
      told([moveTo(1, "running", 0), failed]),
      "failed",
      T0 + 7_000,
    );
    expect([closed, metered.uncertainMs]).toEqual([[], 7_000]);
    expect(meterChanges(metered, undefined, "destroyed", T0 + 9_000).closed).toMatchObject([
      { state: "failed", uncertainMs: 7_000 },
    ]);
  });

  test("says how much is uncertain when its host no longer tells of some moves", () => {
    const running = meterChanges(newMetered(T0), told([moveTo(1, "running", 0)]), "running", T0).metered;
    const { closed } = meterChanges(
      running,
      told([moveTo(40, "running", 50_000), moveTo(41, "paused", 60_000)]),
      "paused",
      T0 + 60_000,
    );
    // It may have slept in between; nobody knows.
    expect(closed.map(({ state, uncertainMs }) => [state, uncertainMs])).toEqual([["running", 0]]);
  });

  test("never goes backwards with a wall clock that is set back", () => {
    const running = meterChanges(newMetered(T0), told([moveTo(1, "running", -5_000)]), "running", T0).metered;
    expect(running.from).toBe(T0);
    const { closed, metered } = meterChanges(running, undefined, "destroyed", T0 - 10_000);
    expect(closed).toEqual([]);
    expect(metered).toMatchObject({ state: "destroyed", from: T0 });
  });
});

function moveTo(number: number, to: To, afterMs: number): MachineMove {
  return {
    number,
    to,
    at: new Date(T0 + afterMs).toISOString(),
    image_bytes: 0,
    used: NO_USE,
    noticed_after_ms: 0,
  };
}
