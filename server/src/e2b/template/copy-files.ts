import { posix } from "node:path";
import type { Readable } from "node:stream";
import { BuildFailed } from "./build-failed.ts";
import type { BuildSandbox } from "./build-sandbox.ts";

/** Where archives come from; undefined for one that is not there. */
export type CopyFiles = (hash: string) => Promise<Readable | undefined>;

const MODE = /^[0-7]{3,4}$/;
const OWNER = /^[a-z0-9_][a-z0-9_.-]{0,31}(:[a-z0-9_][a-z0-9_.-]{0,31})?$/i;
const PATTERN_CHARACTERS = /[*?[\]{}!()]/;

/**
 * Puts what was unpacked in place as Docker does: a folder's contents are merged into the destination, folders that are
 * there keep their owner and mode; a file goes to the destination, or into it if that is a folder or ends in a slash.
 */
const PLACE_SCRIPT = `
set -e
from=$1 base=$2 dest=$3 owner=$4 mode=$5
case $owner in *:*) ;; *) owner=$owner: ;; esac
case $dest in /*) ;; *) dest=$PWD/$dest ;; esac
source=$from/$base
[ -e "$source" ] || [ -L "$source" ] || { echo "the archive holds no '$base'" >&2; exit 1; }
chown -hR -- "$owner" "$source"
if [ -n "$mode" ] && [ ! -L "$source" ]; then chmod -R -- "$mode" "$source"; fi
if [ -d "$source" ] && [ ! -L "$source" ]; then
  mkdir -p -- "$dest"
  tar -C "$source" --numeric-owner -cf - . |
    tar -C "$dest" --numeric-owner --no-overwrite-dir --keep-directory-symlink -xpf -
else
  case $dest in */) mkdir -p -- "$dest" ;; esac
  if [ -d "$dest" ]; then dest=$dest/\${base##*/}; else mkdir -p -- "$(dirname -- "$dest")"; fi
  mv -fT -- "$source" "$dest"
fi
rm -rf -- "$from"`;

/** Runs a COPY: args are source, destination, owner and mode, the last two empty for the current user's and as sent. @throws BuildFailed */
export async function copyFiles(
  { args, filesHash }: { args: readonly string[]; filesHash: string | undefined },
  { user, workdir }: { user: string; workdir: string },
  sandbox: BuildSandbox,
  files: CopyFiles,
): Promise<void> {
  const [source = "", destination = "", owner = "", mode = ""] = args;
  if (source === "" || destination === "") throw new BuildFailed("COPY needs a source and a destination");
  if (filesHash === undefined) throw new BuildFailed("COPY needs the hash of its files");
  if (owner !== "" && !OWNER.test(owner))
    throw new BuildFailed(`COPY cannot give files to '${owner.slice(0, 80)}': not a user, or user:group`);
  if (mode !== "" && !MODE.test(mode))
    throw new BuildFailed(`COPY has the mode '${mode.slice(0, 80)}', which is not octal`);
  const base = literalPrefix(source);
  const made = await sandbox.run({
    command: ["mktemp", "-d", "/tmp/torpor-copy-XXXXXX"],
    user: "root",
    cwd: "/",
  });
  const folder = made.stdout.trim();
  if (made.failure !== null || !folder.startsWith("/tmp/torpor-copy-"))
    throw new BuildFailed(
      `COPY could not make a folder to unpack in: ${made.failure ?? "mktemp said nothing"}`,
    );
  const tar = await files(filesHash);
  if (tar === undefined)
    throw new BuildFailed(
      `the files of COPY ${source} are not here: they were not uploaded to this server, or were removed meanwhile; build again`,
    );
  await sandbox.unpack(folder, tar);
  const said: string[] = [];
  const { failure } = await sandbox.run({
    command: [
      "/bin/bash",
      "-o",
      "pipefail",
      "-c",
      PLACE_SCRIPT,
      "copy",
      folder,
      base,
      destination,
      owner === "" ? user : owner,
      mode,
    ],
    user: "root",
    cwd: workdir,
    onLine: (stream, line) => stream === "stderr" && said.push(line),
  });
  if (failure !== null)
    throw new BuildFailed(`failed to copy '${source}' to '${destination}': ${said.at(-1) ?? failure}`);
}

/** The part of a source before its first pattern: what the pattern matched lies below it. `.` for the whole archive. */
function literalPrefix(source: string): string {
  const parts = posix
    .normalize(source)
    .split("/")
    .filter((part) => part !== "" && part !== ".");
  if (source.startsWith("/") || parts.includes(".."))
    throw new BuildFailed(`COPY has the source '${source.slice(0, 200)}', which is not below the context`);
  const pattern = parts.findIndex((part) => PATTERN_CHARACTERS.test(part));
  const literal = pattern === -1 ? parts : parts.slice(0, pattern);
  return literal.length === 0 ? "." : literal.join("/");
}
