import { readFileSync } from "node:fs";
import { join } from "node:path";
import { run } from "@torpor/base";
import type { Check, Finding } from "./check.ts";
import { findProgram } from "./find-program.ts";
import {
  MINIMUM_RUNSC_DATE,
  monthsBetween,
  parseGoMinor,
  parseGoModMinor,
  parseRunscDate,
} from "./parsers.ts";

export interface ProgramCheckOptions {
  env: NodeJS.ProcessEnv;
  /** Root of the checkout. */
  root: string;
}

const INSTALL = "bin/quickstart installs it on Debian and Ubuntu";

/** Checks of the programs that Torpor starts. */
export function programChecks({ env, root }: ProgramCheckOptions): Check[] {
  const path = env["PATH"];
  const present = (
    name: string,
    program: string,
    packageName: string,
    why: string,
    required = true,
  ): Check => ({
    name,
    why,
    required,
    probe: async () => {
      const found = findProgram(program, path);
      return found === undefined
        ? { ok: false, found: "not found", fix: `Install the package ${packageName} (${INSTALL}).` }
        : { ok: true, found };
    },
  });
  return [
    {
      name: "runsc",
      why: "gVisor's runtime runs every sandbox; older releases cannot restore a checkpoint",
      required: true,
      probe: () => probeRunsc(env["TORPOR_RUNSC"] || findProgram("runsc", path)),
    },
    {
      name: "go",
      why: "compiles the agent inside the sandboxes; only needed to build",
      required: false,
      probe: () => probeGo(findProgram("go", path), readFileSync(join(root, "guest", "go.mod"), "utf8")),
    },
    present("mmdebstrap", "mmdebstrap", "mmdebstrap", "builds the templates' root filesystems"),
    present("mkfs.erofs", "mkfs.erofs", "erofs-utils", "packs a template's root filesystem for the runtime"),
    present("skopeo", "skopeo", "skopeo", "copies the container images that templates are made from", false),
    present("umoci", "umoci", "umoci", "unpacks those images", false),
    present(
      "bash-static",
      "bash-static",
      "bash-static",
      "runs commands in sandboxes of images without a bash",
      false,
    ),
    present("ip", "ip", "iproute2", "makes each sandbox's network namespace and link"),
    present(
      "nft",
      "nft",
      "nftables",
      "keeps sandboxes from each other, from this machine and from private networks",
    ),
    present(
      "perl",
      "perl",
      "perl-base",
      "has the kernel forget the connections of a sandbox that is gone, and ends those that keep one from being put to sleep",
    ),
    present("mke2fs", "mke2fs", "e2fsprogs", "makes the file that caps a sandbox's disk"),
    present("losetup", "losetup", "mount", "attaches that file"),
    present(
      "openssl",
      "openssl",
      "openssl",
      "signs the local certificate of 'torpor up --tls'; not needed for one that is given",
      false,
    ),
    present("tar", "tar", "tar", "packs and unpacks the directories that 'torpor cp' copies", false),
  ];
}

async function probeRunsc(runsc: string | undefined): Promise<Finding> {
  const fix =
    "Install gVisor's runsc from January 2024 or later: bin/quickstart does on Debian 12 (bookworm-backports); elsewhere follow gVisor's installation guide.";
  if (runsc === undefined) return { ok: false, found: "not found", fix };
  const { stdout } = await run([runsc, "--version"], { timeoutMs: 10_000 });
  const version = /^runsc version (\S+)/m.exec(stdout)?.[1] ?? "of unknown version";
  const date = parseRunscDate(stdout);
  if (date !== null && date < MINIMUM_RUNSC_DATE)
    return { ok: false, found: `${runsc} ${version}: too old`, fix };
  const [flags, commands] = await Promise.all([helpText(runsc, ["flags"]), helpText(runsc, ["help"])]);
  const missing = [
    ...["overlay2", "net-disconnect-ok"]
      .filter((flag) => !new RegExp(`-${flag}\\b`).test(flags))
      .map((flag) => `--${flag}`),
    ...["checkpoint", "restore"].filter((verb) => !new RegExp(`\\b${verb}\\b`).test(commands)),
  ];
  if (missing.length > 0) return { ok: false, found: `${runsc} ${version} lacks ${missing.join(", ")}`, fix };
  const months = date === null ? 0 : monthsBetween(date, new Date());
  const age =
    months > 12
      ? `, ${months} months old: a newer release of gVisor's, first on the PATH or named by TORPOR_RUNSC, is used in its place (docs/SECURITY.md)`
      : "";
  return { ok: true, found: `${runsc} ${version}${age}` };
}

/** What a program says of itself, on whichever stream and with whichever exit code. */
async function helpText(program: string, args: string[]): Promise<string> {
  try {
    const { stdout, stderr } = await run([program, ...args], { timeoutMs: 10_000 });
    return stdout + stderr;
  } catch (error) {
    return error instanceof Error && "stderr" in error ? String(error.stderr) : "";
  }
}

async function probeGo(go: string | undefined, goMod: string): Promise<Finding> {
  const needed = parseGoModMinor(goMod) ?? 21;
  const fix = `Install Go 1.${needed} or later (bin/quickstart does on Debian 12, from bookworm-backports). Not needed once the guest agent is built.`;
  if (go === undefined) return { ok: false, found: "not found", fix };
  const { stdout } = await run([go, "version"], {
    timeoutMs: 10_000,
    env: { ...process.env, GOTOOLCHAIN: "local" },
  });
  const minor = parseGoMinor(stdout);
  if (minor === null || minor < needed) return { ok: false, found: `${stdout.trim()}: too old`, fix };
  return { ok: true, found: `${go} ${stdout.trim().split(" ")[2] ?? ""}` };
}
