import {
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { ImageRoot } from "../src/oci/image-root.ts";

let dir: string;
let outside: string;
let root: ImageRoot;
beforeEach(async () => {
  const made = mkdtempSync(join(tmpdir(), "torpor-root-"));
  [dir, outside] = [join(made, "root"), join(made, "outside")];
  mkdirSync(dir);
  mkdirSync(outside);
  writeFileSync(join(outside, "secret"), "host's own");
  root = await ImageRoot.open(dir, "hostile");
});
afterEach(() => rmSync(join(dir, ".."), { recursive: true }));

test("links lead where they would lead inside, and never out of the root", async () => {
  symlinkSync(outside, join(dir, "absolute"));
  symlinkSync(`${"../".repeat(20)}${outside}`, join(dir, "up"));
  for (const link of ["absolute", "up"]) {
    expect(await root.text(`/${link}/secret`)).toBeUndefined();
    await root.file(`/${link}/written`, "x");
  }
  expect(readdirSync(outside)).toEqual(["secret"]);
  expect(readFileSync(join(dir, outside, "written"), "utf8")).toBe("x");
});

test("a file is put in the place of a link or a folder, not where that leads", async () => {
  symlinkSync(join(outside, "secret"), join(dir, "hosts"));
  mkdirSync(join(dir, "folder", "inner"), { recursive: true });
  await root.file("/hosts", "ours");
  await root.file("/folder", "ours");
  expect(readFileSync(join(outside, "secret"), "utf8")).toBe("host's own");
  expect(lstatSync(join(dir, "hosts")).isFile()).toBe(true);
  expect(readFileSync(join(dir, "folder"), "utf8")).toBe("ours");
});

test("links that go round, and files where folders are needed, are refused with the path", async () => {
  symlinkSync("b", join(dir, "a"));
  symlinkSync("a", join(dir, "b"));
  writeFileSync(join(dir, "etc"), "a file");
  await expect(root.file("/a/x", "")).rejects.toThrow(/image 'hostile'.*needs \/a\/x/);
  await expect(root.folder("/etc/torpor")).rejects.toThrow(/needs \/etc\/torpor/);
  expect(await root.has("/a")).toBe(false);
});

test("a folder is made with its owner and its mode, below links inside too", async () => {
  mkdirSync(join(dir, "var", "home"), { recursive: true });
  symlinkSync("/var/home", join(dir, "home"));
  await root.folder("/home/user", { mode: 0o700 });
  expect(lstatSync(join(dir, "var", "home", "user")).mode & 0o7777).toBe(0o700);
  expect(await root.has("/home/user")).toBe(true);
  expect(existsSync(join(dir, "var", "home", "user"))).toBe(true);
});

test("a link to elsewhere, a file or nothing in the place of a root is refused", async () => {
  symlinkSync(outside, `${dir}-link`);
  for (const place of [`${dir}-link`, join(outside, "secret"), `${dir}-nowhere`])
    await expect(ImageRoot.open(place, "hostile")).rejects.toThrow(/'hostile' .* leave no root folder/);
});
