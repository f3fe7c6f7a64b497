import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { newSnapshotId } from "@torpor/protocol";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { TEST_SPEC } from "./fakes/journal-entry.ts";
import { MachineBench } from "./fakes/machine-bench.ts";

const VALUE = 'correct-horse"battery\nstaple';
const OTHER = "another-value-altogether";

let bench: MachineBench;
beforeEach(async () => {
  bench = new MachineBench();
  await bench.open();
});
afterEach(() => bench.close());

/** What the guest of a machine was told at its latest init. */
function told(id: string): unknown {
  const { slot } = bench.machines.reach(id).handle.place;
  return bench.driver.machine(slot).guest?.inits.at(-1)?.["env"];
}

/** Files of the host, its journal and its images among them, that hold any of the values. */
function filesThatTell(): string[] {
  const files = readdirSync(bench.directory, { recursive: true, withFileTypes: true }).filter((entry) =>
    entry.isFile(),
  );
  expect(files.length).toBeGreaterThan(1);
  return files
    .map((file) => join(file.parentPath, file.name))
    .filter((path) => {
      const bytes = readFileSync(path);
      return [VALUE, JSON.stringify(VALUE).slice(1, -1), OTHER].some((value) => bytes.includes(value));
    });
}

const create = (id: string, spec: Partial<typeof TEST_SPEC> = {}) =>
  bench.machines.create(id, { ...TEST_SPEC, env: { FROM: "sandbox", PLAIN: "p" }, ...spec });
const env = { PATH: "/bin", FROM: "sandbox", PLAIN: "p" };

describe("secrets", () => {
  test("are part of the environment at each init, over env, and lie on no disk in the clear", async () => {
    const { machine } = await create("one", { secrets: { TOKEN: VALUE, PLAIN: OTHER } });
    const whole = { ...env, TOKEN: VALUE, PLAIN: OTHER };
    expect(told("one")).toEqual(whole);
    expect(JSON.stringify(machine)).not.toContain("correct-horse");
    expect(filesThatTell()).toEqual([]);
    await bench.machines.hibernate("one");
    expect(filesThatTell()).toEqual([]);
    await bench.machines.wake("one");
    expect(told("one")).toEqual(whole);
    await bench.machines.hibernate("one");
    await bench.restart(); // the host was killed meanwhile
    await bench.machines.wake("one");
    expect(told("one")).toEqual(whole);
    expect(filesThatTell()).toEqual([]);
  });

  test("go with a snapshot into what is made from it, and may be changed there", async () => {
    await create("one", { secrets: { TOKEN: VALUE, KEPT: "kept-as-it-was" } });
    const id = newSnapshotId();
    const snapshot = await bench.machines.snapshot("one", id);
    expect(JSON.stringify(snapshot)).not.toMatch(/correct-horse|v1:/);
    expect(told("one")).toMatchObject({ TOKEN: VALUE }); // it was locked and is told again
    await create("two", { from_snapshot: id, secrets: { TOKEN: OTHER } });
    expect(told("two")).toEqual({ ...env, TOKEN: OTHER, KEPT: "kept-as-it-was" });
    await create("three", { from_snapshot: id });
    expect(told("three")).toEqual({ ...env, TOKEN: VALUE, KEPT: "kept-as-it-was" });
    expect(filesThatTell()).toEqual([]);
  });

  test("leave the journal with the machine, sealed ones too", async () => {
    await create("one", { secrets: { TOKEN: VALUE } });
    expect(bench.journal.get("one")?.settings.secrets).toMatch(/^v1:/);
    await bench.machines.end("one", "user");
    expect(bench.journal.get("one")?.settings).not.toHaveProperty("secrets");
  });

  test("a guest that tells its environment tells no secret by its attestation", async () => {
    bench.driver.initBehaviour = "tells its environment";
    const { machine } = await create("one", { secrets: { TOKEN: VALUE } });
    expect(machine.attestation?.steps[0]?.detail).toContain("[redacted]");
    expect(machine.attestation?.steps[0]?.detail).toContain("sandbox");
    expect(JSON.stringify([machine, bench.journal.get("one")])).not.toContain("correct-horse");
  });

  test("nor by what a failed create says and leaves", async () => {
    bench.driver.initBehaviour = "refuses and tells its environment";
    const failure = await create("one", { secrets: { TOKEN: VALUE } }).catch((error: unknown) => error);
    expect(failure).toMatchObject({
      code: "guest_unavailable",
      message: expect.stringContaining("[redacted]"),
    });
    expect(JSON.stringify([failure, (failure as Error).message])).not.toContain("correct-horse");
    expect(JSON.stringify(bench.journal.get("one"))).not.toContain("correct-horse");
  });
});
