import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { Slots, SPARE_NETWORKS } from "../src/machine/slots.ts";
import { FakeDriver } from "./fakes/fake-driver.ts";
import { FakeRouter } from "./fakes/fake-router.ts";

let directory: string;
let router: FakeRouter;
let slots: Slots;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "torpor-test-slots-"));
  router = new FakeRouter();
  slots = new Slots({
    router,
    driver: new FakeDriver(),
    cgroups: { children: () => new Set<string>() },
    directory,
    netnsOf: (slot) => `fake-${slot}`,
  });
});
afterEach(async () => {
  await slots.tidyUp();
  rmSync(directory, { recursive: true, force: true });
});

describe("places that are kept ahead", () => {
  test("are the next that are asked for, and are made anew after one was taken", async () => {
    slots.keepSpares();
    expect([...router.slots.keys()]).toEqual([1]);
    await vi.waitFor(() => expect(router.slots.size).toBe(SPARE_NETWORKS), { timeout: 5_000 });
    expect(await slots.make(64, "none")).toMatchObject({ slot: 1 });
    expect(router.slots.get(1)).toBe("none");
    await vi.waitFor(() => expect(router.slots.size).toBe(SPARE_NETWORKS + 1), { timeout: 5_000 });
    expect(await slots.sweep()).toMatchObject({ swept: [] });
  });

  test("are as many as are expected, no more", () => {
    slots.expect(3);
    slots.expect(2);
    expect(router.slots.size).toBe(3);
  });

  test("go when all is tidied up, and do not come back", async () => {
    slots.keepSpares();
    await slots.tidyUp();
    slots.keepSpares();
    expect([router.slots.size, readdirSync(directory)]).toEqual([0, []]);
  });

  test("keep nobody from a place when their networks cannot be made", async () => {
    router.slots.set(1, "internet"); // left by an earlier host
    slots.keepSpares();
    expect(await slots.make(64, "internet")).toMatchObject({ slot: 2 });
    await slots.tidyUp();
    expect([...router.slots.keys()]).toEqual([2]);
  });
});
