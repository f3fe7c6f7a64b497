import { spawn } from "node:child_process";
import { copyFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { CodedError } from "@torpor/protocol";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { isAlive, processIdentity, type ProcessIdentity } from "../src/process-identity.ts";
import { claimRunFile } from "../src/run-file.ts";

async function spawned(
  argv: [string, ...string[]],
  action: (identity: ProcessIdentity, kill: () => Promise<void>) => void | Promise<void>,
): Promise<void> {
  const child = spawn(argv[0], argv.slice(1), { stdio: "ignore" });
  const ended = new Promise<void>((resolve) => child.once("exit", () => resolve()));
  const kill = async (): Promise<void> => {
    child.kill("SIGKILL");
    await ended;
  };
  try {
    await new Promise((resolve) => child.once("spawn", resolve));
    const identity = processIdentity(child.pid ?? 0);
    if (identity === undefined) throw new Error("the child has no identity");
    await action(identity, kill);
  } finally {
    await kill();
  }
}

describe("a process's identity", () => {
  test("names the process while it lives, and nothing afterwards", () =>
    spawned(["sleep", "60"], async (identity, kill) => {
      expect(isAlive(identity)).toBe(true);
      await kill();
      expect(isAlive(identity)).toBe(false);
      expect(processIdentity(identity.pid)).toBeUndefined();
    }));

  test("is not that of another process with the same pid", () => {
    const own = processIdentity(process.pid);
    expect(own).toBeDefined();
    expect(isAlive({ pid: process.pid, startTime: (own?.startTime ?? 0) + 1 })).toBe(false);
  });

  test("is read right whatever the process is called", async () => {
    const directory = mkdtempSync(join(tmpdir(), "torpor-test-identity-"));
    const program = join(directory, ") R 1 2 (x");
    copyFileSync("/bin/sleep", program);
    try {
      await spawned([program, "60"], ({ pid, startTime }) => {
        expect(readFileSync(`/proc/${pid}/stat`, "utf8")).toContain("() R 1 2 (x)");
        expect(startTime).toBeGreaterThan(1000);
      });
    } finally {
      rmSync(directory, { recursive: true });
    }
  });

  test("is none for a pid that never was", () => {
    expect(processIdentity(2 ** 22 + 1)).toBeUndefined();
    expect(processIdentity(0)).toBeUndefined();
    expect(processIdentity(Number.NaN)).toBeUndefined();
  });
});

describe("the run file", () => {
  let directory: string;
  let path: string;
  beforeEach(() => {
    directory = mkdtempSync(join(tmpdir(), "torpor-test-run-file-"));
    path = join(directory, "host.json");
  });
  afterEach(() => rmSync(directory, { recursive: true }));

  test("says who serves and where, and is gone when let go of", () => {
    const release = claimRunFile(path, { socket: "/run/host.sock" });
    expect(JSON.parse(readFileSync(path, "utf8"))).toEqual({
      pid: process.pid,
      start_time: processIdentity(process.pid)?.startTime,
      socket: "/run/host.sock",
    });
    release();
    expect(() => readFileSync(path)).toThrow("ENOENT");
    release();
  });

  test("is refused while another living process holds it, naming that one", () =>
    spawned(["sleep", "60"], ({ pid, startTime }) => {
      writeFileSync(path, JSON.stringify({ pid, start_time: startTime }));
      expect(() => claimRunFile(path, {})).toThrow(CodedError);
      expect(() => claimRunFile(path, {})).toThrow(String(pid));
      expect(JSON.parse(readFileSync(path, "utf8"))).toMatchObject({ pid });
    }));

  test("is taken from a dead process, from a later one with its pid, and from one cut off by a crash", async () => {
    const leftovers: string[] = ["", "{", '{"pid":', "null", "[]", '{"pid":"x"}'];
    await spawned(["sleep", "60"], async ({ pid, startTime }, kill) => {
      leftovers.push(JSON.stringify({ pid, start_time: startTime - 1 }));
      await kill();
      leftovers.push(JSON.stringify({ pid, start_time: startTime }));
    });
    for (const leftover of leftovers) {
      writeFileSync(path, leftover);
      claimRunFile(path, {})();
    }
  });
});
