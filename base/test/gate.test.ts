import { Gate } from "@torpor/base";
import fc from "fast-check";
import { describe, expect, test } from "vitest";

describe("a gate", () => {
  test("never lets more run at once than its width, whatever ends how, and runs all in order of asking", async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.integer({ min: 1, max: 4 }),
        fc.array(fc.record({ turns: fc.nat(4), fails: fc.boolean() }), { maxLength: 30 }),
        async (width, actions) => {
          const gate = new Gate(width);
          let running = 0;
          let most = 0;
          const started: number[] = [];
          const outcomes = await Promise.allSettled(
            actions.map(({ turns, fails }, index) =>
              gate.run(async () => {
                started.push(index);
                running += 1;
                most = Math.max(most, running);
                for (let turn = 0; turn < turns; turn++) await Promise.resolve();
                running -= 1;
                if (fails) throw new Error(String(index));
                return index;
              }),
            ),
          );
          expect(most).toBeLessThanOrEqual(width);
          expect(started).toEqual(actions.map((_, index) => index));
          expect(outcomes.map(({ status }) => status)).toEqual(
            actions.map(({ fails }) => (fails ? "rejected" : "fulfilled")),
          );
        },
      ),
      { numRuns: 100 },
    );
  });

  test("has its whole width again after failures", async () => {
    const gate = new Gate(2);
    await Promise.allSettled(
      Array.from({ length: 10 }, () => gate.run(() => Promise.reject(new Error("no")))),
    );
    const inside: (() => void)[] = [];
    const both = [1, 2].map(() => gate.run(() => new Promise<void>((resolve) => inside.push(resolve))));
    await Promise.resolve();
    expect(inside).toHaveLength(2);
    for (const leave of inside) leave();
    await Promise.all(both);
  });
});
