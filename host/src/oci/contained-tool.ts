import { joining } from "../cgroup.ts";
import type { BuildSpace } from "./build-space.ts";
import { streamLinesContained } from "../template/stream-lines.ts";

export interface ContainedToolOptions {
  space: BuildSpace;
  /** File or folder that it sees as `/source`, read-only. */
  source?: string;
  /** Where its standard output goes: a file below the space, as it is called in there. Default: with its errors. */
  outputFile?: string;
  /** Whether it has this machine's network. */
  network: boolean;
  /** Whether it is nobody, without any capability: then only what is anybody's to read and write is open to it. */
  unprivileged: boolean;
  env: NodeJS.ProcessEnv;
  timeoutMs: number;
  signal?: AbortSignal | undefined;
}

/** What a program and what it asks of a registry are found by. The rest of `/etc` is nothing that an image may lead to. */
const SETTINGS = "/etc/ld.so.cache /etc/containers/policy.json /etc/containers/registries.d";
const NETWORK_SETTINGS =
  "/etc/ld.so.cache /etc/containers /etc/ssl/certs /etc/resolv.conf /etc/nsswitch.conf /etc/hosts";

/**
 * In a mount namespace of its own: a root with nothing but this machine's programs and a few settings, read-only, the source,
 * and the space at `/work`. There is no `/proc`: root, even without capabilities, could write to settings of the kernel there.
 * What an earlier tool may have put into the space, such as a link where the output goes, leads nowhere.
 * `$0` is the space, `$1` the source or nothing, `$2` the output or nothing, `$3` the settings, the rest is run.
 */
const JAIL_SCRIPT = `
set -eu
space=$0 source=$1 output=$2 settings=$3
shift 3
jail=$space.jail
mkdir -p "$jail"
if [ -n "$output" ]; then
  rm -f "$space/$output"
  exec >"$space/$output"
fi
mount -t tmpfs -o size=1m,mode=0755,nosuid,nodev jail "$jail"
mkdir "$jail/work" "$jail/dev" "$jail/tmp"
for dir in /usr /bin /sbin /lib /lib32 /lib64; do
  if [ -L "$dir" ]; then cp -P "$dir" "$jail$dir"
  elif [ -d "$dir" ]; then
    mkdir "$jail$dir"
    mount --bind "$dir" "$jail$dir"
    mount -o remount,bind,ro,nosuid,nodev "$jail$dir"
  fi
done
for setting in $settings; do
  real=$(readlink -f "$setting" || true)
  mkdir -p "$jail\${setting%/*}"
  if [ -d "$real" ]; then mkdir "$jail$setting"
  elif [ -f "$real" ]; then touch "$jail$setting"
  else continue
  fi
  mount --bind "$real" "$jail$setting"
  mount -o remount,bind,ro,nosuid,nodev,noexec "$jail$setting"
done
for device in null urandom; do
  touch "$jail/dev/$device"
  mount --bind "/dev/$device" "$jail/dev/$device"
done
if [ -d "$source" ]; then mkdir "$jail/source"; elif [ -n "$source" ]; then touch "$jail/source"; fi
if [ -n "$source" ]; then
  mount --bind "$source" "$jail/source"
  mount -o remount,bind,ro,nosuid,nodev,noexec "$jail/source"
fi
mount --bind "$space" "$jail/work"
mount -o remount,ro "$jail"
exec chroot "$jail" "$@"
`;

/** What unpacking a layer as root takes, and nothing with which root would be more than that. */
const UNPACKING = "-all,+chown,+dac_override,+fowner,+fsetid,+mknod,+setfcap";

/**
 * Runs one of the tools that read images. What they read is anybody's: a tool that is tricked by it has the space, nothing
 * else to write to, and no way to other processes.
 *
 * @throws ProcessError carrying the tool's last lines
 */
export async function runContained(
  argv: readonly [string, ...string[]],
  options: ContainedToolOptions,
): Promise<void> {
  const { space, source = "", outputFile = "", network, unprivileged, env, timeoutMs, signal } = options;
  const rights = unprivileged
    ? ["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all"]
    : [`--bounding-set=${UNPACKING}`, "--inh-caps=-all"];
  await streamLinesContained(
    ["--ipc", "--uts", ...(network ? [] : ["--net"])],
    joining(space.joinFiles, [
      "sh",
      "-c",
      JAIL_SCRIPT,
      space.inside,
      source,
      outputFile,
      network ? NETWORK_SETTINGS : SETTINGS,
      "/usr/bin/setpriv",
      ...rights,
      "--no-new-privs",
      "--",
      ...argv,
    ]),
    {
      env: {
        PATH: "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        HOME: "/work/tmp",
        TMPDIR: "/work/tmp",
        LC_ALL: "C.UTF-8",
        ...env,
      },
      mountsOf: space.pid,
      timeoutMs,
      onLine: () => {},
      ...(signal === undefined ? {} : { signal }),
    },
  );
}
