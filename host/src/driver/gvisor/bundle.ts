import { writeFile } from "node:fs/promises";
import { join } from "node:path";

/** Where templates carry the guest agent. */
const GUEST_COMMAND = ["/usr/local/lib/torpor/torpor-guest", "agent"];

/**
 * Capabilities of root inside. They are gVisor's own, not the host's: the sentry grants them over its own kernel, so
 * that packages install, users change, hostnames and mounts are set as on a machine of one's own.
 */
const CAPABILITIES = [
  "CAP_AUDIT_WRITE",
  "CAP_CHOWN",
  "CAP_DAC_OVERRIDE",
  "CAP_DAC_READ_SEARCH",
  "CAP_FOWNER",
  "CAP_FSETID",
  "CAP_IPC_LOCK",
  "CAP_IPC_OWNER",
  "CAP_KILL",
  "CAP_MKNOD",
  "CAP_NET_ADMIN",
  "CAP_NET_BIND_SERVICE",
  "CAP_SETFCAP",
  "CAP_SETGID",
  "CAP_SETPCAP",
  "CAP_SETUID",
  "CAP_SYS_ADMIN",
  "CAP_SYS_CHROOT",
  "CAP_SYS_NICE",
  "CAP_SYS_PTRACE",
  "CAP_SYS_RESOURCE",
  "CAP_SYS_TIME",
];

export interface BundleOptions {
  directory: string;
  /** EROFS image with the root filesystem. */
  rootImagePath: string;
  /** An empty directory: runsc wants one, and mounts the image over it. */
  emptyDir: string;
  /** Where the writable layer's file lies. */
  overlayDir: string;
  netns: string;
  /** PID 1. Default: the guest agent. */
  args?: readonly string[];
}

/** Writes the OCI bundle (config.json) of a machine. The same for every machine of a template but for the netns. */
export async function writeBundle({
  directory,
  rootImagePath,
  emptyDir,
  overlayDir,
  netns,
  args = GUEST_COMMAND,
}: BundleOptions): Promise<void> {
  const config = {
    ociVersion: "1.0.2",
    process: {
      user: { uid: 0, gid: 0 },
      args,
      env: [
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG=C.UTF-8",
        "TZ=UTC",
        "HOME=/root",
      ],
      cwd: "/",
      capabilities: {
        bounding: CAPABILITIES,
        effective: CAPABILITIES,
        inheritable: CAPABILITIES,
        permitted: CAPABILITIES,
      },
      rlimits: [{ type: "RLIMIT_NOFILE", hard: 1_048_576, soft: 65_536 }],
    },
    root: { path: emptyDir, readonly: false },
    // The sentry maps the image itself: no gofer process, no copy of a page, and symlinks answer as on any Linux.
    annotations: {
      "dev.gvisor.spec.rootfs.source": rootImagePath,
      "dev.gvisor.spec.rootfs.type": "erofs",
      "dev.gvisor.spec.rootfs.overlay": `dir=${overlayDir}`,
    },
    hostname: "torpor",
    mounts: [
      { destination: "/proc", type: "proc", source: "proc" },
      { destination: "/dev", type: "tmpfs", source: "tmpfs" },
      // Bounded: a tmpfs is memory, and filling an unbounded one ends the machine instead of the writer.
      {
        destination: "/dev/shm",
        type: "tmpfs",
        source: "shm",
        options: ["nosuid", "nodev", "mode=1777", "size=256m"],
      },
      { destination: "/sys", type: "sysfs", source: "sysfs", options: ["nosuid", "noexec", "nodev", "ro"] },
      {
        destination: "/sys/fs/cgroup",
        type: "cgroup",
        source: "cgroup",
        options: ["nosuid", "noexec", "nodev"],
      },
    ],
    linux: {
      namespaces: [
        { type: "pid" },
        { type: "ipc" },
        { type: "uts" },
        { type: "mount" },
        { type: "network", path: `/run/netns/${netns}` },
      ],
    },
  };
  await writeFile(join(directory, "config.json"), JSON.stringify(config));
}
