import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { type CgroupMounts, CgroupTree, findCgroupMounts } from "../src/cgroup.ts";

const V2_ONLY = `24 30 0:22 / /proc rw,nosuid - proc proc rw
35 24 0:30 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
`;
const HYBRID = `26 20 0:23 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
27 26 0:24 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
28 26 0:25 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
29 26 0:26 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
30 26 0:27 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
31 26 0:28 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
`;

describe("finding the cgroup controllers", () => {
  test("takes the controllers the unified tree has on a v2 machine", () => {
    expect(findCgroupMounts(V2_ONLY, () => ["cpuset", "cpu", "io", "memory", "pids"])).toEqual({
      version: 2,
      directories: { cpu: "/sys/fs/cgroup", memory: "/sys/fs/cgroup", pids: "/sys/fs/cgroup" },
    });
  });

  test("does without a controller the unified tree has not", () => {
    expect(findCgroupMounts(V2_ONLY, () => ["cpu"]).directories).toEqual({ cpu: "/sys/fs/cgroup" });
  });

  test("takes the v1 mounts of a hybrid machine, one a controller, also where one mount has two", () => {
    const read: string[] = [];
    const mounts = findCgroupMounts(HYBRID, (directory) => {
      read.push(directory);
      return [];
    });
    expect(mounts).toEqual({
      version: 1,
      directories: {
        cpu: "/sys/fs/cgroup/cpu,cpuacct",
        cpuacct: "/sys/fs/cgroup/cpu,cpuacct",
        memory: "/sys/fs/cgroup/memory",
        pids: "/sys/fs/cgroup/pids",
      },
    });
    expect(read).toEqual([]);
  });

  test("is not misled by a named v1 hierarchy beside a v2 tree", () => {
    const systemd = "30 26 0:27 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd\n";
    expect(findCgroupMounts(systemd + V2_ONLY, () => ["memory"])).toEqual({
      version: 2,
      directories: { memory: "/sys/fs/cgroup" },
    });
  });

  test("finds nothing on a machine without cgroups, and in text that is none of its business", () => {
    expect(findCgroupMounts("", () => []).directories).toEqual({});
    expect(findCgroupMounts("nonsense\n1 2 - \n - cgroup\n", () => []).directories).toEqual({});
  });
});

describe("a machine's cgroup", () => {
  let root: string;
  const limits = { cpu: 1.5, memoryMib: 640, pids: 8192 };

  beforeEach(() => {
    root = mkdtempSync(join(tmpdir(), "torpor-test-cgroup-"));
  });
  afterEach(() => rmSync(root, { recursive: true, force: true }));

  function v2(): CgroupMounts {
    return { version: 2, directories: { cpu: root, memory: root, pids: root } };
  }
  function v1(): CgroupMounts {
    for (const name of ["cpu", "memory", "pids"]) mkdirSync(join(root, name), { recursive: true });
    return {
      version: 1,
      directories: {
        cpu: join(root, "cpu"),
        cpuacct: join(root, "cpu"),
        memory: join(root, "memory"),
        pids: join(root, "pids"),
      },
    };
  }

  test("hands the controllers down and writes the limits as v2 takes them", () => {
    const tree = new CgroupTree(v2(), "torpor-abcdef");
    tree.open();
    expect(readFileSync(join(root, "cgroup.subtree_control"), "utf8")).toBe("+cpu +memory +pids");
    expect(readFileSync(join(root, "torpor-abcdef", "cgroup.subtree_control"), "utf8")).toBe(
      "+cpu +memory +pids",
    );
    const group = tree.group("7");
    group.create(limits);
    const directory = join(root, "torpor-abcdef", "7");
    expect(readFileSync(join(directory, "cpu.max"), "utf8")).toBe("150000 100000");
    expect(readFileSync(join(directory, "memory.max"), "utf8")).toBe("671088640");
    expect(readFileSync(join(directory, "pids.max"), "utf8")).toBe("8192");
    expect(group.joinFiles).toEqual([join(directory, "cgroup.procs")]);
    expect([...tree.children()]).toEqual(["7"]);
  });

  test("writes the limits as v1 takes them, and joins every hierarchy once", () => {
    const group = new CgroupTree(v1(), "torpor-abcdef").group("7");
    group.create(limits);
    const at = (controller: string, file: string): string =>
      readFileSync(join(root, controller, "torpor-abcdef", "7", file), "utf8");
    expect([at("cpu", "cpu.cfs_period_us"), at("cpu", "cpu.cfs_quota_us")]).toEqual(["100000", "150000"]);
    expect(at("memory", "memory.limit_in_bytes")).toBe("671088640");
    expect(at("pids", "pids.max")).toBe("8192");
    expect(group.joinFiles).toEqual(
      ["cpu", "memory", "pids"].map((controller) =>
        join(root, controller, "torpor-abcdef", "7", "cgroup.procs"),
      ),
    );
  });

  test("is kept from swap where the kernel counts it, and not elsewhere", () => {
    for (const [mounts, folder, file, value] of [
      [v2(), root, "memory.swap.max", "0"],
      [v1(), join(root, "memory"), "memory.memsw.limit_in_bytes", "33554432"],
    ] as const) {
      const group = new CgroupTree(mounts, "t").group("1");
      group.create(limits);
      const path = join(folder, "t", "1", file);
      group.withoutSwap(32);
      expect(existsSync(path)).toBe(false);
      writeFileSync(path, "");
      group.withoutSwap(32);
      expect(readFileSync(path, "utf8")).toBe(value);
    }
  });

  test("lets others go before it, on either version", () => {
    new CgroupTree(v2(), "t").group("1").create(limits);
    new CgroupTree(v2(), "t").group("1").yieldCpu();
    expect(readFileSync(join(root, "t", "1", "cpu.weight"), "utf8")).toBe("10");
    const group = new CgroupTree(v1(), "t").group("1");
    group.create(limits);
    group.yieldCpu();
    expect(readFileSync(join(root, "cpu", "t", "1", "cpu.shares"), "utf8")).toBe("102");
  });

  test("gives a sliver of CPU at least what the kernel accepts", () => {
    new CgroupTree(v2(), "t").group("1").create({ ...limits, cpu: 0.001 });
    expect(readFileSync(join(root, "t", "1", "cpu.max"), "utf8")).toBe("1000 100000");
  });

  test("reads the counters of v2", () => {
    const group = new CgroupTree(v2(), "t").group("1");
    group.create(limits);
    const write = (file: string, text: string): void => writeFileSync(join(root, "t", "1", file), text);
    write("cpu.stat", "usage_usec 2500\nuser_usec 2000\n");
    write("memory.current", "4096\n");
    write("memory.peak", "8192\n");
    write("memory.events", "low 0\nhigh 0\nmax 3\noom 2\noom_kill 1\noom_group_kill 0\n");
    expect(group.usage()).toEqual({ cpuMs: 2.5, memoryBytes: 4096, memoryPeakBytes: 8192, oomKills: 1 });
  });

  test("reads the counters of v1", () => {
    const group = new CgroupTree(v1(), "t").group("1");
    group.create(limits);
    writeFileSync(join(root, "cpu", "t", "1", "cpuacct.usage"), "2500000\n");
    writeFileSync(join(root, "memory", "t", "1", "memory.usage_in_bytes"), "4096\n");
    writeFileSync(join(root, "memory", "t", "1", "memory.max_usage_in_bytes"), "8192\n");
    writeFileSync(
      join(root, "memory", "t", "1", "memory.oom_control"),
      "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n",
    );
    expect(group.usage()).toEqual({ cpuMs: 2.5, memoryBytes: 4096, memoryPeakBytes: 8192, oomKills: 4 });
  });

  test("counts nothing, and has nobody in it, when it does not exist", async () => {
    const group = new CgroupTree(v2(), "t").group("1");
    expect(group.usage()).toEqual({ cpuMs: 0, memoryBytes: 0, memoryPeakBytes: 0, oomKills: 0 });
    expect(group.pids()).toEqual([]);
    await group.destroy();
  });

  test("is removed when empty; one that cannot be says so within its time", async () => {
    const tree = new CgroupTree(v2(), "t");
    mkdirSync(join(root, "t", "1"), { recursive: true });
    const inPlace: string[][] = [];
    await tree.group("1").destroy({ onEmpty: () => void inPlace.push([...tree.children()]) });
    expect([inPlace, [...tree.children()]]).toEqual([[["1"]], []]);
    tree.group("2").create(limits); // an ordinary directory: its files keep it from being removed
    await expect(tree.group("2").destroy({ timeoutMs: 30 })).rejects.toThrow(
      /cgroup .*\/t\/2 cannot be removed/,
    );
  });

  test("does without limits on a machine that has no controllers", async () => {
    const tree = new CgroupTree({ version: 2, directories: {} }, "t");
    tree.open();
    const group = tree.group("1");
    group.create(limits);
    expect([group.joinFiles, group.pids(), [...tree.children()]]).toEqual([[], [], []]);
    await group.destroy();
    tree.close();
  });
});
