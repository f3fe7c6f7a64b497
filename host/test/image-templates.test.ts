import { mkdir, mkdtemp, readdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Gate, silentLog } from "@torpor/base";
import { afterEach, beforeEach, expect, test } from "vitest";
import { CgroupTree } from "../src/cgroup.ts";
import type { Headroom } from "../src/machine/capacity.ts";
import { ImageRoom } from "../src/machine/image-room.ts";
import { goldenName } from "../src/machine/golden.ts";
import { TemplatePools } from "../src/machine/template-pools.ts";
import { ImagesFolder } from "../src/oci/images-folder.ts";
import { TemplateStore } from "../src/template/index.ts";
import { IMAGE_FILE } from "./fakes/fake-driver.ts";
import { MachineBench } from "./fakes/machine-bench.ts";
import { until } from "./fakes/until.ts";

const MINUTE_MS = 60_000;
const HOUR_MS = 60 * MINUTE_MS;

let dir: string;
let store: TemplateStore;
let bench: MachineBench;
let pools: TemplatePools;
const free: Headroom = { memoryMb: 1, diskMb: 50_000, diskUsedPercent: 50, diskWatermarkPercent: 90 };
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "torpor-image-templates-"));
  store = new TemplateStore(dir);
  await store.open();
  bench = new MachineBench();
  await bench.open();
  free.diskUsedPercent = 50;
  pools = new TemplatePools({
    store,
    driver: bench.driver,
    slots: bench.slots,
    clock: bench.clock,
    log: silentLog,
    restoreGate: new Gate(1),
    readyTarget: 0,
    shellTarget: 0,
    shellDemandMs: 60_000,
    diskMib: 64,
    limits: { cpu: 1, memoryMib: 64 },
    preparation: () => ({ machine_id: "" }),
    recipeDirs: [],
    guestBinaryPath: "",
    cacheDir: dir,
    images: {
      folder: new ImagesFolder(dir),
      registries: [],
      registryAccess: { caFile: undefined, proxyEnv: {} },
      bashPath: "",
      maxMib: 1,
      room: new ImageRoom(() => free),
      cgroups: new CgroupTree({ version: 2, directories: {} }, "none"),
      gate: new Gate(1),
    },
  });
});
afterEach(async () => {
  await pools.stop();
  await bench.close();
  await rm(dir, { recursive: true, force: true });
});

const hashOf = (letter: string): string => letter.repeat(64);

/** A template of an image, that was asked for so long ago. */
async function image(letter: string, unusedMs: number, kib = 4): Promise<void> {
  const hash = hashOf(letter);
  await mkdir(join(dir, hash, "golden"), { recursive: true });
  await writeFile(join(dir, hash, "golden", "root"), Buffer.alloc(kib * 1024, 1));
  const manifest = {
    formatVersion: 1,
    name: "image",
    hash,
    description: "",
    architecture: "amd64",
    builderVersion: 1,
    driverVersion: "",
    guestSha256: "",
    sourceDateEpoch: 0,
    image: { reference: "a", configDigest: "b" },
    sizeBytes: 1,
    entryCount: 0,
    packages: [],
    env: {},
    user: "root",
    workdir: "/",
    services: [],
    builtAt: "2026-01-01T00:00:00.000Z",
    buildSeconds: 1,
  };
  await writeFile(join(dir, hash, "manifest.json"), JSON.stringify(manifest));
  await store.markUsed(hash, bench.clock.now() - unusedMs);
}
/** Its golden snapshot, as baked by this driver build. @returns where the image in it is */
async function golden(letter: string, extra: { host_key?: string }): Promise<string> {
  const goldenDir = join(dir, hashOf(letter), "golden", goldenName(bench.driver));
  const imageDir = join(goldenDir, "image");
  await mkdir(imageDir, { recursive: true });
  await writeFile(join(goldenDir, "root.img"), "");
  await writeFile(join(imageDir, IMAGE_FILE), JSON.stringify({ memory: "", files: "" }));
  const { name, version, acceleration } = bench.driver.info;
  await writeFile(
    join(goldenDir, "golden.json"),
    JSON.stringify({ driver: name, driver_version: version, acceleration, ...extra }),
  );
  return imageDir;
}
const kept = async (): Promise<string> =>
  (await readdir(dir))
    .filter((name) => name.length === 64)
    .map((name) => name[0])
    .sort()
    .join("");
const nothing = (): Promise<Set<string>> => Promise.resolve(new Set());

test("images that nobody needs are kept for a week, up to the bytes of one image, the last used first", async () => {
  await image("a", 8 * 24 * HOUR_MS);
  await image("b", 3 * HOUR_MS, 600);
  await image("c", 2 * HOUR_MS, 300);
  await image("d", 1 * HOUR_MS, 600);
  await image("e", 1 * MINUTE_MS, 2_000);
  await pools.sweepImages(() => Promise.resolve(new Set([hashOf("b")])));
  expect(await kept()).toBe("be"); // with what is new alone there are enough
  await image("c", 2 * HOUR_MS, 300);
  await image("d", 1 * HOUR_MS, 600);
  await image("e", 1 * MINUTE_MS, 8);
  await pools.sweepImages(nothing);
  expect(await kept()).toBe("cde");
});

test("while the disk is full none is kept that nothing stands on, however new", async () => {
  await image("a", 2 * HOUR_MS);
  await image("b", 0);
  await image("c", 0);
  free.diskUsedPercent = 91;
  await pools.sweepImages(() => Promise.resolve(new Set([hashOf("c")])));
  expect(await kept()).toBe("c");
});

test("an image that is asked for, or stood on, while others are removed stays", async () => {
  const old = 8 * 24 * HOUR_MS;
  await image("a", old);
  await image("b", old);
  await image("c", old + HOUR_MS);
  let asked = 0;
  await pools.sweepImages(async () => {
    asked += 1;
    if (asked === 1) return new Set();
    await store.markUsed(hashOf("a"), bench.clock.now());
    return new Set([hashOf("b")]);
  });
  expect(await kept()).toBe("ab");
});

test("a template that something came to stand on since it was asked, or is being made from, is not removed", async () => {
  await image("a", 0);
  let asked = 0;
  const comesLate = (): Promise<Set<string>> =>
    Promise.resolve(new Set((asked += 1) > 1 ? [hashOf("a")] : []));
  await expect(pools.remove(hashOf("a"), comesLate)).rejects.toMatchObject({ code: "conflict" });
  await golden("a", { host_key: "the template's" });
  const release = bench.driver.hold("restore");
  const made = pools.acquire(`image:${hashOf("a")}`, 64, new AbortController().signal);
  await until(() => bench.driver.machines.size > 0);
  await expect(pools.remove(hashOf("a"), nothing)).rejects.toMatchObject({ code: "conflict" });
  release();
  const { handle, guest, template } = await made;
  expect(template.hash).toBe(hashOf("a"));
  expect(await kept()).toBe("a");
  guest.close();
  await bench.slots.clear(handle.place.slot);
  await new Promise(setImmediate); // what is made is its maker's from then on
  await pools.remove(hashOf("a"), nothing);
  expect(await kept()).toBe("");
});

test("the list has every name of a template; removing one leaves the others, and the last takes the template along", async () => {
  await image("a", 0);
  await store.commitName("mineb", hashOf("a"));
  await store.commitName("minea", hashOf("a"));
  const names = async (): Promise<string[]> => (await pools.list()).map(({ name }) => name);
  expect(await names()).toEqual(["minea", "mineb"]);
  const inUse = (): Promise<Set<string>> => Promise.resolve(new Set([hashOf("a")]));
  await pools.remove("mineb", inUse);
  expect(await names()).toEqual(["minea"]);
  await expect(pools.remove("minea", inUse)).rejects.toThrow(/^Template minea .* cannot be removed/);
  await pools.remove("minea", nothing);
  expect(await kept()).toBe("");
});

test("what stands on a template whose golden snapshot an earlier Torpor baked is restored; nothing new is made from it", async () => {
  await image("a", 0);
  const imageDir = await golden("a", {});
  const { signal } = new AbortController();
  await expect(pools.acquire(`image:${hashOf("a")}`, 64, signal)).rejects.toMatchObject({
    code: "template_not_ready",
  });
  const { place } = await pools.restore(hashOf("a"), 64, imageDir, signal, () => {});
  expect(bench.driver.restored).toEqual([place.slot]);
  await bench.slots.clear(place.slot);
  await expect(pools.restore(hashOf("b"), 64, imageDir, signal, () => {})).rejects.toMatchObject({
    code: "image_incompatible",
  });
});
