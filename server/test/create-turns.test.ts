import { FakeClock } from "@torpor/base";
import { expect, test } from "vitest";
import { CreateTurns } from "../src/sandbox/create-turns.ts";

/** Work that ends when told to. */
class Works {
  readonly begun: string[] = [];
  readonly #ends: (() => void)[] = [];

  readonly turns: CreateTurns;

  constructor(turns: CreateTurns) {
    this.turns = turns;
  }

  ask(tenant: string): Promise<void> {
    return this.turns.run(tenant, () => {
      this.begun.push(tenant);
      return new Promise((resolve) => this.#ends.push(resolve));
    });
  }

  async endFirst(): Promise<void> {
    this.#ends.shift()?.();
    await new Promise(setImmediate);
  }
}

const turns = (clock = new FakeClock()): CreateTurns =>
  new CreateTurns({ atOnce: () => 3, maxWaitMs: 1_000, clock });

test("one tenant never takes all there is, and those that wait take turns", async () => {
  const works = new Works(turns());
  const all = [1, 2, 3, 4].map(() => works.ask("noisy"));
  await new Promise(setImmediate);
  expect(works.begun).toEqual(["noisy", "noisy"]);
  all.push(works.ask("quiet"), works.ask("other"), works.ask("quiet"));
  await new Promise(setImmediate);
  expect(works.begun).toEqual(["noisy", "noisy", "quiet"]);
  for (let ended = 0; ended < 7; ended++) await works.endFirst();
  expect(works.begun.slice(3)).toEqual(["noisy", "other", "quiet", "noisy"]);
  await Promise.all(all);
});

test("what fails gives its turn back", async () => {
  const one = turns();
  for (let tries = 0; tries < 5; tries++)
    await expect(one.run("t", () => Promise.reject(new Error("no")))).rejects.toThrow("no");
  expect(await one.run("t", () => Promise.resolve(7))).toBe(7);
});

test("whose turn does not come in time is told so, and keeps nobody up", async () => {
  const clock = new FakeClock();
  const works = new Works(turns(clock));
  const running = [works.ask("t"), works.ask("t")];
  const late = works.ask("t");
  clock.advance(1_000);
  await expect(late).rejects.toMatchObject({ code: "capacity_exhausted" });
  const next = works.ask("t");
  await works.endFirst();
  expect(works.begun).toHaveLength(3);
  await works.endFirst();
  await works.endFirst();
  await Promise.all([...running, next]);
});
