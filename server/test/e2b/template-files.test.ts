import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Readable } from "node:stream";
import { buffer } from "node:stream/consumers";
import { gzipSync } from "node:zlib";
import { afterEach, beforeEach, expect, test } from "vitest";
import { systemClock } from "@torpor/base";
import { TenantScope } from "../../src/auth/tenant-scope.ts";
import { TemplateFiles } from "../../src/e2b/template/template-files.ts";
import type { BuildRecord, BuiltTemplate } from "../../src/store/template-store.ts";

const scope = TenantScope.fromVerifiedKey({ keyId: "k", account: "a", tenant: null });
const owner = { id: "tpl", account: "a", tenant: "a" } as unknown as BuiltTemplate & BuildRecord;
const hash = (digit: string): string => digit.repeat(64);

let directory: string;
beforeEach(async () => void (directory = await mkdtemp(join(tmpdir(), "torpor-files-"))));
afterEach(async () => await rm(directory, { recursive: true, force: true }));

async function upload(files: TemplateFiles, name: string, body: Readable, bytes: number): Promise<void> {
  const token = await files.grant(scope, owner, name);
  await files.write(files.claim(token, name), body, bytes);
}

test("an archive comes back unpacked from gzip, and as it was without", async () => {
  const files = new TemplateFiles({ directory, clock: systemClock });
  const tar = Buffer.alloc(100_000, "tar");
  for (const [name, sent] of [
    [hash("1"), gzipSync(tar)],
    [hash("2"), tar],
  ] as const) {
    await upload(files, name, Readable.from([sent]), sent.length);
    const opened = await files.open(owner, name);
    expect(opened && tar.equals(await buffer(opened))).toBe(true);
  }
  expect(await files.open(owner, hash("3"))).toBeUndefined();
});

test("broken gzip is its reader's error, also of one who comes late", async () => {
  const files = new TemplateFiles({ directory, clock: systemClock });
  const broken = Buffer.concat([Buffer.from([0x1f, 0x8b]), Buffer.alloc(1_000, 0xff)]);
  await upload(files, hash("1"), Readable.from([broken]), broken.length);
  const read = await files.open(owner, hash("1"));
  await expect(read && buffer(read)).rejects.toMatchObject({ code: expect.stringMatching(/^Z_/) as string });
  const late = await files.open(owner, hash("1"));
  await new Promise<void>((resolve) => late?.once("close", resolve));
  expect(late?.errored).toMatchObject({ code: expect.stringMatching(/^Z_/) as string });
});

test("uploads at a time do not get together what one account may not have", async () => {
  const files = new TemplateFiles({ directory, clock: systemClock, maxAccountBytes: 2_500 });
  const outcomes = await Promise.allSettled(
    ["1", "2", "3", "4"].map((digit) =>
      upload(files, hash(digit), Readable.from([Buffer.alloc(1_000)]), 1_000),
    ),
  );
  expect(outcomes.map(({ status }) => status).sort()).toEqual([
    "fulfilled",
    "fulfilled",
    "rejected",
    "rejected",
  ]);
  const [account = ""] = await readdir(directory);
  expect(await readdir(join(directory, account))).toHaveLength(2);
  await expect(upload(files, hash("5"), Readable.from([Buffer.alloc(900)]), 501)).rejects.toMatchObject({
    code: "payload_too_large",
  });
  await expect(upload(files, hash("5"), Readable.from([Buffer.alloc(9)]), 10)).rejects.toThrow(
    /ended after 9/,
  );
  await upload(files, hash("5"), Readable.from([Buffer.alloc(500)]), 500);
});
