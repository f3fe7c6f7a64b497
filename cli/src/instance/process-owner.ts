import { readFileSync } from "node:fs";

/** A user and a group by number. */
export interface Owner {
  uid: number;
  gid: number;
}

/** Who the API key file belongs to: the person who ran `up`, also through sudo. */
export function invokingOwner(env: NodeJS.ProcessEnv): Owner {
  const uid = Number(env["SUDO_UID"] ?? "");
  const gid = Number(env["SUDO_GID"] ?? "");
  if (env["SUDO_UID"] && env["SUDO_GID"] && Number.isInteger(uid) && Number.isInteger(gid))
    return { uid, gid };
  return { uid: process.getuid?.() ?? 0, gid: process.getgid?.() ?? 0 };
}

/** uid and gid of a user in the text of /etc/passwd. */
export function parsePasswd(passwd: string, user: string): Owner | null {
  for (const line of passwd.split("\n")) {
    const [name, , uid, gid] = line.split(":");
    if (name === user && uid !== undefined && gid !== undefined)
      return { uid: Number(uid), gid: Number(gid) };
  }
  return null;
}

/** `nobody` and `nogroup`, the same numbers on every Linux. */
const NOBODY: Owner = { uid: 65_534, gid: 65_534 };

/** Who the server runs as: the system user `torpor` where an administrator made one, else `nobody`. */
export function serverOwner(): Owner {
  return parsePasswd(readFileSync("/etc/passwd", "utf8"), "torpor") ?? NOBODY;
}
