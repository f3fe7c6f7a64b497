import { readdirSync } from "node:fs";
import { join } from "node:path";
import { afterEach, describe, expect, test } from "vitest";
import { eventually } from "../src/eventually.ts";
import { checkRows, residentState, startResident } from "../src/resident.ts";
import { useInstance } from "../src/use-instance.ts";

describe("a host that is killed", () => {
  const torpor = useInstance();
  const output = (id: string, command: string): Promise<string> => torpor().host.output(id, command);
  const images = (): string[] => readdirSync(join(torpor().stateDir, "host", "images"));

  afterEach(() => torpor().host.endAll());

  async function restart(): Promise<void> {
    await torpor().killHost("SIGKILL");
    await torpor().startHost();
  }

  test("while machines sleep, and one is paused: they are as they were, and wake with their data", async () => {
    const machines = await Promise.all(Array.from({ length: 3 }, () => torpor().host.create()));
    for (const { id } of machines) await output(id, `echo ${id} > /workspace/mark`);
    const [first, second, paused] = machines.map(({ id }) => id);
    const before = await startResident(torpor().host, first ?? "");
    await torpor().host.hibernate(first ?? "");
    await torpor().host.hibernate(second ?? "");
    await torpor().host.pause(paused ?? "");
    await restart();
    const states = new Map((await torpor().host.list()).map(({ id, state }) => [id, state]));
    expect([first, second, paused].map((id) => states.get(id ?? ""))).toEqual([
      "hibernated",
      "hibernated",
      "paused",
    ]);
    for (const { id } of machines) expect(await output(id, "cat /workspace/mark")).toBe(id);
    expect(await residentState(torpor().host, first ?? "")).toMatchObject({ pid: before.pid, failed: null });
    await expectImagesGone();
  });

  /** Awake again: the same process counts on, its rows are whole, and the image it slept in is used up. */
  async function expectNothingLost(
    id: string,
    before: Awaited<ReturnType<typeof startResident>>,
  ): Promise<void> {
    await eventually("the resident program to go on", async () => {
      const seen = await residentState(torpor().host, id);
      expect(seen).toMatchObject({ pid: before.pid, failed: null });
      return seen.count > before.count + 20;
    });
    expect(await checkRows(torpor().host, id)).toBe("ok 1");
    await expectImagesGone();
  }

  /** An image that is used up is freed a moment after its sandbox is awake. */
  const expectImagesGone = (): Promise<unknown> =>
    eventually(
      () => `no image to be left; there is ${images().join(", ")}`,
      () => images().length === 0,
    );

  /** Where it is once the host has taken up what the last one had begun, which its start does not wait for. */
  const settledState = (id: string): Promise<string> =>
    eventually("what was begun to be finished or undone", async () => {
      const { state } = await torpor().host.get(id);
      return state.endsWith("ing") && state !== "running" ? undefined : state;
    });

  // Moments after the call at which the host is killed; how far it then is depends on the machine.
  test.each([5, 60, 150, 300, 500])("%i ms into a hibernation: nothing is lost", async (afterMs) => {
    const { id } = await torpor().host.create();
    const before = await startResident(torpor().host, id);
    const answer = torpor()
      .host.hibernate(id)
      .then(
        () => true,
        () => false,
      );
    await new Promise((resolve) => setTimeout(resolve, afterMs));
    await restart();
    const answered = await answer;
    const state = await settledState(id);
    expect(answered ? ["hibernated"] : ["running", "hibernated"]).toContain(state);
    await expectNothingLost(id, before);
  });

  test.each([5, 60, 150, 300, 500])("%i ms into a wake: nothing is lost", async (afterMs) => {
    const { id } = await torpor().host.create();
    const before = await startResident(torpor().host, id);
    await torpor().host.hibernate(id);
    const answer = torpor()
      .host.wake(id)
      .then(
        () => true,
        () => false,
      );
    await new Promise((resolve) => setTimeout(resolve, afterMs));
    await restart();
    const answered = await answer;
    const state = await settledState(id);
    expect(answered ? ["running"] : ["running", "hibernated"]).toContain(state);
    await expectNothingLost(id, before);
  });

  test("or told to go: what sleeps is left asleep for the next", async () => {
    const { id } = await torpor().host.create();
    await output(id, "echo kept > /workspace/mark");
    await torpor().host.hibernate(id);
    await torpor().killHost("SIGTERM");
    await torpor().startHost();
    expect((await torpor().host.get(id)).state).toBe("hibernated");
    expect(await output(id, "cat /workspace/mark")).toBe("kept");
  });
});
