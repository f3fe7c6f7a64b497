/** The oldest runsc that is known to work: systrap, and checkpoints that can be restored. The date of its release. */
export const MINIMUM_RUNSC_DATE = 20_240_101;

/** Release date out of `runsc --version`; null for a build without one. */
export function parseRunscDate(text: string): number | null {
  const match = /^runsc version .*?(20\d{6})/m.exec(text);
  return match === null ? null : Number(match[1]);
}

/** Whole months from a release's date, as {@link parseRunscDate} gives it, to a day. */
export function monthsBetween(date: number, now: Date): number {
  const [year, month, day] = [Math.floor(date / 10_000), Math.floor(date / 100) % 100, date % 100];
  const months = (now.getUTCFullYear() - year) * 12 + now.getUTCMonth() + 1 - month;
  return now.getUTCDate() < day ? months - 1 : months;
}

/** Minor version out of `go version`: 23 for go1.23.5. */
export function parseGoMinor(text: string): number | null {
  const match = /go version go1\.(\d+)/.exec(text);
  return match === null ? null : Number(match[1]);
}

/** Minor version that go.mod asks for. */
export function parseGoModMinor(text: string): number | null {
  const match = /^go 1\.(\d+)/m.exec(text);
  return match === null ? null : Number(match[1]);
}

/** `MemAvailable` of /proc/meminfo, bytes. */
export function parseMemAvailable(meminfo: string): number | null {
  const match = /^MemAvailable:\s+(\d+) kB$/m.exec(meminfo);
  return match === null ? null : Number(match[1]) * 1024;
}

/** A mount as /proc/self/mountinfo lists it. */
export interface Mount {
  target: string;
  type: string;
  /** Options of the super block: where cgroup v1 names its controllers. */
  options: string[];
}

/** Reads /proc/self/mountinfo. Spaces in paths are written `\040` there. */
export function parseMountInfo(text: string): Mount[] {
  const mounts: Mount[] = [];
  for (const line of text.split("\n")) {
    const [before, after] = line.split(" - ");
    const target = before?.split(" ")[4];
    const [type, , options] = after?.split(" ") ?? [];
    if (target === undefined || type === undefined) continue;
    mounts.push({
      target: target.replace(/\\([0-7]{3})/g, (_all, octal: string) =>
        String.fromCharCode(Number.parseInt(octal, 8)),
      ),
      type,
      options: (options ?? "").split(","),
    });
  }
  return mounts;
}

/** The mount a path is on: the longest mount point above it, the latest of several on one. */
export function mountOf(path: string, mounts: readonly Mount[]): Mount | undefined {
  let best: Mount | undefined;
  for (const mount of mounts) {
    const above = mount.target === "/" || path === mount.target || path.startsWith(`${mount.target}/`);
    if (above && (best === undefined || mount.target.length >= best.target.length)) best = mount;
  }
  return best;
}

/** Where the controllers are that limit sandboxes. */
export interface CgroupControllers {
  v1: string[];
  v2: string[];
}

/** Controllers by version; `v2Text` is the content of the unified hierarchy's cgroup.controllers. */
export function findControllers(mounts: readonly Mount[], v2Text: string | undefined): CgroupControllers {
  const v1 = mounts.filter((mount) => mount.type === "cgroup").flatMap((mount) => mount.options);
  return { v1, v2: (v2Text ?? "").split(/\s+/).filter((name) => name !== "") };
}

/** An archive that apt reads. */
export interface AptEntry {
  uri: string;
  suite: string;
}

/** The archives of a file in either of apt's forms; disabled ones are left out. */
export function parseAptSources(text: string, form: "one-line" | "deb822"): AptEntry[] {
  return form === "one-line" ? parseOneLine(text) : parseDeb822(text);
}

function parseOneLine(text: string): AptEntry[] {
  const entries: AptEntry[] = [];
  for (const line of text.split("\n")) {
    const match = /^\s*deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s+(\S+)/.exec(line.replace(/#.*/, ""));
    if (match?.[1] !== undefined && match[2] !== undefined) entries.push({ uri: match[1], suite: match[2] });
  }
  return entries;
}

function parseDeb822(text: string): AptEntry[] {
  const entries: AptEntry[] = [];
  const withoutComments = text
    .split("\n")
    .filter((line) => !line.startsWith("#"))
    .join("\n");
  for (const stanza of withoutComments.split(/\n\s*\n/)) {
    const fields = new Map<string, string>();
    for (const match of stanza.matchAll(/^([A-Za-z-]+):(.*(?:\n[ \t].*)*)/gm)) {
      fields.set((match[1] ?? "").toLowerCase(), (match[2] ?? "").trim());
    }
    const words = (name: string): string[] =>
      (fields.get(name) ?? "").split(/\s+/).filter((word) => word !== "");
    if (!words("types").includes("deb") || /^(no|false|0|off)$/i.test(fields.get("enabled") ?? "")) continue;
    for (const uri of words("uris")) for (const suite of words("suites")) entries.push({ uri, suite });
  }
  return entries;
}
