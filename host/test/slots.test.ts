import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { Slots } from "../src/machine/slots.ts";
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

describe("the place that is kept ahead", () => {
  test("is the next that is asked for, and is made anew after it was taken", async () => {
    slots.keepSpare();
    expect([...router.slots.keys()]).toEqual([1]);
    expect(await slots.make(64, "none")).toMatchObject({ slot: 1 });
    expect(router.slots.get(1)).toBe("none");
    await vi.waitFor(() => expect([...router.slots.keys()]).toEqual([1, 2]), { timeout: 5_000 });
    expect(await slots.sweep()).toMatchObject({ swept: [] });
  });

  test("goes when all is tidied up, and does not come back", async () => {
    slots.keepSpare();
    await slots.tidyUp();
    slots.keepSpare();
    expect([router.slots.size, readdirSync(directory)]).toEqual([0, []]);
  });

  test("keeps nobody from a place when its network cannot be made", async () => {
    router.slots.set(1, "internet"); // left by an earlier host
    slots.keepSpare();
    expect(await slots.make(64, "internet")).toMatchObject({ slot: 2 });
    await slots.tidyUp();
    expect([...router.slots.keys()]).toEqual([2]);
  });
});
