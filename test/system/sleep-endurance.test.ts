import { setTimeout as delay } from "node:timers/promises";
import { describe, expect, test } from "vitest";
import { eventually } from "../src/eventually.ts";
import { checkRows, residentState, startResident } from "../src/resident.ts";
import { useInstance } from "../src/use-instance.ts";

const CYCLES = 50;
const RACES = 100;
/** The clocks' sleep is a real minute: the others fill it. */
const SLEEP_MS = 60_000;
const NAP_S = 15;
const TEST_TIMEOUT_MS = 300_000;

/** Side by side, each on a machine of its own. */
describe.concurrent("machines that sleep again and again, or for long", { timeout: TEST_TIMEOUT_MS }, () => {
  const torpor = useInstance({ pool: 0, shells: 2 });
  const output = (id: string, command: string): Promise<string> => torpor().host.output(id, command);

  test(`${CYCLES} times in a row with a write each: nothing is lost`, async () => {
    const { id } = await torpor().host.create();
    const before = await startResident(torpor().host, id);
    const tookMs: { hibernate: number[]; wake: number[] } = { hibernate: [], wake: [] };
    for (let cycle = 1; cycle <= CYCLES; cycle++) {
      await output(id, `echo ${cycle} >> /workspace/log`);
      const began = performance.now();
      await torpor().host.hibernate(id);
      const slept = performance.now();
      expect(await torpor().host.wake(id)).toMatchObject({ id, generation: cycle + 1 });
      tookMs.hibernate.push(slept - began);
      tookMs.wake.push(performance.now() - slept);
    }
    const numbers = Array.from({ length: CYCLES }, (_, index) => `${index + 1}`);
    expect((await output(id, "cat /workspace/log")).split("\n")).toEqual(numbers);
    expect(await residentState(torpor().host, id)).toMatchObject({ pid: before.pid, failed: null });
    expect(await checkRows(torpor().host, id)).toBe("ok 1");
    const median = (values: number[]): number =>
      Math.round(values.toSorted((a, b) => a - b)[values.length >> 1] ?? 0);
    process.stdout.write(
      `${CYCLES} cycles with 20 MB of memory in use, beside others: hibernate ${median(tookMs.hibernate)} ms, wake ${median(tookMs.wake)} ms (medians)\n`,
    );
  });

  test(`${RACES} times asked to wake and to sleep at once: it ends where its last move led, never stuck`, async () => {
    const { id } = await torpor().host.create();
    const before = await startResident(torpor().host, id);
    let after = (await torpor().host.events(0)).last_seq;
    for (let race = 0; race < RACES; race++) {
      // Now in this order, now in that, from either state.
      const verbs = race % 2 === 0 ? (["hibernate", "wake"] as const) : (["wake", "hibernate"] as const);
      const answers = await Promise.all(verbs.map((verb) => torpor().host.tryMove(id, verb)));
      expect(answers.map(({ status }) => status)).toEqual([200, 200]);
      const { state } = await torpor().host.get(id);
      const { events, last_seq: last } = await torpor().host.events(after);
      after = last;
      const moves = events.filter(({ machine }) => machine.id === id).map(({ type }) => type);
      expect(moves.length, "moves of one race").toBeGreaterThan(0);
      expect(state).toBe(moves.at(-1) === "woken" ? "running" : "hibernated");
    }
    await torpor().host.wake(id);
    expect(await residentState(torpor().host, id)).toMatchObject({ pid: before.pid, failed: null });
    expect(await checkRows(torpor().host, id)).toBe("ok 1");
  });

  test("for a minute: the real clock is right, the monotonic one stood still, and nothing falls due in a burst", async () => {
    const { id } = await torpor().host.create();
    const monotonicMs = async (): Promise<number> =>
      Number(await output(id, "python3 -c 'import time; print(time.monotonic() * 1000)'"));
    await output(
      id,
      `: > /workspace/ticks; (while sleep 1; do echo tick >> /workspace/ticks; done) > /dev/null 2>&1 < /dev/null &
(date +%s.%N > /workspace/began-sleep; sleep ${NAP_S}; date +%s.%N > /workspace/done-sleep) > /dev/null 2>&1 < /dev/null &
setsid python3 -c 'import time
open("/workspace/began-python", "w").write(str(time.time()))
time.sleep(${NAP_S})
open("/workspace/done-python", "w").write(str(time.time()))' > /dev/null 2>&1 < /dev/null &
disown -a`,
    );
    await eventually("the naps to have begun", () =>
      output(id, "cat /workspace/began-sleep /workspace/began-python"),
    );
    const before = { host: performance.now(), guest: await monotonicMs() };
    const began = Date.now();
    await torpor().host.hibernate(id);
    const asleep = Date.now();
    await delay(SLEEP_MS);
    expect(await torpor().host.wake(id)).toMatchObject({ state: "running", generation: 2 });
    const slept = { least: SLEEP_MS, most: Date.now() - began };
    expect(asleep - began).toBeLessThan(30_000);
    const asked = Date.now();
    const inside = Number(await output(id, "python3 -c 'import time; print(time.time() * 1000)'"));
    const answered = Date.now();
    expect(inside).toBeGreaterThan(asked - 100);
    expect(inside).toBeLessThan(answered + 100);
    const passed = { guest: (await monotonicMs()) - before.guest, host: performance.now() - before.host };
    expect(passed.host - passed.guest).toBeGreaterThan(slept.least - 500);
    expect(passed.guest).toBeGreaterThan(0);
    // No tick was due in the sleep, so none comes for it.
    const ticks = async (): Promise<number> => Number(await output(id, "wc -l < /workspace/ticks"));
    const seen = await ticks();
    expect(seen).toBeLessThan(passed.guest / 1000 + 5);
    await eventually("the next tick", async () => (await ticks()) > seen);
    const nap = (by: string): Promise<number> =>
      eventually(
        `the nap of ${by} to end`,
        async () => {
          const [done, from] = await Promise.all(
            ["done", "began"].map((end) => output(id, `cat /workspace/${end}-${by}`)),
          );
          return 1000 * (Number(done) - Number(from));
        },
        2 * NAP_S * 1000,
      );
    // A nap has the time left that it had, on either clock.
    for (const by of ["python", "sleep"]) {
      const took = await nap(by);
      expect(took, by).toBeGreaterThan(NAP_S * 1000 + slept.least - 500);
      expect(took, by).toBeLessThan(NAP_S * 1000 + slept.most + 1000);
    }
  });
});
