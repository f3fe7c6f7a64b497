import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { eventually, useInstance } from "../src/index.ts";
import { e2bClients, type E2bSandbox, e2bSandbox } from "./e2b-sandbox.ts";

/** Prints 1..N, one a line, with a pause of 1 ms after every hundred, then ends with 7. */
const counter = (upTo: number): string =>
  `python3 -c 'import sys, time
for n in range(1, ${upTo} + 1):
    print(n, flush=n % 10 == 0)
    if n % 100 == 0: time.sleep(0.001)
sys.exit(7)'`;
const numbers = (upTo: number): string => Array.from({ length: upTo }, (_, n) => `${n + 1}\n`).join("");

describe.each(e2bClients)("what E2B's client $version follows while its sandbox is copied", (client) => {
  const torpor = useInstance({ server: true });
  let sandbox: E2bSandbox;
  beforeAll(async () => {
    sandbox = await e2bSandbox(torpor(), client);
  });
  afterAll(async () => {
    await sandbox?.kill();
  });

  test("a command goes on over snapshots and a fork: every line once, in order, and its exit code", async () => {
    const upTo = 300_000;
    const handle = await sandbox.commands.run(counter(upTo), { background: true, timeoutMs: 120_000 });
    const goesOn = async (): Promise<void> => {
      const before = handle.stdout.length;
      await eventually("it counts on", () => handle.stdout.length > before + 20_000);
    };
    await goesOn();
    const first = await sandbox.createSnapshot();
    await goesOn();
    const [{ sandbox: copy } = {}] = (await sandbox.fork()) as { sandbox?: E2bSandbox }[];
    await goesOn();
    await sandbox.createSnapshot();
    await expect(handle.wait()).rejects.toThrow(/exit status 7/);
    expect(handle.exitCode).toBe(7);
    expect(handle.stdout === numbers(upTo)).toBe(true);
    await copy?.kill();
    expect(first.snapshotId).not.toBe("");
  });

  test("a command that another has connected to goes on for both: no line twice, and none left out", async () => {
    const upTo = 120_000;
    const started = await sandbox.commands.run(counter(upTo), { background: true, timeoutMs: 120_000 });
    await eventually("its output", () => started.stdout.length > 20_000);
    const connected = await sandbox.commands.connect(started.pid, { timeoutMs: 120_000 });
    for (let snapshots = 0; snapshots < 2; snapshots++) {
      const before = connected.stdout.length;
      await eventually("it counts on", () => connected.stdout.length > before + 20_000);
      await sandbox.createSnapshot();
    }
    for (const handle of [connected, started]) {
      await expect(handle.wait()).rejects.toThrow(/exit status 7/);
      expect(handle.exitCode).toBe(7);
    }
    expect(started.stdout === numbers(upTo)).toBe(true);
    expect(connected.stdout.length).toBeGreaterThan(100_000);
    expect(numbers(upTo).endsWith(connected.stdout)).toBe(true);
  });

  test("a terminal goes on, and so does input to it", async () => {
    let screen = "";
    const terminal = await sandbox.pty.create({
      cols: 80,
      rows: 24,
      timeoutMs: 0,
      onData: (bytes) => void (screen += Buffer.from(bytes).toString()),
    });
    const type = (text: string) => sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode(text));
    await type("echo be''fore\n");
    await eventually("its echo", () => screen.includes("before\r\n"));
    await sandbox.createSnapshot();
    await type("echo af''ter; exit 3\n");
    await terminal.wait().catch(() => {});
    expect(screen).toContain("after\r\n");
    expect(screen.split("before\r\n")).toHaveLength(2);
    expect(terminal.exitCode).toBe(3);
  });

  test("a time limit holds, in E2B's words", async () => {
    const handle = await sandbox.commands.run("echo begun; sleep 60", { background: true, timeoutMs: 2_500 });
    await eventually("its output", () => handle.stdout === "begun\n");
    await sandbox.createSnapshot();
    await expect(handle.wait()).rejects.toThrow(/timed out/);
    await eventually("its end", async () => (await sandbox.commands.list()).length === 0);
  });

  test("a client that leaves after a snapshot leaves its command running", async () => {
    const handle = await sandbox.commands.run("while sleep 0.05; do echo on; done", {
      background: true,
      timeoutMs: 0,
    });
    await eventually("its output", () => handle.stdout !== "");
    await sandbox.createSnapshot();
    const before = handle.stdout.length;
    await eventually("it goes on", () => handle.stdout.length > before);
    await handle.disconnect();
    expect((await sandbox.commands.list()).map(({ pid }) => pid)).toContain(handle.pid);
    const again = await sandbox.commands.connect(handle.pid);
    await eventually("its output for whoever connects", () => again.stdout !== "");
    expect(await again.kill()).toBe(true);
  });
});
