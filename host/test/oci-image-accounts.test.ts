import { expect, test } from "vitest";
import { readyAccounts } from "../src/oci/image-accounts.ts";

const DEBIAN = {
  passwd: "root:x:0:0:root:/root:/bin/bash\nnode:x:1000:1000::/home/node:/bin/sh\n",
  group: "root:x:0:\nsudo:x:27:node\nnode:x:1000:",
  shadow: "root:*:1::::::\n",
};

test("`user` is added with a free uid, may use sudo, and is whom commands run as where the image names nobody", () => {
  const ready = readyAccounts(DEBIAN, "");
  expect(ready?.chosen).toEqual({ name: "user", uid: 1001, gid: 1001, home: "/home/user" });
  expect(ready?.files.passwd).toBe(`${DEBIAN.passwd}user:x:1001:1001::/home/user:/bin/bash\n`);
  expect(ready?.files.group).toContain("sudo:x:27:node,user\n");
  expect(ready?.files.group).toContain("\nuser:x:1001:\n");
  expect(ready?.files.shadow).toContain("\nuser:*:");
});

test("an image without any accounts gets root, `user` and the group sudo", () => {
  const ready = readyAccounts({ passwd: "", group: "", shadow: undefined }, "");
  expect(ready?.files.passwd).toBe("root:x:0:0::/root:/bin/bash\nuser:x:1000:1000::/home/user:/bin/bash\n");
  expect(ready?.files.group).toMatch(/^root:x:0:\nuser:x:1000:\nsudo:x:\d+:user\n$/);
  expect(ready?.files.shadow).toBeUndefined();
});

test("the image's user is found by name or uid; a uid that nobody has gets an account, a name that nobody has is told", () => {
  const chosen = (user: string) => readyAccounts(DEBIAN, user)?.chosen;
  expect(chosen("node:staff")?.name).toBe("node");
  expect(chosen("1000")?.name).toBe("node");
  expect(chosen("0")?.name).toBe("root");
  expect(chosen("4242")).toEqual({ name: "uid4242", uid: 4242, gid: 0, home: "/home/uid4242" });
  expect(chosen("4242:50")?.gid).toBe(50);
  for (const nobody of ["stranger", "4294967295", "-1", "a b", "99999999999"])
    expect(chosen(nobody)).toBeUndefined();
});

test("lines of an image's files that are no accounts are passed over", () => {
  const passwd = "user:x:notanumber:1::/:\n\0:x:1:1::/:\nuser:x:99999999999:1::/home/user:\nbroken\n";
  expect(readyAccounts({ passwd, group: "", shadow: undefined }, "")?.user).toMatchObject({ uid: 1000 });
});
