import { existsSync, readdirSync, readFileSync, readlinkSync } from "node:fs";
import { join } from "node:path";
import { run } from "@torpor/base";
import { instanceNames, IP_FORWARD_MARK } from "@torpor/host";
import { eventually } from "./eventually.ts";

/** Kinds of things an instance makes on a machine, and may therefore leave there. */
export const LEAK_KINDS = [
  "process",
  "network namespace",
  "link",
  "route",
  "nft table",
  "mount",
  "cgroup",
  "loop device",
  "ip_forward",
  "machine directory",
] as const;
export type LeakKind = (typeof LEAK_KINDS)[number];

/** What is there, by kind; each thing as a line a person recognises it by. */
export type MachineState = Record<LeakKind, ReadonlySet<string>>;

/** Names that Torpor and these tests give; a route that names no link is anybody's. */
const OURS = /\b(?:torpor|tp-|tt-|tti\d|dev -)/;
/** What belongs to another instance of Torpor on the same machine is not ours to judge. */
const OTHER_INSTANCE = /\b(?:torpor[-_]|tp-)([0-9a-f]{6})\b/;
/** The fake internet of a test run, named after its process. */
const FAKE_INTERNET = /\b(?:tt-internet-|tti)(\d+)\b/;

/**
 * Looks at everything an instance could leave. Processes, mounts, loop devices, cgroups and files are counted when they
 * bear the state directory or the instance's names; namespaces, links, routes and tables when they bear any name of
 * Torpor's, unless it is another instance's.
 */
export async function lookAtMachine(stateDir: string): Promise<MachineState> {
  const { tag } = instanceNames(stateDir);
  const foreign = (text: string): boolean => {
    const other = OTHER_INSTANCE.exec(text)?.[1];
    if (other !== undefined) return other !== tag;
    const owner = Number(FAKE_INTERNET.exec(text)?.[1]);
    return owner > 0 && owner !== process.pid && existsSync(`/proc/${owner}`);
  };
  const own = (lines: readonly string[]): Set<string> =>
    new Set(lines.filter((line) => OURS.test(line) && !foreign(line)));
  const bears = (text: string): boolean => text.includes(stateDir) || text.includes(`torpor-${tag}`);
  const [links, routes, tables, namespaces] = await Promise.all([
    jsonOf<{ ifname: string }>(["ip", "-json", "link", "show"]),
    jsonOf<{ dst: string; gateway?: string; dev?: string; table?: string }>([
      "ip",
      "-json",
      "route",
      "show",
      "table",
      "all",
    ]),
    run(["nft", "list", "tables"]).then(({ stdout }) => stdout.split("\n").filter((line) => line !== "")),
    jsonOf<{ name: string }>(["ip", "-json", "netns", "list"]),
  ]);
  return {
    process: new Set(processesBearing(bears)),
    "network namespace": own(namespaces.map(({ name }) => name)),
    link: own(links.map(({ ifname }) => ifname)),
    route: own(
      routes
        .filter(({ table }) => table !== "local")
        .map(({ dst, gateway, dev }) => `${dst} via ${gateway ?? "-"} dev ${dev ?? "-"}`),
    ),
    "nft table": own(tables),
    mount: new Set(mountPoints().filter(bears)),
    cgroup: new Set(cgroupsNamed(`torpor-${tag}`)),
    "loop device": new Set(loopDevices().filter(bears)),
    ip_forward: new Set(forwardingLeft(namespaces, tag)),
    "machine directory": new Set(entriesOf(join(stateDir, "host", "machines"))),
  };
}

/** What is there now and was not before, one line each. */
export function leaksBetween(before: MachineState, after: MachineState): string[] {
  return LEAK_KINDS.flatMap((kind) =>
    [...after[kind]].filter((thing) => !before[kind].has(thing)).map((thing) => `${kind}: ${thing}`),
  );
}

export interface LeakCheckOptions {
  /** Processes and mounts end a moment after they were told to. Default 5,000. */
  settleMs?: number;
}

/** @throws Error naming each thing that is there now and was not `before` */
export async function expectNoLeaks(
  stateDir: string,
  before: MachineState,
  { settleMs = 5000 }: LeakCheckOptions = {},
): Promise<void> {
  let leaks: string[] = [];
  await eventually(
    () => `nothing of ${stateDir} to be left; there still is:\n  ${leaks.join("\n  ")}`,
    async () => {
      leaks = leaksBetween(before, await lookAtMachine(stateDir));
      return leaks.length === 0;
    },
    settleMs,
  );
}

/**
 * What forwarding is but for other instances: the last to leave puts it back as it was found. Between the end of its network
 * and that moment it is both, what it is and what it will be.
 */
function forwardingLeft(namespaces: readonly { name: string }[], tag: string): string[] {
  const othersUp = namespaces.some(
    ({ name }) => /^torpor-[0-9a-f]{6}$/.test(name) && name !== `torpor-${tag}`,
  );
  const turnedOn = existsSync(IP_FORWARD_MARK);
  if (turnedOn && othersUp) return ["0"];
  const now = readFileSync("/proc/sys/net/ipv4/ip_forward", "utf8").trim();
  return turnedOn ? [now, "0"] : [now];
}

async function jsonOf<T>(argv: [string, ...string[]]): Promise<T[]> {
  const { stdout } = await run(argv);
  return stdout.trim() === "" ? [] : (JSON.parse(stdout) as T[]);
}

function processesBearing(bears: (text: string) => boolean): string[] {
  const found: string[] = [];
  for (const name of readdirSync("/proc")) {
    if (!/^\d+$/.test(name) || Number(name) === process.pid) continue;
    const command = read(`/proc/${name}/cmdline`).replaceAll("\0", " ").trim();
    // Children of the runtime rename themselves to nothing much; their cgroup still tells whose they are.
    const signs = [
      command,
      read(`/proc/${name}/environ`),
      read(`/proc/${name}/cgroup`),
      link(`/proc/${name}/cwd`),
    ];
    if (signs.some(bears)) found.push(`${name} ${command.slice(0, 200)}`);
  }
  return found;
}

function mountPoints(): string[] {
  return read("/proc/self/mountinfo")
    .split("\n")
    .map((line) => line.split(" ")[4] ?? "")
    .filter((path) => path !== "");
}

function cgroupsNamed(name: string): string[] {
  const mounts = read("/proc/self/mountinfo")
    .split("\n")
    .filter((line) => / - cgroup2? /.test(line))
    .map((line) => line.split(" ")[4] ?? "");
  return mounts
    .map((mount) => join(mount, name))
    .filter((path) => existsSync(path))
    .flatMap((path) => [
      path,
      ...entriesOf(path)
        .filter((entry) => /^\d+$/.test(entry))
        .map((entry) => join(path, entry)),
    ]);
}

function loopDevices(): string[] {
  return entriesOf("/sys/block")
    .filter((name) => name.startsWith("loop"))
    .map((name) => `${name} ${read(`/sys/block/${name}/loop/backing_file`).trim()}`);
}

function entriesOf(directory: string): string[] {
  return existsSync(directory) ? readdirSync(directory) : [];
}

/** Text of a file that may go away while it is read. */
function read(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return "";
  }
}

function link(path: string): string {
  try {
    return readlinkSync(path);
  } catch {
    return "";
  }
}
