import { spawn } from "node:child_process";
import {
  chmod,
  link,
  lstat,
  mkdir,
  mkdtemp,
  readFile,
  readdir,
  rm,
  symlink,
  utimes,
  writeFile,
} from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { run } from "@torpor/base";
import { afterEach, beforeEach, expect, test } from "vitest";
import { digestTree } from "../src/template/index.ts";
import { mountsBelow, removeTree } from "../src/template/mounts.ts";
import { PackageCache } from "../src/template/package-cache.ts";
import { placeFile, placeFolder, placeLink } from "../src/template/place-file.ts";
import { lockTemplate } from "../src/template/template-lock.ts";

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "torpor-tree-"));
});
afterEach(async () => {
  await rm(dir, { recursive: true, force: true });
});

test("files of a recipe never follow a link out of the new root", async () => {
  const outside = join(dir, "outside");
  const root = join(dir, "root");
  await mkdir(outside);
  await mkdir(join(root, "etc"), { recursive: true });
  await writeFile(join(outside, "passwd"), "machine");
  await symlink(outside, join(root, "etc/away"));
  await symlink(join(outside, "passwd"), join(root, "etc/passwd"));

  await expect(placeFile(root, "/etc/away/passwd", "evil")).rejects.toMatchObject({
    code: "invalid_request",
  });
  await expect(placeFolder(root, "/etc/away/x/y")).rejects.toMatchObject({ code: "invalid_request" });
  await expect(placeFile(root, "/../outside/passwd", "evil")).rejects.toMatchObject({
    code: "invalid_request",
  });
  await expect(placeFolder(root, "/etc/away")).rejects.toMatchObject({ code: "invalid_request" });
  await placeFile(root, "/etc/passwd", "sandbox", 0o640);
  await placeLink(root, "/etc/new/link", "/target");

  expect(await readFile(join(outside, "passwd"), "utf8")).toBe("machine");
  expect(await readdir(outside)).toEqual(["passwd"]);
  const placed = await lstat(join(root, "etc/passwd"));
  expect([placed.isFile(), placed.mode & 0o777]).toEqual([true, 0o640]);
});

test("the mount table is read with its octal escapes, deepest mount first", async () => {
  const table =
    "1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:2 / /t/a\\040b rw - tmpfs t rw\n3 2 0:3 / /t/a\\040b/deep\\134er rw - proc p rw\n4 1 0:4 / /t/a rw - tmpfs t rw\n";
  expect(await mountsBelow("/t/a b", table)).toEqual(["/t/a b/deep\\er", "/t/a b"]);
  expect(await mountsBelow("/t/a", table)).toEqual(["/t/a"]);
});

const isRoot = process.getuid?.() === 0;
if (!isRoot) console.log("skipped: removing a tree with a mount in it needs root");
test.skipIf(!isRoot)(
  "a tree with something mounted in it is unmounted, then removed, and the mounted files live",
  async () => {
    const precious = join(dir, "precious");
    const tree = join(dir, "tree");
    await mkdir(precious);
    await mkdir(join(tree, "deep/mounted"), { recursive: true });
    await writeFile(join(precious, "file"), "kept");
    await run(["mount", "--bind", precious, join(tree, "deep/mounted")]);
    await removeTree(tree);
    expect(await readdir(dir)).toEqual(["precious"]);
    expect(await readFile(join(precious, "file"), "utf8")).toBe("kept");
    await removeTree(tree);
  },
);

test("a tree's digest tells every difference that a program could see, and no other", async () => {
  const root = join(dir, "root");
  await mkdir(join(root, "a/b"), { recursive: true });
  await writeFile(
    Buffer.concat([Buffer.from(`${root}/a/`), Buffer.from([0x66, 0xff])]),
    "name that is no UTF-8",
  );
  await writeFile(join(root, "a/file"), "1");
  await symlink("file", join(root, "a/link"));
  const still = async (): Promise<void> => {
    for (const path of [join(root, "a/file"), join(root, "a/b"), join(root, "a"), root])
      await utimes(path, 1000, 1000);
  };
  const digests: string[] = [];
  const step = async (): Promise<void> => {
    await still();
    digests.push((await digestTree(root)).sha256);
  };
  await step();
  await step();
  expect(digests[0]).toBe(digests[1]);
  await writeFile(join(root, "a/file"), "2");
  await step();
  await chmod(join(root, "a/file"), 0o4755);
  await step();
  await rm(join(root, "a/link"));
  await symlink("other", join(root, "a/link"));
  await step();
  await link(join(root, "a/file"), join(root, "a/b/hard"));
  await step();
  await utimes(join(root, "a/file"), 2000, 2000);
  digests.push((await digestTree(root)).sha256);
  expect(new Set(digests).size).toBe(digests.length - 1);
  const { entryCount } = await digestTree(root);
  expect(entryCount).toBe(7);
  await expect(digestTree(root, AbortSignal.abort(new Error("enough")))).rejects.toThrow("enough");
});

test("a second taker of a lock waits for the first, in this process and in others", async () => {
  const order: string[] = [];
  const first = await lockTemplate(dir, "f".repeat(64));
  const second = lockTemplate(dir, "f".repeat(64), { onWait: () => order.push("waits") }).then((release) => {
    order.push("second");
    return release;
  });
  await expect.poll(() => order).toEqual(["waits"]);
  await (
    await lockTemplate(dir, "0".repeat(64))
  )(); // another template's lock is free
  order.push("release");
  await first();
  await (
    await second
  )();
  expect(order).toEqual(["waits", "release", "second"]);
});

test("waiting for a lock can be aborted, and leaves the lock to its holder", async () => {
  const hold = await lockTemplate(dir, "f".repeat(64));
  const controller = new AbortController();
  const waiting = lockTemplate(dir, "f".repeat(64), { signal: controller.signal });
  controller.abort(new Error("no longer wanted"));
  await expect(waiting).rejects.toThrow("no longer wanted");
  await hold();
  await (
    await lockTemplate(dir, "f".repeat(64))
  )();
});

test("a lock dies with the process that holds it", async () => {
  const holder = spawn(
    process.execPath,
    [
      "--conditions=source",
      "--import",
      "tsx",
      join(import.meta.dirname, "template-lock-holder.ts"),
      dir,
      "f".repeat(64),
    ],
    { stdio: ["ignore", "pipe", "inherit"] },
  );
  await new Promise((resolve) => holder.stdout.once("data", resolve));
  let waited = false;
  const mine = lockTemplate(dir, "f".repeat(64), { onWait: () => (waited = true) });
  await expect.poll(() => waited).toBe(true);
  holder.kill("SIGKILL");
  await (
    await mine
  )();
});

test("kept packages are lent to the next build, bounded, oldest first", async () => {
  const cache = new PackageCache(join(dir, "cache"), 250);
  const archives = join(dir, "archives");
  await mkdir(join(archives, "partial"), { recursive: true });
  await writeFile(join(archives, "old.deb"), Buffer.alloc(100));
  await writeFile(join(archives, "lock"), "");
  await cache.lend(archives);
  await cache.keep(archives, new Date(1_000_000));
  await rm(join(archives, "old.deb"));
  await writeFile(join(archives, "new.deb"), Buffer.alloc(100));
  await writeFile(join(archives, "newer.deb"), Buffer.alloc(100));
  await cache.keep(archives, new Date(2_000_000));
  const next = join(dir, "next");
  await mkdir(next);
  await cache.lend(next);
  expect((await readdir(next)).sort()).toEqual(["new.deb", "newer.deb"]);
  await cache.clear();
  await cache.lend(next);
  expect((await readdir(next)).sort()).toEqual(["new.deb", "newer.deb"]);
});
