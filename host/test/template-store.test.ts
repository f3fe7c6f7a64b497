import { mkdir, mkdtemp, readdir, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { processIdentity } from "../src/process-identity.ts";
import { type TemplateManifest, TemplateStore } from "../src/template/index.ts";

let dir: string;
let store: TemplateStore;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "torpor-store-"));
  store = new TemplateStore(dir);
  await store.open();
});
afterEach(async () => {
  await rm(dir, { recursive: true, force: true });
});

const A = `aaaaaaaa1${"0".repeat(55)}`;
const B = `aaaaaaaa2${"0".repeat(55)}`;

function manifest(name: string, hash: string, builtAt = "2026-01-01T00:00:00.000Z"): TemplateManifest {
  return {
    formatVersion: 1,
    name,
    hash,
    description: "",
    suite: "bookworm",
    architecture: "amd64",
    builderVersion: 1,
    driverVersion: "gvisor/1",
    guestSha256: "",
    sourceDateEpoch: 0,
    treeDigest: "",
    sizeBytes: 1,
    entryCount: 1,
    packages: [],
    env: {},
    user: "root",
    workdir: "/",
    services: [],
    builtAt,
    buildSeconds: 1,
  };
}

async function built(name: string, hash: string, builtAt?: string): Promise<void> {
  const building = join(dir, `.building-1-1-${hash.slice(0, 9)}`);
  await mkdir(join(building, "rootfs"), { recursive: true });
  await writeFile(join(building, "manifest.json"), JSON.stringify(manifest(name, hash, builtAt)));
  expect(await store.commitBuilt(building, hash)).toBe(true);
}

test("a committed template is found by name, hash and the beginning of its hash", async () => {
  await built("base", A);
  await store.commitName("base", A);
  for (const key of ["base", A, A.slice(0, 9)]) {
    const found = await store.resolve(key);
    expect(found).toMatchObject({
      name: "base",
      hash: A,
      rootfsDir: join(dir, A, "rootfs"),
      names: ["base"],
    });
    expect(found.goldenDir("gvisor")).toBe(join(dir, A, "golden/gvisor"));
  }
});

test("what is not there is not found, and the answer names what is", async () => {
  await built("base", A);
  await store.commitName("base", A);
  for (const key of ["other", "", "..", "../x", ".locks", "by-name", "b".repeat(64), "aaaaaaa", "base\0"]) {
    await expect(store.resolve(key)).rejects.toMatchObject({
      code: "template_not_found",
      message: expect.stringContaining("base") as string,
    });
  }
});

test("a beginning that two hashes share is refused", async () => {
  await built("base", A);
  await built("base", B);
  await expect(store.resolve("aaaaaaaa")).rejects.toMatchObject({ code: "invalid_request" });
});

test("a name moves to a newer build in one step and the older one stays reachable by hash", async () => {
  await built("base", A, "2026-01-01T00:00:00.000Z");
  await built("base", B, "2026-02-01T00:00:00.000Z");
  await store.commitName("base", A);
  // Readers that run while names are replaced never see the name missing.
  const readers = Array.from({ length: 20 }, async (_, i) => {
    await store.commitName("base", i % 2 === 0 ? A : B);
    return (await store.resolve("base")).name;
  });
  expect(new Set(await Promise.all(readers))).toEqual(new Set(["base"]));
  await store.commitName("base", B);
  expect((await store.resolve("base")).hash).toBe(B);
  expect((await store.list()).map((template) => [template.hash, template.names])).toEqual([
    [B, ["base"]],
    [A, []],
  ]);
  expect((await readdir(join(dir, "by-name"))).sort()).toEqual(["base"]);
});

test("a second build of the same hash is left where it is", async () => {
  await built("base", A);
  const second = join(dir, ".building-1-1-00");
  await mkdir(second);
  expect(await store.commitBuilt(second, A)).toBe(false);
  expect(await readdir(dir)).toContain(".building-1-1-00");
});

test("names for templates that are not there, or that are no names, are refused", async () => {
  await built("base", A);
  await expect(store.commitName("base", B)).rejects.toMatchObject({ code: "template_not_found" });
  for (const name of ["", "../x", "UP", ".x", "a/b"])
    await expect(store.commitName(name, A)).rejects.toMatchObject({ code: "invalid_request" });
});

test("a template in use is not removed; otherwise it goes with its names", async () => {
  await built("base", A);
  await store.commitName("base", A);
  await store.commitName("alias", A);
  await expect(store.remove(A, { inUse: (hash) => hash === A })).rejects.toMatchObject({ code: "conflict" });
  expect(await store.list()).toHaveLength(1);
  await store.remove(A, { inUse: async () => false });
  expect(await store.list()).toEqual([]);
  expect((await readdir(dir)).sort()).toEqual([".locks", "by-name"]);
  expect(await readdir(join(dir, "by-name"))).toEqual([]);
  await expect(store.remove("base", { inUse: () => false })).rejects.toMatchObject({
    code: "template_not_found",
  });
});

test("of two names that lead to one template each is removed alone, and the template with the last", async () => {
  await built("minea", A);
  await store.commitName("minea", A);
  await store.commitName("mineb", A);
  await store.remove("minea", { inUse: () => true });
  expect((await store.list()).map(({ hash, names }) => [hash, names])).toEqual([[A, ["mineb"]]]);
  await expect(store.remove("mineb", { inUse: () => true })).rejects.toMatchObject({
    code: "conflict",
    message: expect.stringMatching(/^Template mineb \(/) as string,
  });
  await store.remove("mineb", { inUse: () => false });
  expect(await store.list()).toEqual([]);
});

test("the sweep takes what dead processes left, and leaves what is finished or under way", async () => {
  await built("base", A);
  await store.commitName("base", A);
  await symlink("../nowhere", join(dir, "by-name/dangling"));
  await symlink("../x", join(dir, "by-name/.base-0123"));
  const me = processIdentity(process.pid);
  const mine = `.building-${me?.pid}-${me?.startTime}-abc`;
  const reusedPid = `.building-${me?.pid}-1-abc`;
  for (const name of [mine, reusedPid, ".building-999999999-5-abc", ".removing-999999999-5-abc"])
    await mkdir(join(dir, name, "deep/er"), { recursive: true });
  expect((await store.sweep()).sort()).toEqual(
    [
      ".building-999999999-5-abc",
      reusedPid,
      ".removing-999999999-5-abc",
      "by-name/.base-0123",
      "by-name/dangling",
    ].sort(),
  );
  expect((await readdir(dir)).sort()).toEqual([mine, A, "by-name"].sort());
  expect((await store.resolve("base")).hash).toBe(A);
});

test("one damaged manifest does not hide the other templates, and is reported", async () => {
  await built("base", A);
  await built("other", B);
  await writeFile(join(dir, A, "manifest.json"), "{");
  await expect(store.list()).rejects.toMatchObject({
    message: expect.stringContaining(join(dir, A)) as string,
  });
  const broken: string[] = [];
  expect((await store.list((hash) => broken.push(hash))).map((template) => template.name)).toEqual(["other"]);
  expect(broken).toEqual([A]);
});

test("a folder that cannot be read is an error, not an empty list", async () => {
  await writeFile(join(dir, "file"), "");
  await expect(new TemplateStore(join(dir, "file")).list()).rejects.toMatchObject({ code: "ENOTDIR" });
  expect(await new TemplateStore(join(dir, "not-made-yet")).list()).toEqual([]);
});
