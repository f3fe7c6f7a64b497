import { readFile } from "node:fs/promises";
import { CodedError } from "@torpor/protocol";
import { GUEST_PATH, HOSTS, TMP_ON_DISK_PATH } from "../template/finish-root.ts";
import { readyAccounts } from "./image-accounts.ts";
import type { ImageConfig } from "./image-config.ts";
import type { ImageRoot } from "./image-root.ts";

export interface FinishImageOptions {
  /** The image as it was asked for, for errors. */
  image: string;
  config: ImageConfig;
  guestBinaryPath: string;
  /** A bash that needs no library, for images without one. */
  bashPath: string;
}

/** What commands of a template start with. */
export interface ImageDefaults {
  env: Record<string, string>;
  user: string;
  workdir: string;
}

const DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/**
 * Login shells of most images set PATH anew, and what the image itself has set would be lost: this keeps a PATH that there
 * is. What the image's own files in profile.d add, they add here too.
 */
const PROFILE = `# /etc/profile: read by login shells. The image's own, which set PATH anew, is /etc/profile.image.
: "\${PATH:=${DEFAULT_PATH}}"
export PATH
if [ -n "\${PS1-}" ] && [ -n "\${BASH-}" ] && [ -f /etc/bash.bashrc ]; then . /etc/bash.bashrc; fi
for i in /etc/profile.d/*.sh; do
  if [ -r "$i" ]; then . "$i"; fi
done
unset i
`;

/**
 * Puts into an image what a sandbox needs of its root: the guest agent, accounts, mount points, the files that init writes
 * to, and a bash where there is none, so that commands work in an image without any shell.
 *
 * @returns what commands start with: the image's environment, its user or else `user`, its working directory or else the
 *   user's home
 * @throws CodedError `invalid_request` for an image that cannot be made one
 */
export async function finishImageRoot(root: ImageRoot, options: FinishImageOptions): Promise<ImageDefaults> {
  const { image, config } = options;
  for (const path of ["/proc", "/sys", "/dev", "/run", "/run/torpor", "/etc/torpor", "/root"])
    await root.folder(path);
  for (const path of ["/etc/torpor/on-restore.d", "/etc/torpor/before-freeze.d"]) await root.folder(path);
  for (const path of ["/tmp", "/var/tmp", "/run/lock"]) await root.folder(path, { mode: 0o1777 });
  await root.file(TMP_ON_DISK_PATH, "");
  await root.file("/etc/machine-id", "");
  await root.file("/etc/resolv.conf", "");
  await root.file("/etc/hostname", "torpor\n");
  await root.file("/etc/hosts", HOSTS);
  await root.file(GUEST_PATH, await readFile(options.guestBinaryPath), 0o755);
  // gVisor honours no setuid bit: sudo is a client of the agent, in the place of whatever the image has.
  await root.link("/usr/bin/sudo", GUEST_PATH);
  if (!(await root.has("/bin/bash"))) await root.file("/bin/bash", await readBash(options), 0o755);
  if (!(await root.has("/bin/sh"))) await root.link("/bin/sh", "bash");
  const profile = await root.text("/etc/profile");
  if (profile !== undefined) await root.file("/etc/profile.image", profile);
  await root.file("/etc/profile", PROFILE);

  const accounts = readyAccounts(
    {
      passwd: (await root.text("/etc/passwd")) ?? "",
      group: (await root.text("/etc/group")) ?? "",
      shadow: await root.text("/etc/shadow"),
    },
    config.user,
  );
  if (accounts === undefined)
    throw new CodedError(
      "invalid_request",
      `image '${image}' cannot be built from: its commands are to run as '${config.user.slice(0, 64)}', and it has no user of that name`,
    );
  const { files, user, chosen } = accounts;
  await root.file("/etc/passwd", files.passwd);
  await root.file("/etc/group", files.group);
  if (files.shadow !== undefined) await root.file("/etc/shadow", files.shadow, 0o640);
  for (const account of [user, chosen])
    if (account.home.startsWith("/home/") && !(await root.has(account.home)))
      await root.folder(account.home, { owner: account });
  if (!(await root.has("/workspace"))) await root.folder("/workspace", { owner: user });

  const env = { PATH: DEFAULT_PATH, LANG: "C.UTF-8", ...config.env };
  const asked = config.workdir;
  if (/^\/[^\0\n]+$/.test(asked)) {
    await root.folder(asked);
    return { env, user: chosen.name, workdir: asked };
  }
  return { env, user: chosen.name, workdir: (await root.has(chosen.home)) ? chosen.home : "/" };
}

async function readBash({ image, bashPath }: FinishImageOptions): Promise<Buffer> {
  try {
    return await readFile(bashPath);
  } catch (error) {
    throw new CodedError(
      "unsupported",
      `image '${image}' has no bash, which sandboxes run commands with, and there is none to put into it on the host (${bashPath}): have the operator install it (\`apt-get install bash-static\`)`,
      { cause: error },
    );
  }
}
