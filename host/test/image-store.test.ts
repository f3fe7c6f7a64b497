import {
  appendFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  truncateSync,
  unlinkSync,
  writeFileSync,
} from "node:fs";
import { createHash } from "node:crypto";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { blake3 } from "@napi-rs/blake-hash";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { type ImageManifest, ImageStore, type NewImage } from "../src/image/image-store.ts";

const ID = "img00000000000000000000001";

let directory: string;
let store: ImageStore;
beforeEach(async () => {
  directory = join(mkdtempSync(join(tmpdir(), "torpor-test-images-")), "images");
  store = new ImageStore(directory);
  await store.open();
});
afterEach(() => rmSync(join(directory, ".."), { recursive: true, force: true }));

function image(changes: Partial<NewImage> = {}): NewImage {
  return {
    id: ID,
    kind: "hibernation",
    memory: true,
    machine_id: "m",
    tenant: "acme",
    generation: 3,
    template: "base",
    template_hash: "aa",
    driver: "gvisor",
    driver_version: "1",
    acceleration: "systrap",
    cpu: 1,
    memory_mb: 512,
    disk_mb: 4096,
    network: "internet",
    host_key: "key",
    settings: { env: { A: "b" }, user: "user", workdir: "/workspace" },
    name: null,
    ...changes,
  };
}

async function write(dataDir: string): Promise<void> {
  mkdirSync(dataDir);
  writeFileSync(join(dataDir, "pages.img"), Buffer.alloc(300_000, 7));
  writeFileSync(join(dataDir, "checkpoint.img"), "kernel");
  writeFileSync(join(dataDir, "empty.img"), "");
}

const commit = (changes: Partial<NewImage> = {}): Promise<ImageManifest> =>
  store.commit(image(changes), write);
const list = (): Promise<ImageManifest[]> =>
  store.list((id, error) => {
    throw new Error(`${id}: ${String(error)}`);
  });

describe("committing an image", () => {
  test("makes it whole at one moment: before, nothing bears its name; afterwards, it verifies", async () => {
    const manifest = await store.commit(image(), async (dataDir) => {
      await write(dataDir);
      expect(await store.find(ID)).toBeUndefined();
      expect(await list()).toEqual([]);
      expect(existsSync(join(directory, ID))).toBe(false);
    });
    expect(manifest).toMatchObject({ ...image(), format: 1, size_bytes: 300_006 });
    expect(manifest.files.map(({ name, size }) => [name, size])).toEqual([
      ["checkpoint.img", 6],
      ["empty.img", 0],
      ["pages.img", 300_000],
    ]);
    expect(await store.find(ID)).toEqual(manifest);
    expect(await list()).toEqual([manifest]);
    await store.verify(manifest);
    expect(readdirSync(directory)).toEqual([ID]);
  });

  test("leaves nothing when writing fails half-way", async () => {
    const attempt = store.commit(image(), async (dataDir) => {
      await write(dataDir);
      throw new Error("no space left on device");
    });
    await expect(attempt).rejects.toThrow("no space left");
    expect(readdirSync(directory)).toEqual([]);
    await commit();
  });

  test("hashes what grows while it is written, wherever the pieces end", async () => {
    const pieces = Array.from({ length: 40 }, (_, index) => Buffer.alloc(100_001 + index, index));
    const manifest = await store.commit(
      image(),
      async (dataDir) => {
        mkdirSync(dataDir);
        for (const piece of pieces) {
          appendFileSync(join(dataDir, "pages.img"), piece);
          await delay(2);
        }
        writeFileSync(join(dataDir, "checkpoint.img"), "kernel");
      },
      ["pages.img", "never-made.img"],
    );
    const whole = Buffer.concat(pieces);
    expect(manifest.files.find(({ name }) => name === "pages.img")).toEqual({
      name: "pages.img",
      size: whole.length,
      blake3: blake3(whole).toString("hex"),
    });
    await store.verify(manifest);
  });

  test("forgets what it has hashed of one that fails half-way", async () => {
    const attempt = store.commit(
      image(),
      async (dataDir) => {
        await write(dataDir);
        await delay(30);
        throw new Error("no space left on device");
      },
      ["pages.img"],
    );
    await expect(attempt).rejects.toThrow("no space left");
    await store.verify(await store.commit(image(), write, ["pages.img"]));
  });

  test("never writes over an image that exists", async () => {
    const first = await commit();
    await expect(
      store.commit(image(), async (dataDir) => {
        mkdirSync(dataDir);
        writeFileSync(join(dataDir, "pages.img"), "another");
      }),
    ).rejects.toThrow();
    await store.verify(first);
    expect(readdirSync(directory)).toEqual([ID]);
  });

  test("is readable by root alone", async () => {
    await commit();
    expect(statSync(directory).mode & 0o077).toBe(0);
    expect(statSync(join(directory, ID)).mode & 0o077).toBe(0);
    expect(statSync(join(directory, ID, "manifest.json")).mode & 0o077).toBe(0);
  });
});

describe("opening", () => {
  test("sweeps what was being written or removed when a process died, and keeps what is whole", async () => {
    const manifest = await commit();
    mkdirSync(join(directory, `.${ID}2.unfinished`, "data"), { recursive: true });
    writeFileSync(join(directory, `.${ID}2.unfinished`, "data", "pages.img"), "half");
    mkdirSync(join(directory, `.${ID}3.removing`));
    store = new ImageStore(directory);
    await store.open();
    expect(readdirSync(directory)).toEqual([ID]);
    await store.verify(manifest);
  });

  test("makes the folder when there is none", async () => {
    rmSync(directory, { recursive: true });
    await store.open();
    expect(await list()).toEqual([]);
  });
});

describe("a fork's image", () => {
  const fork = (): Promise<ImageManifest> => commit({ kind: "fork" });

  test("is found and restored from like any other, but not listed", async () => {
    const manifest = await fork();
    expect(manifest).toMatchObject({ kind: "fork", size_bytes: 300_006 });
    expect(await store.find(ID)).toEqual(manifest);
    await store.verify(manifest);
    expect(readdirSync(store.dataDir(ID)).toSorted()).toEqual(["checkpoint.img", "empty.img", "pages.img"]);
    expect(await list()).toEqual([]);
  });

  test("goes when it is removed, and with the process", async () => {
    await fork();
    await store.remove(ID);
    await vi.waitFor(() => expect(readdirSync(directory)).toEqual([]));
    expect(await store.find(ID)).toBeUndefined();
    await fork();
    store = new ImageStore(directory);
    expect(await store.find(ID)).toBeUndefined();
    await store.open();
    expect(readdirSync(directory)).toEqual([]);
  });

  test("leaves nothing when writing fails half-way", async () => {
    const attempt = store.commit(image({ kind: "fork" }), async (dataDir) => {
      await write(dataDir);
      throw new Error("no space left on device");
    });
    await expect(attempt).rejects.toThrow("no space left");
    expect([readdirSync(directory), await store.find(ID)]).toEqual([[], undefined]);
  });
});

describe("a damaged image", () => {
  const pages = (): string => join(directory, ID, "data", "pages.img");

  test.each([
    [
      "one flipped bit in the middle",
      () => {
        const bytes = readFileSync(pages());
        bytes[150_000] = (bytes[150_000] ?? 0) ^ 1;
        writeFileSync(pages(), bytes);
      },
      /does not have the checksum/,
    ],
    ["a file cut short", () => truncateSync(pages(), 299_999), /has 299999 bytes instead of 300000/],
    ["a file grown", () => appendFileSync(pages(), "x"), /has 300001 bytes/],
    ["a file gone", () => unlinkSync(pages()), /cannot be read .*ENOENT/],
  ] as const)("is told from a whole one: %s", async (_what, damage, message) => {
    const manifest = await commit();
    damage();
    await expect(store.verify(manifest)).rejects.toMatchObject({
      code: "image_corrupt",
      details: { file: "pages.img" },
      message: expect.stringMatching(message) as string,
    });
  });

  test("is told from a whole one by the checksum that earlier versions wrote, too", async () => {
    const { files, ...rest } = await commit();
    const earlier = files.map(({ name, size }) => ({
      name,
      size,
      sha256: createHash("sha256")
        .update(readFileSync(join(directory, ID, "data", name)))
        .digest("hex"),
    }));
    writeFileSync(join(directory, ID, "manifest.json"), JSON.stringify({ ...rest, files: earlier }));
    const manifest = await store.find(ID);
    expect(manifest?.files).toEqual(earlier);
    await store.verify(manifest as ImageManifest);
    appendFileSync(pages(), "x");
    truncateSync(pages(), 299_999);
    appendFileSync(pages(), "x");
    await expect(store.verify(manifest as ImageManifest)).rejects.toMatchObject({
      code: "image_corrupt",
      details: { file: "pages.img" },
    });
  });

  test.each(["", "{", "[]", '{"format":2}', "\0\0\0"])(
    "is not taken for none when its manifest reads %j, and hides no other",
    async (text) => {
      await commit();
      const whole = await commit({ id: `${ID}2`, kind: "snapshot" });
      writeFileSync(join(directory, ID, "manifest.json"), text);
      await expect(store.find(ID)).rejects.toMatchObject({ code: "image_corrupt" });
      const broken: string[] = [];
      expect(await store.list((id) => broken.push(id))).toEqual([whole]);
      expect(broken).toEqual([ID]);
    },
  );
});

describe("removing an image", () => {
  test("is idempotent, also at once, and for one that never was", async () => {
    await commit();
    await Promise.all([store.remove(ID), store.remove(ID), store.remove(ID)]);
    await store.remove(ID);
    await store.remove("imgnever0000000000000000001");
    await vi.waitFor(() => expect(readdirSync(directory)).toEqual([])); // blocks are freed in the background
    expect(await store.find(ID)).toBeUndefined();
  });

  test("leaves nothing behind when the store is closed right after", async () => {
    await commit();
    await store.remove(ID);
    await store.close();
    expect(readdirSync(directory)).toEqual([]);
  });

  test("goes nowhere outside its folder, whatever the id", async () => {
    writeFileSync(join(directory, "..", "bystander"), "x");
    for (const id of ["../bystander", "..", ".", "", "/etc", `${ID}/../../bystander`]) {
      await store.remove(id);
      expect(await store.find(id)).toBeUndefined();
    }
    expect(existsSync(join(directory, "..", "bystander"))).toBe(true);
  });

  test("finishes one that was interrupted after its rename", async () => {
    await commit();
    mkdirSync(join(directory, `.${ID}.removing`));
    writeFileSync(join(directory, `.${ID}.removing`, "half"), "x");
    await store.remove(ID);
    await vi.waitFor(() => expect(readdirSync(directory)).toEqual([]));
  });
});
