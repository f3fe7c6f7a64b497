import fc from "fast-check";
import { expect, test } from "vitest";
import { type DriverStep } from "./fakes/fake-driver.ts";
import { TEST_SPEC } from "./fakes/journal-entry.ts";
import { MachineBench, NOTHING } from "./fakes/machine-bench.ts";
import { until } from "./fakes/until.ts";

/** What may be asked of a machine, and what may go wrong, in any order and without waiting for each other. */
const STEPS = [
  "hibernate",
  "hibernate its files",
  "wake",
  "pause",
  "resume",
  "awaken",
  "snapshot",
  "fail checkpoint",
  "fail restore",
  "fail pause",
  "fail limit",
  "fail prepare",
  "fill the journal",
  "empty the journal",
  "wait",
] as const;
type Step = (typeof STEPS)[number];

let bench: MachineBench;

/** Each run has a host of its own: what one leaves must not be found by the next. */
async function onFreshHost(act: () => Promise<void>): Promise<void> {
  const own = new MachineBench();
  bench = own;
  await own.open();
  try {
    await act();
  } finally {
    own.journal.full = false;
    await own.close();
  }
}

async function take(step: Step, id: string, snapshotId: string): Promise<void> {
  if (step === "snapshot") await bench.machines.snapshot(id, snapshotId);
  else if (step === "hibernate its files") await bench.machines.hibernate(id, false);
  else if (step === "awaken") await bench.machines.awaken(id);
  else if (step === "wait") await new Promise((resolve) => setTimeout(resolve, 3));
  else if (step === "fill the journal") bench.journal.full = true;
  else if (step === "empty the journal") bench.journal.full = false;
  else if (step.startsWith("fail ")) bench.driver.fail(step.slice(5) as DriverStep);
  else await bench.machines[step as "hibernate" | "wake" | "pause" | "resume"](id);
}

test("whatever is asked and whatever fails, in whatever order: it comes to rest, forgets nothing, and goes without a trace", async () => {
  let run = 0;
  await fc.assert(
    fc.asyncProperty(
      fc.array(fc.record({ step: fc.constantFrom(...STEPS), awaited: fc.boolean() }), {
        minLength: 1,
        maxLength: 12,
      }),
      (steps) =>
        onFreshHost(async () => {
          const id = `run${++run}`;
          await bench.machines.create(id, TEST_SPEC);
          const made = bench.driver.machine(bench.machines.reach(id).handle.place.slot);
          made.memory = "kept";
          if (made.guest !== undefined) made.guest.files = "kept too";
          const asked: Promise<void>[] = [];
          for (const [index, { step, awaited }] of steps.entries()) {
            const taken = take(step, id, `snp${run}x${"0".repeat(20)}${index}`).catch(() => {});
            asked.push(taken);
            if (awaited) await taken;
          }
          await Promise.all(asked);
          bench.journal.full = false;
          for (const step of ["checkpoint", "restore", "pause", "limit", "prepare"] as const)
            bench.driver.fail(step, 0);

          // At rest, in one of the states a machine can rest in, with the books in agreement.
          const { state, generation } = bench.machines.get(id) ?? {};
          expect(["running", "paused", "hibernated"]).toContain(state);
          expect(bench.inPlace.machines).toHaveLength(state === "hibernated" ? 0 : 1);
          const ownImages = bench.imagesInPlace.filter((name) => name.startsWith("img"));
          expect(ownImages).toHaveLength(state === "hibernated" ? 1 : 0);

          // The same machine as ever, in a generation that only went up.
          await bench.machines.wake(id);
          const { slot } = bench.machines.reach(id).handle.place;
          expect(bench.driver.machine(slot)).toMatchObject({
            memory: steps.some(({ step }) => step === "hibernate its files")
              ? (expect.stringMatching(/^(kept)?$/) as string)
              : "kept",
            paused: false,
            guest: { locked: false, files: "kept too" },
          });
          expect(bench.machines.get(id)?.generation).toBeGreaterThanOrEqual(generation ?? 0);
          // What could not be written is, as soon as the journal has room: the watch sees to that.
          bench.machines.watch();
          await until(() => bench.journal.get(id)?.state === "running");
          bench.machines.stopWatching();
          expect(bench.journal.get(id)).toMatchObject({ slot, image: null });

          await bench.machines.end(id, "user");
          for (const { id: snapshot } of await bench.machines.snapshots())
            await bench.machines.removeSnapshot(snapshot);
          expect([await bench.inPlaceOnceTidy(), bench.imagesInPlace]).toEqual([NOTHING, []]);
        }),
    ),
    { numRuns: 25 },
  );
});

test("a destroy at any moment of it wins, and leaves nothing", async () => {
  let run = 0;
  await fc.assert(
    fc.asyncProperty(
      fc.array(fc.constantFrom(...STEPS.filter((step) => !step.includes("journal"))), { maxLength: 6 }),
      fc.nat({ max: 12 }),
      (steps, waitMs) =>
        onFreshHost(async () => {
          const id = `end${++run}`;
          await bench.machines.create(id, TEST_SPEC);
          const asked = steps.map((step, index) =>
            take(step, id, `snp${run}y${"0".repeat(20)}${index}`).catch(() => {}),
          );
          await new Promise((resolve) => setTimeout(resolve, waitMs));
          expect((await bench.machines.end(id, "user")).state).toBe("ended");
          await Promise.all(asked);
          for (const step of ["checkpoint", "restore", "pause", "limit", "prepare"] as const)
            bench.driver.fail(step, 0);
          expect(bench.machines.get(id)).toMatchObject({ state: "ended", reason: "user" });
          for (const { id: snapshot } of await bench.machines.snapshots())
            await bench.machines.removeSnapshot(snapshot);
          expect([await bench.inPlaceOnceTidy(), bench.imagesInPlace]).toEqual([NOTHING, []]);
        }),
    ),
    { numRuns: 25 },
  );
});
