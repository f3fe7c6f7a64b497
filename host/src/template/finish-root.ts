import { copyFile, chmod, readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { run } from "@torpor/base";
import type { AptSettings } from "./apt-settings.ts";
import { type AptSource, formatDeb822 } from "./apt-sources.ts";
import { placeFile, placeFolder, placeIn } from "./place-file.ts";
import type { Recipe } from "./recipe.ts";

/** Where every template has the guest agent. */
export const GUEST_PATH = "/usr/local/lib/torpor/torpor-guest";

/**
 * Makes /tmp not empty: over an empty one gVisor mounts a tmpfs, which is memory, and filling it would end the sandbox
 * instead of the writer. The agent removes the file when the golden snapshot is baked.
 */
export const TMP_ON_DISK_PATH = "/tmp/.torpor-on-disk";

/** A sandbox's /etc/hosts until it has a name of its own. */
export const HOSTS = "127.0.0.1\tlocalhost torpor\n::1\tlocalhost ip6-localhost ip6-loopback\n";

/** Folders whose content is emptied: caches, logs and scratch space differ in every build and serve nobody. */
const EMPTIED = [
  "/tmp",
  "/var/tmp",
  "/run",
  "/var/lib/apt/lists",
  "/var/cache/apt",
  "/var/cache/ldconfig",
  "/var/cache/man",
  "/var/log",
  "/root/.cache/pip",
  "/root/.npm",
];

/** Files of the build, of the machine it ran on, or of one boot. `*` at the end of a name stands for anything. */
const REMOVED = [
  "/etc/apt/apt.conf.d/99mmdebstrap",
  "/etc/dpkg/dpkg.cfg.d/99mmdebstrap",
  "/etc/apt/sources.list.d/0000*",
  "/etc/apt/sources.list",
  "/etc/ssh/ssh_host_*",
  "/etc/passwd-",
  "/etc/group-",
  "/etc/shadow-",
  "/etc/gshadow-",
  "/etc/subuid-",
  "/etc/subgid-",
  "/var/cache/debconf/config.dat-old",
  "/var/cache/debconf/templates.dat-old",
  "/var/lib/dpkg/status-old",
  "/var/lib/dpkg/diversions-old",
  "/var/lib/dpkg/statoverride-old",
  "/var/lib/dbus/machine-id",
  "/var/lib/systemd/random-seed",
  "/var/lib/systemd/catalog/database",
];

export interface FinishOptions {
  recipe: Recipe;
  sources: AptSource[];
  settings: AptSettings;
  guestBinaryPath: string;
}

/**
 * Makes the root that the packages left behind into a template: the guest agent, apt's sources, the folders Torpor
 * expects; and takes away all that names the machine or the moment of the build. A sandbox gets its own host name,
 * machine id and resolver when it is initialised.
 */
export async function finishRoot(root: string, options: FinishOptions): Promise<void> {
  const { recipe, settings } = options;
  for (const dir of EMPTIED) await emptyFolder(root, dir);
  for (const pattern of REMOVED) await removeMatching(root, pattern);

  await placeFile(
    root,
    "/etc/apt/sources.list.d/debian.sources",
    formatDeb822(options.sources, { keepCredentials: false }),
  );
  if (settings.lasting.length > 0)
    await placeFile(root, "/etc/apt/apt.conf.d/91torpor-archive", `${settings.lasting.join("\n")}\n`);
  const paths = [
    ...recipe.excludePaths.map((path) => `path-exclude=${path}`),
    ...recipe.includePaths.map((path) => `path-include=${path}`),
  ];
  if (paths.length > 0) await placeFile(root, "/etc/dpkg/dpkg.cfg.d/torpor-paths", `${paths.join("\n")}\n`);

  await placeFile(root, TMP_ON_DISK_PATH, "");
  await placeFile(root, "/etc/machine-id", "");
  await placeFile(root, "/etc/resolv.conf", "");
  await placeFile(root, "/etc/hostname", "torpor\n");
  await placeFile(root, "/etc/hosts", HOSTS);
  for (const dir of ["/etc/torpor", "/etc/torpor/on-restore.d", "/etc/torpor/before-freeze.d", "/run/torpor"])
    await placeFolder(root, dir);
  const lock = await placeIn(root, "/run/lock");
  await placeFolder(root, "/run/lock");
  await chmod(lock, 0o1777);

  const guest = await placeIn(root, GUEST_PATH);
  await rm(guest, { force: true });
  await copyFile(options.guestBinaryPath, guest);
  await chmod(guest, 0o755);
}

/** Sets every time stamp newer than `epochSeconds` back to it, folders and links too. */
export async function clampTimes(root: string, epochSeconds: number): Promise<void> {
  const newer = ["-xdev", "-newermt", `@${epochSeconds}`];
  await run(
    ["find", root, ...newer, "-exec", "touch", "--no-dereference", `--date=@${epochSeconds}`, "{}", "+"],
    { timeoutMs: 600_000 },
  );
}

/** Installed packages and their versions, from the new root's own dpkg database. */
export async function installedPackages(root: string): Promise<{ name: string; version: string }[]> {
  const { stdout } = await run([
    "dpkg-query",
    `--admindir=${join(root, "var/lib/dpkg")}`,
    "--show",
    "--showformat=${Package}\\t${Version}\\n",
  ]);
  return stdout
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => {
      const [name = "", version = ""] = line.split("\t");
      return { name, version };
    });
}

async function emptyFolder(root: string, dir: string): Promise<void> {
  for (const name of await readdirIfFolder(await placeIn(root, dir))) {
    await run(["rm", "-rf", "--one-file-system", "--", join(root, dir, name)]);
  }
}

async function removeMatching(root: string, pattern: string): Promise<void> {
  const dir = pattern.slice(0, pattern.lastIndexOf("/"));
  const name = pattern.slice(dir.length + 1);
  const matches = (entry: string): boolean =>
    name.endsWith("*") ? entry.startsWith(name.slice(0, -1)) : entry === name;
  for (const entry of (await readdirIfFolder(join(root, dir))).filter(matches))
    await rm(join(root, dir, entry), { force: true });
}

async function readdirIfFolder(dir: string): Promise<string[]> {
  try {
    return await readdir(dir);
  } catch (error) {
    if (["ENOENT", "ENOTDIR"].includes((error as NodeJS.ErrnoException).code ?? "")) return [];
    throw error;
  }
}
