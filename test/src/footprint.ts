import { lstatSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { run } from "@torpor/base";
import type { Instance } from "./instance.ts";
import { lookAtMachine } from "./leak-check.ts";

/** How much of the machine an instance takes, by kind. All but the memory of its programs must not grow with use. */
export interface Footprint {
  hostFds: number;
  serverFds: number;
  hostRssMib: number;
  serverRssMib: number;
  processes: number;
  networkNamespaces: number;
  links: number;
  rules: number;
  mounts: number;
  loopDevices: number;
  cgroups: number;
  machineDirectories: number;
  images: number;
  machinesAndImagesMib: number;
}

export async function footprint(instance: Instance): Promise<Footprint> {
  const { names, stateDir, hostPid, serverPid } = instance;
  const state = await lookAtMachine(stateDir);
  const inRouter = ["ip", "netns", "exec", names.routerNetns] as const;
  const [links, rules, ownRules] = await Promise.all([
    run([...inRouter, "ip", "-o", "link", "show"]),
    // The map of all slots' addresses is there once, however many are in use; what changes is a line each.
    run([...inRouter, "nft", "list", "ruleset"], { maxOutputBytes: 4 * 1024 * 1024 }),
    run(["nft", "list", "table", "inet", names.nftTable]),
  ]);
  return {
    hostFds: readdirSync(`/proc/${hostPid}/fd`).length,
    serverFds: readdirSync(`/proc/${serverPid}/fd`).length,
    hostRssMib: rssMib(hostPid),
    serverRssMib: rssMib(serverPid),
    processes: state.process.size,
    networkNamespaces: state["network namespace"].size,
    links: lines(links.stdout) + state.link.size,
    rules: lines(rules.stdout) + lines(ownRules.stdout),
    // Those of other instances come and go meanwhile.
    mounts: lines(readFileSync(`/proc/${hostPid}/mountinfo`, "utf8"), [stateDir, names.routerNetns]),
    loopDevices: state["loop device"].size,
    cgroups: state.cgroup.size,
    machineDirectories: state["machine directory"].size,
    images: readdirSync(join(stateDir, "host", "images")).length,
    machinesAndImagesMib: Math.round(
      (allocatedBytes(join(stateDir, "host", "machines")) +
        allocatedBytes(join(stateDir, "host", "images"))) /
        1048576,
    ),
  };
}

function rssMib(pid: number): number {
  const kib = /^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1];
  return Math.round(Number(kib) / 1024);
}

/** Lines that are not empty, and bear one of the marks where there are any. */
function lines(text: string, marks: readonly string[] = [""]): number {
  return text.split("\n").filter((line) => line.trim() !== "" && marks.some((mark) => line.includes(mark)))
    .length;
}

/** What the files take on the disk, holes not counted. */
function allocatedBytes(path: string): number {
  try {
    const { blocks, isDirectory } = {
      blocks: lstatSync(path).blocks,
      isDirectory: lstatSync(path).isDirectory(),
    };
    const below = isDirectory ? readdirSync(path).map((name) => allocatedBytes(join(path, name))) : [];
    return below.reduce((sum, bytes) => sum + bytes, blocks * 512);
  } catch {
    return 0; // removed meanwhile
  }
}
