import { Sandbox, Torpor } from "@torpor/sdk";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { eventually } from "../src/eventually.ts";
import { sandboxProcess } from "../src/sandbox-process.ts";
import { useInstance } from "../src/use-instance.ts";

const MIB = 1024 * 1024;

describe("the meter of real machines", () => {
  const torpor = useInstance({ server: true, pool: 1, shells: 1 });
  let client: Torpor;
  let sandbox: Sandbox;
  const options = (): { url: string; apiKey: string } => ({ url: torpor().url, apiKey: torpor().apiKey });

  beforeAll(async () => {
    client = new Torpor(options());
    sandbox = await Sandbox.create({ template: "base", tenant: "metered", persistent: true, ...options() });
  });
  afterAll(async () => {
    await sandbox?.destroy();
  });

  test("counts CPU seconds, memory and traffic as they were used, and none of what its copy used before", async () => {
    const began = performance.now();
    await sandbox.exec(
      "python3 -c 'import time; t = time.process_time()\nwhile time.process_time() < t + 2: pass'",
    );
    await sandbox.files.write("/workspace/blob", new Uint8Array(4 * MIB));
    await sandbox.exec("python3 -c 'print(len(bytearray(60_000_000)))'");
    await sandbox.hibernate();
    const seconds = (performance.now() - began) / 1_000;
    const [first] = (await client.usage.intervals(sandbox.id)).filter(({ state }) => state === "running");
    expect(first?.cpuSeconds).toBeGreaterThan(2);
    expect(first?.cpuSeconds).toBeLessThan(seconds * 2);
    expect(first?.memoryPeakBytes).toBeGreaterThan(60_000_000);
    expect(first?.memoryPeakBytes).toBeLessThan(1024 * MIB);
    expect(first?.networkInBytes).toBeGreaterThan(4 * MIB);
    expect(first?.networkInBytes).toBeLessThan(8 * MIB);
    expect(first?.networkOutBytes).toBeGreaterThan(0);
  });

  test("counts no compute while it sleeps, and its image instead", async () => {
    const [before] = (await client.usage.get({ sandboxId: sandbox.id, groupBy: ["sandbox"] })).items;
    await new Promise((resolve) => setTimeout(resolve, 300));
    const [after] = (await client.usage.get({ sandboxId: sandbox.id, groupBy: ["sandbox"] })).items;
    expect(after?.vcpuSeconds).toBe(before?.vcpuSeconds);
    expect(after?.cpuSeconds).toBe(before?.cpuSeconds);
    expect(after?.imageGibSeconds).toBeGreaterThan(before?.imageGibSeconds ?? Number.POSITIVE_INFINITY);
  });

  test("loses nothing over a kill -9 of host and server in mid-interval", async () => {
    await sandbox.exec(
      "python3 -c 'import time; t = time.process_time()\nwhile time.process_time() < t + 1: pass'",
    );
    await torpor().killServer();
    await torpor().killHost();
    await torpor().startHost();
    await torpor().startServer();
    client = new Torpor(options());
    sandbox = await client.sandboxes.get(sandbox.id);
    await eventually("it answers again", async () => (await sandbox.exec("echo up")).stdout === "up\n");
    await sandbox.destroy();
    const intervals = await client.usage.intervals(sandbox.id);
    for (const [index, { from }] of intervals.entries())
      if (index > 0) expect(from).toEqual(intervals[index - 1]?.to);
    expect(intervals.map(({ state }) => state).filter((state) => state === "running")).toHaveLength(2);
    const second = intervals.findLast(({ state }) => state === "running");
    const rest = intervals.filter(({ number }) => number >= (second?.number ?? 0));
    expect(rest.reduce((sum, { cpuSeconds }) => sum + cpuSeconds, 0)).toBeGreaterThan(1);
    expect(intervals.every(({ uncertainMs }) => uncertainMs === 0)).toBe(true);
  });

  test("ends where a runtime that died while no host lived was last seen, and says what is not counted", async () => {
    const other = await client.sandboxes.create({ template: "base", tenant: "metered" });
    const pid = sandboxProcess(torpor(), other.id);
    await torpor().killHost();
    process.kill(pid, "SIGKILL");
    await torpor().startHost();
    await eventually(
      "it has failed",
      async () => (await client.sandboxes.get(other.id)).info.state === "failed",
    );
    await other.destroy();
    const intervals = await client.usage.intervals(other.id);
    expect(intervals.reduce((sum, { uncertainMs }) => sum + uncertainMs, 0)).toBeGreaterThan(0);
    const [item] = (await client.usage.get({ sandboxId: other.id, groupBy: ["sandbox"] })).items;
    expect(item?.uncertainSeconds).toBeGreaterThan(0);
    expect(item?.seconds.running).toBeLessThan(1); // it was never seen after it was made
  });

  test("puts to sleep what is awake when the budget is spent, and wakes it when there is more", async () => {
    const awake = await client.sandboxes.create({ template: "base", tenant: "spent" });
    await client.usage.setBudget(0, { tenant: "spent" });
    await eventually(
      "it sleeps",
      async () => (await client.sandboxes.get(awake.id)).info.state === "hibernated",
    );
    await expect(client.sandboxes.create({ template: "base", tenant: "spent" })).rejects.toMatchObject({
      code: "budget_exhausted",
    });
    await client.usage.removeBudget({ tenant: "spent" });
    expect((await awake.exec("echo back")).stdout).toBe("back\n");
    await awake.destroy();
  });
});
