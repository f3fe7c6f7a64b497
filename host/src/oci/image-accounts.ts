/** Accounts of an image, as lines of its files; see passwd(5), group(5), shadow(5). */
export interface AccountFiles {
  passwd: string;
  group: string;
  /** Undefined where the image has none. */
  shadow: string | undefined;
}

interface Account {
  name: string;
  uid: number;
  gid: number;
  home: string;
}

export interface ReadyAccounts {
  files: AccountFiles;
  /** The user that every sandbox has. */
  user: Account;
  /** Whom the image's commands run as by default. */
  chosen: Account;
}

const USER = "user";
const FIRST_UID = 1_000;
const USER_NAME = /^[a-z_][a-z0-9_-]*$/i;

/**
 * Adds what a sandbox takes for granted: root, and `user` with a home and a free uid from 1000 on. `imageUser` is what the
 * image says (a name or a uid, either with a group, which is not looked at); where it says nothing it is `user`. A uid that
 * nobody has gets an account, since commands run by name.
 *
 * @returns undefined where the image names a user that it does not have
 */
export function readyAccounts(given: AccountFiles, imageUser: string): ReadyAccounts | undefined {
  const files = { ...given };
  const add = (account: Account, shell: string): Account => {
    files.passwd = appended(
      files.passwd,
      `${account.name}:x:${account.uid}:${account.gid}::${account.home}:${shell}`,
    );
    if (!fieldsOf(files.group).some(([, , gid]) => gid === String(account.gid)))
      files.group = appended(files.group, `${freeName(files.group, account.name)}:x:${account.gid}:`);
    if (files.shadow !== undefined)
      files.shadow = appended(files.shadow, `${account.name}:*:19000:0:99999:7:::`);
    return account;
  };
  if (find(files.passwd, ({ uid }) => uid === 0) === undefined)
    add({ name: "root", uid: 0, gid: 0, home: "/root" }, "/bin/bash");
  const user =
    find(files.passwd, ({ name }) => name === USER) ?? add(ownGroup(freeId(files), USER), "/bin/bash");
  files.group = withSudo(files.group);
  const [asked = "", group = ""] = imageUser.split(":");
  if (asked === "") return { files, user, chosen: user };
  const known =
    find(files.passwd, ({ name }) => name === asked) ??
    (/^\d+$/.test(asked) ? find(files.passwd, ({ uid }) => uid === Number(asked)) : undefined);
  if (known !== undefined) return { files, user, chosen: known };
  const uid = Number(asked);
  if (!/^\d{1,10}$/.test(asked) || !isId(uid)) return undefined;
  // Container runtimes give one that nobody has the group 0, unless the image names another.
  const gid = /^\d{1,10}$/.test(group) && isId(Number(group)) ? Number(group) : 0;
  const name = `uid${uid}`;
  return { files, user, chosen: add({ name, uid, gid, home: `/home/${name}` }, "/bin/bash") };
}

function ownGroup(id: number, name: string): Account {
  return { name, uid: id, gid: id, home: `/home/${name}` };
}

/** The last number is none: the kernel takes it for "leave it". */
function isId(id: number): boolean {
  return Number.isInteger(id) && id >= 0 && id <= 0xffff_fffe;
}

function find(passwd: string, matches: (account: Account) => boolean): Account | undefined {
  return fieldsOf(passwd)
    .map(([name = "", , uid, gid, , home = ""]) => ({
      name,
      uid: Number(uid),
      gid: Number(gid),
      home: /^\/[^\0]*$/.test(home) ? home : "/",
    }))
    .filter(({ name, uid, gid }) => USER_NAME.test(name) && isId(uid) && isId(gid))
    .find(matches);
}

function freeId({ passwd, group }: AccountFiles): number {
  const taken = new Set([...fieldsOf(passwd), ...fieldsOf(group)].map(([, , id]) => Number(id)));
  let id = FIRST_UID;
  while (taken.has(id)) id += 1;
  return id;
}

/** The agent's sudo serves the members of the group of that name. */
function withSudo(group: string): string {
  const lines = group.split("\n");
  const at = lines.findIndex((line) => line.startsWith("sudo:"));
  const line = lines[at];
  if (line === undefined)
    return appended(group, `sudo:x:${freeId({ passwd: "", group, shadow: undefined })}:${USER}`);
  const members = (line.split(":")[3] ?? "").split(",").filter((name) => name !== "");
  if (members.includes(USER)) return group;
  lines[at] = [...line.split(":").slice(0, 3), [...members, USER].join(",")].join(":");
  return lines.join("\n");
}

function freeName(group: string, wanted: string): string {
  const taken = new Set(fieldsOf(group).map(([name]) => name));
  let name = wanted;
  for (let number = 1; taken.has(name); number += 1) name = `${wanted}${number}`;
  return name;
}

function fieldsOf(text: string): string[][] {
  return text
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => line.split(":"));
}

function appended(text: string, line: string): string {
  return `${text}${text === "" || text.endsWith("\n") ? "" : "\n"}${line}\n`;
}
