import { describe, expect, it } from "vitest";
import {
  findControllers,
  monthsBetween,
  mountOf,
  parseAptSources,
  parseGoMinor,
  parseGoModMinor,
  parseMemAvailable,
  parseMountInfo,
  parseRunscDate,
} from "../src/doctor/parsers.ts";
import { parseStartTime } from "../src/instance/process-identity.ts";
import { parsePasswd } from "../src/instance/process-owner.ts";
import { RestartBackoff } from "../src/instance/restart-backoff.ts";
import { checkListen } from "../src/commands/up.ts";

describe("versions", () => {
  it("are read out of what programs say", () => {
    expect(parseRunscDate("runsc version 0.0~20240729.0\nspec: 1.0.2-dev\n")).toBe(20_240_729);
    expect(parseRunscDate("runsc version release-20250512.0\nspec: 1.1.0\n")).toBe(20_250_512);
    expect(parseRunscDate("runsc version HEAD\n")).toBeNull();
    expect(parseGoMinor("go version go1.23.5 linux/amd64")).toBe(23);
    expect(parseGoMinor("go version devel")).toBeNull();
    expect(parseGoModMinor("module x\n\ngo 1.22.1\n")).toBe(22);
  });
});

const MOUNTS = `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 master:1 - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
1 0 8:1 / / rw - ext4 /dev/sda1 rw
50 1 8:2 / /mnt/with\\040space rw - xfs /dev/sdb rw
`;

describe("mounts", () => {
  it("are read with their escapes, and the one a path is on is found", () => {
    const mounts = parseMountInfo(MOUNTS);
    expect(mountOf("/mnt/with space/state", mounts)?.type).toBe("xfs");
    expect(mountOf("/mnt/with", mounts)?.type).toBe("ext4");
    expect(mountOf("/var/lib/torpor", mounts)?.type).toBe("ext4");
  });

  it("say which cgroup controllers there are", () => {
    const { v1, v2 } = findControllers(parseMountInfo(MOUNTS), "hugetlb pids\n");
    expect(v1).toEqual(expect.arrayContaining(["cpu", "memory"]));
    expect(v2).toEqual(["hugetlb", "pids"]);
  });
});

it("available memory is read in bytes", () => {
  expect(parseMemAvailable("MemTotal:  100 kB\nMemAvailable:   2048 kB\n")).toBe(2_097_152);
  expect(parseMemAvailable("")).toBeNull();
});

describe("apt's configuration", () => {
  it("is read in one-line form", () => {
    const text =
      "# deb http://old bookworm main\ndeb [signed-by=/k.gpg arch=amd64] http://mirror/debian bookworm main contrib\ndeb-src http://mirror/debian bookworm main\n";
    expect(parseAptSources(text, "one-line")).toEqual([{ uri: "http://mirror/debian", suite: "bookworm" }]);
  });

  it("is read in deb822 form, with disabled stanzas and embedded keys", () => {
    const text = `# comment
Types: deb deb-src
URIs: http://a/debian
# in between
Suites: bookworm bookworm-updates
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 -----END PGP PUBLIC KEY BLOCK-----

Types: deb
URIs: http://b/debian
Suites: bookworm
Enabled: no

Types: deb-src
URIs: http://c/debian
Suites: bookworm
`;
    expect(parseAptSources(text, "deb822")).toEqual([
      { uri: "http://a/debian", suite: "bookworm" },
      { uri: "http://a/debian", suite: "bookworm-updates" },
    ]);
  });
});

it("a start time is read past a name with spaces and parentheses, and a zombie has none", () => {
  const rest = "1 1 1 0 -1 4194560 9 0 0 0 1 2 0 0 20 0 1 0 98765 0 0";
  expect(parseStartTime(`42 (a) b) (c) S ${rest}`)).toBe(98_765);
  expect(parseStartTime(`42 (x) Z ${rest}`)).toBeNull();
});

it("a release's age is told in whole months", () => {
  expect(monthsBetween(20240729, new Date("2026-11-30T00:00:00Z"))).toBe(28);
  expect(monthsBetween(20240729, new Date("2024-08-28T00:00:00Z"))).toBe(0);
});

it("a user is found in /etc/passwd by whole name", () => {
  const passwd = "torporx:x:1:2::/:/bin/sh\ntorpor:x:995:993::/nonexistent:/usr/sbin/nologin\n";
  expect(parsePasswd(passwd, "torpor")).toEqual({ uid: 995, gid: 993 });
  expect(parsePasswd(passwd, "torp")).toBeNull();
});

it("a crash is followed by a start at once, the next by longer pauses up to half a minute, and by none again after seconds of service", () => {
  const backoff = new RestartBackoff();
  const delays = Array.from({ length: 10 }, () => backoff.next(0));
  expect(delays.slice(0, 4)).toEqual([0, 200, 400, 800]);
  expect(delays.at(-1)).toBe(30_000);
  expect(backoff.next(5_000)).toBe(0);
});

describe("--listen", () => {
  it.each(["127.0.0.1:0", "0.0.0.0:7070", "[::1]:65535", "localhost:80"])("%s is fine", (listen) => {
    expect(() => checkListen(listen)).not.toThrow();
  });
  it.each(["7070", "127.0.0.1", "127.0.0.1:65536", "::1:80", "a b:1", ""])("'%s' is refused", (listen) => {
    expect(() => checkListen(listen)).toThrow(/ADDRESS:PORT/);
  });
});
