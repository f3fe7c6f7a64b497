import { chmodSync, mkdirSync, mkdtempSync, realpathSync, rmSync, writeFileSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { run } from "@torpor/base";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { instanceNames } from "../../host/src/instance.ts";
import { GATEWAY_ADDRESS } from "../../host/src/network/address-plan.ts";
import { expectNoLeaks, lookAtMachine, type MachineState } from "../src/leak-check.ts";
import { type GvisorBed, openGvisorBed } from "./gvisor-bed.ts";

describe("the router, when a program that it starts fails,", () => {
  const path = process.env["PATH"];
  let stateDir: string;
  let before: MachineState;
  let bed: GvisorBed;

  beforeAll(async () => {
    stateDir = realpathSync(mkdtempSync(join(tmpdir(), "torpor-test-router-")));
    before = await lookAtMachine(stateDir);
    bed = await openGvisorBed(stateDir);
  });
  afterEach(repair);
  afterAll(async () => {
    try {
      await bed?.close();
      await expectNoLeaks(stateDir, before);
    } finally {
      rmSync(stateDir, { recursive: true, force: true });
    }
  });

  /** Puts a program that only fails before the real one, until `repair`. */
  function breakProgram(name: string): void {
    const directory = join(stateDir, `broken-${name}`);
    mkdirSync(directory, { recursive: true });
    writeFileSync(join(directory, name), "#!/bin/sh\nexit 9\n");
    chmodSync(join(directory, name), 0o755);
    process.env["PATH"] = `${directory}:${path}`;
  }
  function repair(): void {
    process.env["PATH"] = path;
  }

  /** A slot on which nothing runs, with a flow to the name server that the host's kernel tracks. */
  async function slotWithFlow(slot: number): Promise<string> {
    const { netns, address } = await bed.router.addSlot(slot, "internet");
    const question = `import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"?", ("${GATEWAY_ADDRESS}", 53))`;
    await run(["ip", "netns", "exec", netns, "python3", "-c", question]);
    return address;
  }
  const isTracked = async (address: string): Promise<boolean> =>
    (await readFile("/proc/net/nf_conntrack", "utf8")).includes(` src=${address} `);
  const inPlace = async (slot: number): Promise<boolean> => (await bed.router.slotsInPlace()).has(slot);

  async function closed(): Promise<string> {
    const { routerNetns } = instanceNames(stateDir);
    return (await run(["ip", "netns", "exec", routerNetns, "nft", "list", "set", "ip", "torpor", "closed"]))
      .stdout;
  }

  test("removes a slot whose flows cannot be forgotten, and makes it anew only once they are", async () => {
    const address = await slotWithFlow(7);
    expect(await isTracked(address)).toBe(true);
    breakProgram("perl");
    await bed.router.removeSlot(7);
    await expect(bed.router.addSlot(7, "internet")).rejects.toThrow(/File exists/);
    expect([await inPlace(7), await isTracked(address)]).toEqual([true, true]);
    repair();
    expect((await bed.slots.sweep()).swept).toEqual([7]);
    expect([await inPlace(7), await isTracked(address)]).toEqual([false, false]);
    const other = await slotWithFlow(8);
    await slotWithFlow(7);
    await bed.router.removeSlot(7);
    expect([await isTracked(address), await isTracked(other)]).toEqual([false, true]);
    await bed.router.removeSlot(8);
  });

  test("does what it refuses attempts for all the same, and refuses none for long", async () => {
    await bed.router.addSlot(9, "internet");
    breakProgram("perl");
    expect(await bed.router.withoutAttempts(9, () => Promise.resolve("written"))).toBe("written");
    expect(await closed()).not.toContain("s9");
    breakProgram("nft");
    expect(await bed.router.withoutAttempts(9, () => Promise.resolve("written"))).toBe("written");
    repair();
    const written = await bed.router.withoutAttempts(9, async () => {
      expect(await closed()).toContain("s9");
      breakProgram("nft");
      return "written";
    });
    repair();
    expect(written).toBe("written");
    expect(await closed()).toMatch(/s9" expires 4m/);
    await bed.router.removeSlot(9);
    expect(await closed()).not.toContain("s9");
  });
});
