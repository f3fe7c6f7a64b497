import { spawn } from "node:child_process";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  realpathSync,
  rmdirSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { run, Scope } from "@torpor/base";
import { instanceNames, IP_FORWARD_MARK } from "@torpor/host";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { eventually } from "../src/eventually.ts";
import {
  expectNoLeaks,
  LEAK_KINDS,
  type LeakKind,
  leaksBetween,
  lookAtMachine,
  type MachineState,
} from "../src/leak-check.ts";

/** Makes one thing of a kind, as a host that forgets would leave it, and gives back how to take it away. */
type Leaver = (stateDir: string, undo: Scope) => Promise<void>;

const LEAVERS: Record<LeakKind, Leaver> = {
  process: async (stateDir, undo) => {
    const child = spawn("sleep", ["60"], { env: { TORPOR_STATE_DIR: stateDir } });
    undo.defer(async () => {
      const ended = new Promise((resolve) => child.once("exit", resolve));
      child.kill("SIGKILL");
      await ended;
    });
    await new Promise((resolve) => child.once("spawn", resolve));
  },
  "network namespace": async (stateDir, undo) => {
    const name = instanceNames(stateDir).slotNetns(7);
    await run(["ip", "netns", "add", name]);
    undo.defer(async () => void (await run(["ip", "netns", "del", name])));
  },
  link: async (stateDir, undo) => {
    const name = instanceNames(stateDir).uplink;
    await run(["ip", "link", "add", name, "type", "veth", "peer", "name", `${name}-p`]);
    undo.defer(async () => void (await run(["ip", "link", "del", name])));
  },
  route: async (_stateDir, undo) => {
    await run(["ip", "route", "add", "blackhole", "198.18.77.77/32"]);
    undo.defer(async () => void (await run(["ip", "route", "del", "blackhole", "198.18.77.77/32"])));
  },
  "nft table": async (stateDir, undo) => {
    const name = instanceNames(stateDir).nftTable;
    await run(["nft", "add", "table", "inet", name]);
    undo.defer(async () => void (await run(["nft", "delete", "table", "inet", name])));
  },
  mount: async (stateDir, undo) => {
    await run(["mount", "-t", "tmpfs", "none", stateDir]);
    undo.defer(async () => void (await run(["umount", stateDir])));
  },
  cgroup: async (stateDir, undo) => {
    const mount =
      /^(?:\S+ ){4}(\S+) .* - cgroup\S* \S+ \S*pids/m.exec(
        readFileSync("/proc/self/mountinfo", "utf8"),
      )?.[1] ?? "/sys/fs/cgroup";
    const path = join(mount, instanceNames(stateDir).cgroup);
    mkdirSync(path);
    undo.defer(() => rmdirSync(path));
  },
  "loop device": async (stateDir, undo) => {
    const file = join(stateDir, "disk");
    await run(["truncate", "-s", "1M", file]);
    const { stdout } = await run(["losetup", "--find", "--show", file]);
    undo.defer(async () => void (await run(["losetup", "--detach", stdout.trim()])));
  },
  ip_forward: async (_stateDir, undo) => {
    const path = "/proc/sys/net/ipv4/ip_forward";
    const before = readFileSync(path, "utf8");
    undo.defer(() => writeFileSync(path, before));
    writeFileSync(path, before.trim() === "1" ? "0" : "1");
  },
  "machine directory": async (stateDir, undo) => {
    const path = join(stateDir, "host", "machines", "7");
    mkdirSync(path, { recursive: true });
    undo.defer(() => rmSync(path, { recursive: true }));
  },
};

describe("the leak check", () => {
  let stateDir: string;
  let before: MachineState;

  beforeEach(async () => {
    stateDir = realpathSync(mkdtempSync(join(tmpdir(), "torpor-test-")));
    before = await lookAtMachine(stateDir);
  });
  afterEach(() => rmSync(stateDir, { recursive: true, force: true }));

  test.for(LEAK_KINDS)("finds a %s that stays, and is content when it is gone", async (kind, { skip }) => {
    if (kind === "ip_forward" && existsSync(IP_FORWARD_MARK))
      skip("another instance of Torpor keeps forwarding on, and needs it");
    const undo = new Scope();
    let found: string[];
    try {
      await LEAVERS[kind](stateDir, undo);
      found = leaksBetween(before, await lookAtMachine(stateDir));
    } finally {
      await undo.close();
    }
    expect(found.filter((leak) => leak.startsWith(`${kind}: `))).not.toHaveLength(0);
    await expectNoLeaks(stateDir, before);
  });

  test("waits for what is just ending, and names what does not end", async () => {
    const left = spawn("sleep", ["60"], { env: { TORPOR_STATE_DIR: stateDir } });
    const ending = spawn("sleep", ["0.3"], { env: { TORPOR_STATE_DIR: stateDir } });
    const ended = new Promise((resolve) => left.once("exit", resolve));
    try {
      await eventually(
        "both to run",
        () => existsSync(`/proc/${left.pid}`) && existsSync(`/proc/${ending.pid}`),
      );
      await expect(expectNoLeaks(stateDir, before, { settleMs: 1000 })).rejects.toThrow(
        new RegExp(`process: ${left.pid} sleep 60$`, "m"),
      );
    } finally {
      left.kill("SIGKILL");
      await ended;
    }
    await expectNoLeaks(stateDir, before);
  });

  test("does not judge what another instance owns", async () => {
    await using undo = new Scope();
    await LEAVERS["network namespace"]("/somebody/else", undo);
    await LEAVERS["nft table"]("/somebody/else", undo);
    expect(leaksBetween(before, await lookAtMachine(stateDir))).toEqual([]);
  });
});
