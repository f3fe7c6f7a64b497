import { Sandbox as Sandbox251, SandboxNotFoundError } from "e2b";
import { Sandbox as Sandbox245 } from "e2b-2.45";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { e2bOptions, eventually, useInstance } from "../src/index.ts";

/** Their types differ where their wires do; what is used here is the same in both. */
const VERSIONS: { version: string; Sandbox: typeof Sandbox251 }[] = [
  { version: "2.51.0", Sandbox: Sandbox251 },
  { version: "2.45.0", Sandbox: Sandbox245 as unknown as typeof Sandbox251 },
];

describe("the life of a sandbox through E2B's clients", () => {
  const torpor = useInstance({ server: true });
  const options = () => e2bOptions(torpor());

  describe.each(VERSIONS)("E2B's client $version", ({ Sandbox }) => {
    let sandbox: Sandbox251;
    beforeAll(async () => {
      sandbox = await Sandbox.create("base", {
        ...options(),
        timeoutMs: 120_000,
        metadata: { purpose: "life & death", "a=b": "c d" },
        envs: { GREETING: "hello" },
      });
    });
    afterAll(async () => {
      await sandbox.kill();
    });

    test("runs commands with the environment of the create, and of the call over it", async () => {
      expect((await sandbox.commands.run("echo $GREETING")).stdout).toBe("hello\n");
      const over = await sandbox.commands.run("echo $GREETING", { envs: { GREETING: "bye" } });
      expect(over.stdout).toBe("bye\n");
    });

    test("runs commands as the user it names", async () => {
      expect((await sandbox.commands.run("id -un")).stdout).toBe("user\n");
      expect((await sandbox.commands.run("id -un", { user: "root" })).stdout).toBe("root\n");
    });

    test("tells a command that fails by its exit code", async () => {
      await expect(sandbox.commands.run("echo out; exit 7")).rejects.toMatchObject({
        exitCode: 7,
        stdout: "out\n",
      });
    });

    test("shows what it is and when it ends", async () => {
      const info = await sandbox.getInfo();
      expect(info).toMatchObject({
        sandboxId: sandbox.sandboxId,
        templateId: "base",
        state: "running",
        metadata: { purpose: "life & death", "a=b": "c d" },
        envdVersion: "0.6.13",
      });
      const left = info.endAt.getTime() - info.startedAt.getTime();
      expect(left).toBe(120_000);
    });

    test("sets the end sooner and later than it was", async () => {
      await sandbox.setTimeout(60_000);
      const sooner = (await sandbox.getInfo()).endAt.getTime() - Date.now();
      expect(sooner).toBeGreaterThan(50_000);
      expect(sooner).toBeLessThanOrEqual(60_000);
      await sandbox.setTimeout(300_000);
      expect((await sandbox.getInfo()).endAt.getTime() - Date.now()).toBeGreaterThan(280_000);
    });

    test("puts the end off with a connect, and never brings it forward", async () => {
      const { endAt } = await sandbox.getInfo();
      const again = await Sandbox.connect(sandbox.sandboxId, { ...options(), timeoutMs: 10_000 });
      expect(again.sandboxId).toBe(sandbox.sandboxId);
      expect((await again.getInfo()).endAt).toEqual(endAt);
      await Sandbox.connect(sandbox.sandboxId, { ...options(), timeoutMs: 600_000 });
      expect((await again.getInfo()).endAt.getTime()).toBeGreaterThan(endAt.getTime());
    });

    test("keeps memory, processes and files over a pause, and its start", async () => {
      const { startedAt } = await sandbox.getInfo();
      await sandbox.files.write("kept.txt", "kept");
      const sleeper = await sandbox.commands.run("sleep 1000", { background: true });
      expect(await Sandbox.pause(sandbox.sandboxId, options())).toBe(true);
      const paused = await Sandbox.getInfo(sandbox.sandboxId, options());
      expect(paused.state).toBe("paused");
      expect(paused.startedAt).toEqual(startedAt);
      expect(await sandbox.isRunning()).toBe(false);
      const resumed = await Sandbox.connect(sandbox.sandboxId, { ...options(), timeoutMs: 200_000 });
      expect((await resumed.getInfo()).state).toBe("running");
      expect((await resumed.getInfo()).startedAt).toEqual(startedAt);
      expect(await resumed.files.read("kept.txt")).toBe("kept");
      expect((await resumed.commands.list()).map(({ pid }) => pid)).toContain(sleeper.pid);
      expect(await resumed.commands.kill(sleeper.pid)).toBe(true);
      const left = (await resumed.getInfo()).endAt.getTime() - Date.now();
      expect(left).toBeGreaterThan(180_000);
      expect(left).toBeLessThanOrEqual(200_000);
    });

    test("keeps files alone over a pause without memory, and boots from them when connected to", async () => {
      const { startedAt } = await sandbox.getInfo();
      await sandbox.files.write("without-memory.txt", "kept");
      await sandbox.commands.run("sleep 1234", { background: true });
      expect(await Sandbox.pause(sandbox.sandboxId, { ...options(), keepMemory: false })).toBe(true);
      expect(await Sandbox.pause(sandbox.sandboxId, { ...options(), keepMemory: false })).toBe(false);
      expect((await Sandbox.getInfo(sandbox.sandboxId, options())).state).toBe("paused");
      await expect(sandbox.files.read("without-memory.txt")).rejects.toThrow(); // no traffic wakes it
      const booted = await Sandbox.connect(sandbox.sandboxId, { ...options(), timeoutMs: 200_000 });
      expect(booted.sandboxId).toBe(sandbox.sandboxId);
      expect((await booted.getInfo()).startedAt).toEqual(startedAt);
      // The token, and what it was created with, are as ever.
      expect(await sandbox.files.read("without-memory.txt")).toBe("kept");
      const { stdout } = await sandbox.commands.run("echo $GREETING; pgrep -x sleep || echo none");
      expect(stdout).toBe("hello\nnone\n");
    });

    // Told so by 2.51 alone: the earlier client has no such option.
    const since251 = Sandbox === Sandbox251 ? test : undefined;
    since251?.("reboots what sleeps with its memory, when told to", async () => {
      await sandbox.commands.run("sleep 1234", { background: true });
      await sandbox.files.write("rebooted.txt", "kept");
      await Sandbox.pause(sandbox.sandboxId, options());
      await Sandbox251.connect(sandbox.sandboxId, { ...options(), onResume: "reboot" });
      const { stdout } = await sandbox.commands.run("cat ~/rebooted.txt; pgrep -x sleep || echo none");
      expect(stdout).toBe("keptnone\n");
    });

    test("sleeps without memory at its timeout when that was asked for, and wakes by a connect alone", async () => {
      const lifecycle = { onTimeout: { action: "pause", keepMemory: false } } as const;
      const sleeper = await Sandbox.create("base", { ...options(), timeoutMs: 3000, lifecycle });
      try {
        await sleeper.files.write("kept.txt", "kept");
        await sleeper.commands.run("sleep 1234", { background: true });
        await eventually("it to be paused", async () => (await sleeper.getInfo()).state === "paused");
        await Sandbox.connect(sleeper.sandboxId, options());
        expect(await sleeper.files.read("kept.txt")).toBe("kept");
        expect((await sleeper.commands.run("pgrep -x sleep || echo none")).stdout).toBe("none\n");
      } finally {
        await sleeper.kill();
      }
    });

    test("refuses a second pause by false, and goes on after the third resume as after the first", async () => {
      for (let round = 1; round <= 3; round += 1) {
        expect(await Sandbox.pause(sandbox.sandboxId, options())).toBe(true);
        if (round === 1) expect(await Sandbox.pause(sandbox.sandboxId, options())).toBe(false);
        const resumed = await Sandbox.connect(sandbox.sandboxId, options());
        await resumed.files.write(`round-${round}`, String(round));
      }
      expect((await sandbox.commands.run("cat ~/round-*")).stdout).toBe("123");
    });

    test("lists what runs and what is paused, by state, metadata and template, in pages", async () => {
      const second = await Sandbox.create("base", {
        ...options(),
        metadata: { purpose: "life & death", n: "2" },
      });
      try {
        await Sandbox.pause(second.sandboxId, options());
        const ids = async (opts: Parameters<typeof Sandbox.list>[0]): Promise<string[]> =>
          (await Sandbox.list({ ...options(), ...opts }).nextItems()).map(({ sandboxId }) => sandboxId);
        const query = { metadata: { purpose: "life & death" } };
        expect(await ids({ query })).toEqual([second.sandboxId, sandbox.sandboxId]);
        expect(await ids({ query: { ...query, state: ["paused"] } })).toEqual([second.sandboxId]);
        expect(await ids({ query: { ...query, state: ["running"] } })).toEqual([sandbox.sandboxId]);
        expect(await ids({ query: { metadata: { "a=b": "c d" } } })).toEqual([sandbox.sandboxId]);
        expect(await ids({ query: { metadata: { purpose: "other" } } })).toEqual([]);
        const pages = Sandbox.list({ ...options(), query, limit: 1 });
        expect((await pages.nextItems()).map(({ sandboxId }) => sandboxId)).toEqual([second.sandboxId]);
        expect(pages.hasNext).toBe(true);
        expect((await pages.nextItems()).map(({ sandboxId }) => sandboxId)).toEqual([sandbox.sandboxId]);
        expect(pages.hasNext).toBe(false);
      } finally {
        expect(await second.kill()).toBe(true);
      }
    });

    test("takes a snapshot that sandboxes are made from, and deletes it", async () => {
      await sandbox.files.write("of-snapshot", "then");
      const { snapshotId } = await sandbox.createSnapshot({ name: "of-then" });
      await sandbox.files.write("of-snapshot", "now");
      const [copy, named] = await Promise.all([
        Sandbox.create(snapshotId, options()),
        Sandbox.create("of-then", options()),
      ]);
      expect(copy.sandboxId).not.toBe(sandbox.sandboxId);
      for (const each of [copy, named]) expect(await each.files.read("of-snapshot")).toBe("then");
      await named.kill();
      expect(await sandbox.files.read("of-snapshot")).toBe("now");
      const listed = await Sandbox.listSnapshots({ ...options(), sandboxId: sandbox.sandboxId }).nextItems();
      expect(listed.map((each) => each.snapshotId)).toEqual([snapshotId]);
      await copy.kill();
      expect(await Sandbox.deleteSnapshot(snapshotId, options())).toBe(true);
      expect(await Sandbox.deleteSnapshot(snapshotId, options())).toBe(false);
      await expect(Sandbox.create(snapshotId, options())).rejects.toThrow(/404/);
    });

    test("has metrics while it runs", async () => {
      const [metric] = await sandbox.getMetrics();
      expect(metric?.memTotal).toBeGreaterThan(0);
      expect(metric?.diskTotal).toBeGreaterThan(0);
      for (const used of ["memUsed", "diskUsed"] as const) expect(metric?.[used]).toBeGreaterThan(0);
      const all = await eventually("a past of at least one sample", async () => {
        const found = await sandbox.getMetrics({
          start: new Date(Date.now() - 3_600_000),
          end: new Date(),
        });
        return found.length > 1 && found;
      });
      const times = all.map(({ timestamp }) => timestamp.getTime());
      expect(times).toEqual(times.toSorted((a, b) => a - b));
      const past = await sandbox.getMetrics({ end: new Date(Date.now() - 3_600_000) });
      expect(past).toEqual([]);
    });

    test("is not there once it is killed", async () => {
      const gone = await Sandbox.create("base", options());
      expect(await gone.kill()).toBe(true);
      expect(await Sandbox.kill(gone.sandboxId, options())).toBe(false);
      expect(await gone.isRunning()).toBe(false);
      await expect(Sandbox.connect(gone.sandboxId, options())).rejects.toThrow(/not.found|doesn't exist/i);
      await expect(gone.commands.run("true")).rejects.toThrow();
    });
  });

  test("a sandbox whose timeout is over is killed, and one that is to pause then is paused", async () => {
    const killed = await Sandbox251.create("base", { ...options(), timeoutMs: 2_000 });
    const paused = await Sandbox251.create("base", {
      ...options(),
      timeoutMs: 2_000,
      lifecycle: { onTimeout: "pause" },
    });
    await eventually("the end of the one", async () => !(await killed.isRunning()), 15_000);
    await expect(killed.getInfo()).rejects.toThrow(SandboxNotFoundError);
    await eventually(
      "the sleep of the other",
      async () => (await paused.getInfo()).state === "paused",
      15_000,
    );
    await expect(paused.commands.run("true")).rejects.toThrow();
    expect((await paused.getInfo()).lifecycle).toMatchObject({ onTimeout: "pause", autoResume: false });
    const again = await Sandbox251.connect(paused.sandboxId, { ...options(), timeoutMs: 60_000 });
    expect((await again.commands.run("echo back")).stdout).toBe("back\n");
    expect((await again.getInfo()).lifecycle).toMatchObject({ onTimeout: "pause" });
    await again.kill();
  });

  test("a paused sandbox is kept beyond the timeout it was created with", async () => {
    const begunAt = Date.now();
    const sandbox = await Sandbox251.create("base", { ...options(), timeoutMs: 3_000 });
    await sandbox.pause();
    const { endAt } = await sandbox.getInfo();
    expect(endAt.getTime()).toBeLessThanOrEqual(Date.now());
    await eventually("its timeout to pass", () => Date.now() > begunAt + 4_000, 10_000);
    expect((await sandbox.getInfo()).state).toBe("paused");
    const again = await Sandbox251.connect(sandbox.sandboxId, { ...options(), timeoutMs: 60_000 });
    expect((await again.commands.run("echo back")).stdout).toBe("back\n");
    await again.kill();
  });

  test("a paused sandbox that is to resume by itself does so for a command, and has an end again", async () => {
    const sandbox = await Sandbox251.create("base", {
      ...options(),
      timeoutMs: 3_000,
      lifecycle: { onTimeout: "pause", autoResume: true },
    });
    await eventually("its sleep", async () => (await sandbox.getInfo()).state === "paused", 15_000);
    expect((await sandbox.commands.run("echo awake")).stdout).toBe("awake\n");
    const { state, endAt } = await sandbox.getInfo();
    expect(state).toBe("running");
    expect(endAt.getTime() - Date.now()).toBeGreaterThan(250_000);
    expect(endAt.getTime() - Date.now()).toBeLessThanOrEqual(300_000);
    await sandbox.kill();
  });

  test("a fork goes on with the memory of its parent, and ends by itself", async () => {
    const parent = await Sandbox251.create("base", { ...options(), metadata: { of: "parent" } });
    await parent.files.write("/tmp/shared", "before");
    const forks = await parent.fork({ count: 2 });
    expect(forks).toHaveLength(2);
    for (const child of forks) {
      if (child instanceof Error) throw child;
      expect(child.sandboxId).not.toBe(parent.sandboxId);
      expect(await child.files.read("/tmp/shared")).toBe("before");
      expect((await child.getInfo()).metadata).toEqual({ of: "parent" });
      await child.kill();
    }
    expect(await parent.isRunning()).toBe(true);
    await parent.pause();
    await expect(parent.fork()).rejects.toThrow(/paused/);
    await parent.kill();
  });
});
