import { describe, expect, test } from "vitest";
import { cycles } from "../src/cycles.ts";
import { useInstance } from "../src/use-instance.ts";

const COUNT = 50;
/** V8 takes memory while it has it; a leak of a sandbox's worth each time would be far above. */
const GROWTH_MIB = 64;

describe("creates and destroys, again and again", () => {
  // Nothing waits: how much does follows demand, and would be in the way of comparing.
  const torpor = useInstance({ server: true });

  test("leave nothing: files open, memory, namespaces, links, rules, mounts, cgroups and disk are as before", async () => {
    const { before, after } = await cycles(torpor(), COUNT);
    process.stdout.write(
      `${COUNT} cycles, before: ${JSON.stringify(before)}\n${COUNT} cycles, after:  ${JSON.stringify(after)}\n`,
    );
    const { hostRssMib, serverRssMib, machinesAndImagesMib, hostFds, serverFds, ...counts } = after;
    expect(before).toMatchObject(counts);
    // Connections kept alive come and go by a few.
    expect(hostFds - before.hostFds).toBeLessThanOrEqual(8);
    expect(serverFds - before.serverFds).toBeLessThanOrEqual(8);
    expect(hostRssMib - before.hostRssMib).toBeLessThan(GROWTH_MIB);
    expect(serverRssMib - before.serverRssMib).toBeLessThan(GROWTH_MIB);
    expect(machinesAndImagesMib - before.machinesAndImagesMib).toBeLessThanOrEqual(4);
  }, 300_000);
});
