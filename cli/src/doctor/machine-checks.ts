import { spawnSync } from "node:child_process";
import { accessSync, constants, existsSync, readdirSync, readFileSync } from "node:fs";
import { statfs } from "node:fs/promises";
import { dirname, join } from "node:path";
import { run } from "@torpor/base";
import { formatBytes } from "../output/quantities.ts";
import type { Check, Finding } from "./check.ts";
import { findProgram } from "./find-program.ts";
import { findControllers, mountOf, parseAptSources, parseMemAvailable, parseMountInfo } from "./parsers.ts";

const GIB = 1024 ** 3;
/** A template and its golden snapshot take about 1.5 GiB; building them as much again. */
const WANTED_DISK_BYTES = 6 * GIB;
const LEAST_DISK_BYTES = 3 * GIB;
/** The pool of waiting sandboxes and one that works. */
const WANTED_MEMORY_BYTES = 2 * GIB;
const LEAST_MEMORY_BYTES = 0.75 * GIB;

/** File systems on which a database or a sparse disk image does not behave. */
const UNSUITABLE_FILE_SYSTEMS = new Set([
  "nfs",
  "nfs4",
  "cifs",
  "smb3",
  "9p",
  "vfat",
  "exfat",
  "fuse.sshfs",
  "virtiofs",
  "overlay",
]);

export interface MachineCheckOptions {
  env: NodeJS.ProcessEnv;
  stateDir: string;
}

/** Checks of the machine itself. */
export function machineChecks({ env, stateDir }: MachineCheckOptions): Check[] {
  const mounts = () => parseMountInfo(readFileSync("/proc/self/mountinfo", "utf8"));
  return [
    {
      name: "linux",
      why: "gVisor stands in for the Linux kernel and needs one below it, on x86_64 or arm64",
      required: true,
      probe: async () => {
        const found = `${readFileSync("/proc/sys/kernel/osrelease", "utf8").trim()} ${process.arch}`;
        const good = process.platform === "linux" && (process.arch === "x64" || process.arch === "arm64");
        return good
          ? { ok: true, found }
          : { ok: false, found, fix: "Use a Linux machine with an x86_64 or arm64 processor." };
      },
    },
    {
      name: "root",
      why: "'up' and 'down' make namespaces, mounts and cgroups; everything else works without",
      required: true,
      probe: async () => {
        if (process.getuid?.() === 0) return { ok: true, found: "root" };
        return probeSudo(findProgram("sudo", env["PATH"]));
      },
    },
    {
      name: "node",
      why: "runs the host, the server and this command line",
      required: true,
      probe: async () => {
        const [major = 0, minor = 0] = process.versions.node.split(".").map(Number);
        const good = major > 20 || (major === 20 && minor >= 11);
        return good
          ? { ok: true, found: process.version }
          : {
              ok: false,
              found: process.version,
              fix: "Install Node.js 20.11 or later. Debian 12's own package is version 18.",
            };
      },
    },
    {
      name: "cgroups",
      why: "limits each sandbox's cpu, memory and processes, and freezes those that wait",
      required: true,
      probe: async () => probeCgroups(mounts()),
    },
    {
      name: "loop devices",
      why: "each sandbox's disk is a file of its own, so that it is full when its limit says so",
      required: true,
      probe: async () => {
        const count = readdirSync("/dev").filter((entry) => /^loop\d+$/.test(entry)).length;
        if (existsSync("/dev/loop-control"))
          return { ok: true, found: `/dev/loop-control, ${count} devices (more are made when needed)` };
        return {
          ok: false,
          found: "no /dev/loop-control",
          fix: "Load the module: modprobe loop. In a container, run Torpor on the machine itself.",
        };
      },
    },
    {
      name: "kvm",
      why: "optional: gVisor's systrap platform, which Torpor uses, needs no virtualisation",
      required: false,
      probe: async () => {
        if (!existsSync("/dev/kvm")) return { ok: true, found: "not there, and not needed" };
        try {
          accessSync("/dev/kvm", constants.R_OK | constants.W_OK);
          return { ok: true, found: "/dev/kvm, not used by the gvisor driver" };
        } catch {
          return { ok: true, found: "/dev/kvm, not open to this user; not needed" };
        }
      },
    },
    {
      name: "user namespaces",
      why: "not needed: the host runs as root",
      required: false,
      probe: async () => ({
        ok: true,
        found: existsSync("/proc/self/ns/user") ? "there, not needed" : "not there, not needed",
      }),
    },
    {
      name: "state dir",
      why: "the journal and the disks need a local file system that keeps its promises",
      required: true,
      probe: async () => probeFileSystem(stateDir, mounts()),
    },
    {
      name: "disk",
      why: "templates, snapshots and the sandboxes' disks",
      required: true,
      probe: () => probeDisk(stateDir),
    },
    {
      name: "memory",
      why: "waiting sandboxes take about 25 MiB each, working ones what their code uses",
      required: true,
      probe: async () => {
        const available = parseMemAvailable(readFileSync("/proc/meminfo", "utf8"));
        if (available === null)
          return {
            ok: false,
            found: "unknown",
            severity: "warn",
            fix: "/proc/meminfo does not say what is available.",
          };
        const found = `${formatBytes(available)} available`;
        if (available >= WANTED_MEMORY_BYTES) return { ok: true, found };
        const fix = "Free some memory, or give sandboxes less (--memory).";
        return available < LEAST_MEMORY_BYTES
          ? { ok: false, found, fix }
          : { ok: false, found, fix, severity: "warn" };
      },
    },
    {
      name: "ip_forward",
      why: "the sandboxes' way out; Torpor switches it on when it starts",
      required: false,
      probe: async () => {
        const on = readSysctl("net/ipv4/ip_forward") === "1";
        return { ok: true, found: on ? "on" : "off (Torpor switches it on)" };
      },
    },
    {
      name: "rp_filter",
      why: "strict reverse-path filtering on all interfaces can drop the sandboxes' answers",
      required: false,
      probe: async () => {
        const value = readSysctl("net/ipv4/conf/all/rp_filter");
        if (value !== "1") return { ok: true, found: value === undefined ? "unknown" : `all=${value}` };
        return {
          ok: false,
          found: "all=1 (strict)",
          fix: "If sandboxes cannot reach the internet: sysctl -w net.ipv4.conf.all.rp_filter=2 (loose).",
        };
      },
    },
    {
      name: "apt mirror",
      why: "templates are built from Debian packages",
      required: false,
      probe: async () => probeApt(env),
    },
  ];
}

function probeCgroups(mounts: ReturnType<typeof parseMountInfo>): Finding {
  const unified = mounts.find((mount) => mount.type === "cgroup2");
  let v2Text: string | undefined;
  if (unified !== undefined) {
    try {
      v2Text = readFileSync(join(unified.target, "cgroup.controllers"), "utf8");
    } catch {
      v2Text = undefined;
    }
  }
  const { v1, v2 } = findControllers(mounts, v2Text);
  const places = ["cpu", "memory", "pids"].map((name) => ({
    name,
    version: v2.includes(name) ? "v2" : v1.includes(name) ? "v1" : undefined,
  }));
  const found = places.map(({ name, version }) => `${name} ${version ?? "missing"}`).join(", ");
  if (places.every(({ version }) => version !== undefined)) return { ok: true, found };
  return {
    ok: false,
    found,
    fix: "Mount the missing controllers: a machine with systemd has them. For memory on some boards: cgroup_enable=memory on the kernel command line. In a container, run Torpor on the machine itself.",
  };
}

/** The nearest directory above a path that exists. */
function existing(path: string): string {
  let current = path;
  while (!existsSync(current) && current !== dirname(current)) current = dirname(current);
  return current;
}

function probeFileSystem(stateDir: string, mounts: ReturnType<typeof parseMountInfo>): Finding {
  const mount = mountOf(existing(stateDir), mounts);
  const found = `${stateDir} on ${mount?.type ?? "an unknown file system"}`;
  if (mount === undefined || !UNSUITABLE_FILE_SYSTEMS.has(mount.type)) {
    if (mount?.type !== "tmpfs" && mount?.type !== "ramfs") return { ok: true, found };
    return {
      ok: false,
      found,
      severity: "warn",
      fix: "It is in memory and gone after a restart. Choose a directory on a disk with --state-dir.",
    };
  }
  return {
    ok: false,
    found,
    severity: "warn",
    fix: "Choose a directory on a local disk (ext4, xfs, btrfs) with --state-dir.",
  };
}

async function probeDisk(stateDir: string): Promise<Finding> {
  const { bavail, bsize } = await statfs(existing(stateDir));
  const free = bavail * bsize;
  const found = `${formatBytes(free)} free for ${stateDir}`;
  if (free >= WANTED_DISK_BYTES) return { ok: true, found };
  const fix = `Free some space, or choose another place with --state-dir: ${formatBytes(WANTED_DISK_BYTES)} are comfortable.`;
  return free < LEAST_DISK_BYTES ? { ok: false, found, fix } : { ok: false, found, fix, severity: "warn" };
}

function probeApt(env: NodeJS.ProcessEnv): Finding {
  if (env["TORPOR_APT_MIRROR"]) return { ok: true, found: "TORPOR_APT_MIRROR is set" };
  const osRelease = readText("/etc/os-release");
  const codename = /^VERSION_CODENAME="?([^"\n]*)/m.exec(osRelease)?.[1] ?? "";
  const files = [
    "/etc/apt/sources.list",
    ...list("/etc/apt/sources.list.d").map((name) => join("/etc/apt/sources.list.d", name)),
  ];
  const entries = files.flatMap((file) => {
    if (file.endsWith(".list")) return parseAptSources(readText(file), "one-line");
    return file.endsWith(".sources") ? parseAptSources(readText(file), "deb822") : [];
  });
  const main = entries.find((entry) => entry.suite === "bookworm");
  if (main !== undefined) return { ok: true, found: "this machine's own apt configuration (bookworm)" };
  return {
    ok: false,
    found:
      entries.length === 0
        ? "no apt configuration"
        : `apt serves ${codename || "another release"}, not bookworm`,
    fix: "Set TORPOR_APT_MIRROR to the address of a Debian mirror for 'torpor up', so that templates can be built.",
  };
}

function readText(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return "";
  }
}

function list(directory: string): string[] {
  try {
    return readdirSync(directory).sort();
  } catch {
    return [];
  }
}

function readSysctl(name: string): string | undefined {
  const text = readText(join("/proc/sys", name)).trim();
  return text === "" ? undefined : text;
}

/** sudo does not tell a user who may not use it from one whose password it asks for: for that one the groups speak. */
async function probeSudo(sudo: string | undefined): Promise<Finding> {
  const user = `user ${process.getuid?.()}`;
  if (sudo === undefined)
    return { ok: false, found: `${user}, no sudo`, fix: "Run 'up' and 'down' as root, or install sudo." };
  const lets = await run([sudo, "-n", "true"], { timeoutMs: 10_000 }).then(
    () => true,
    () => false,
  );
  if (lets) return { ok: true, found: `${user}, with ${sudo}` };
  // It tells the names it knows and fails for a group without one, as containers have them.
  const { stdout } = spawnSync("id", ["-Gn"], { encoding: "utf8", timeout: 10_000 });
  const group = (stdout ?? "")
    .trim()
    .split(/\s+/)
    .find((name) => ["sudo", "wheel", "admin"].includes(name));
  if (group !== undefined)
    return { ok: true, found: `${user}, with ${sudo}, which asks for a password (group ${group})` };
  return {
    ok: false,
    found: `${user}, whom ${sudo} does not let be root without a password`,
    fix: "Run 'up' and 'down' as root, or as a user who may use sudo (on Debian: one of the group 'sudo'). If it takes a password of yours, run 'sudo -v' first.",
  };
}
