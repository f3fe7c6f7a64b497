import { execFileSync } from "node:child_process";
import {
  chmodSync,
  mkdtempSync,
  readdirSync,
  rmSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { readPrivateFile, writePrivateFile } from "../src/private-file.ts";

let directory: string;
let file: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "torpor-private-"));
  file = join(directory, "key");
});
afterEach(() => rmSync(directory, { recursive: true }));

test("a private file is its owner's alone, also over what a crash left half written", () => {
  writeFileSync(`${file}.new`, "half");
  chmodSync(`${file}.new`, 0o644);
  writePrivateFile(file, Buffer.from([0, 255, 1]));
  expect(readPrivateFile(file)).toEqual(Buffer.from([0, 255, 1]));
  expect(statSync(file).mode & 0o777).toBe(0o600);
  expect(readdirSync(directory)).toEqual(["key"]);
});

test("none is undefined, and a symbolic link is neither read nor written through", () => {
  expect(readPrivateFile(file)).toBeUndefined();
  const other = join(directory, "other");
  writeFileSync(other, "theirs");
  symlinkSync(other, file);
  expect(() => readPrivateFile(file)).toThrow("ELOOP");
  symlinkSync(other, `${file}.new`);
  writePrivateFile(file, "mine");
  expect(readPrivateFile(file)?.toString()).toBe("mine");
  expect(readPrivateFile(other)?.toString()).toBe("theirs");
});

test("what is no regular file, or larger than any key, is refused at once", () => {
  execFileSync("mkfifo", [file]); // nobody writes to it: a read of it would wait for ever
  expect(() => readPrivateFile(file)).toThrow(/no regular file/);
  expect(() => readPrivateFile(directory)).toThrow(/no regular file/);
  const large = join(directory, "large");
  writeFileSync(large, "");
  truncateSync(large, 64 * 1024);
  expect(readPrivateFile(large)).toHaveLength(64 * 1024);
  truncateSync(large, 64 * 1024 + 1);
  expect(() => readPrivateFile(large)).toThrow(/larger than/);
});

test.runIf(process.getuid?.() === 0)(
  "only the file that was written is given away, whatever takes its name meanwhile",
  () => {
    const other = join(directory, "other");
    writeFileSync(other, "root's");
    writePrivateFile(file, "key", {
      get uid() {
        // As its folder's owner can at any moment: the last one before the file is given away is this.
        rmSync(`${file}.new`);
        symlinkSync(other, `${file}.new`);
        return 12_345;
      },
      gid: 12_345,
    });
    expect(statSync(other)).toMatchObject({ uid: 0, gid: 0 });
    rmSync(file);
    writePrivateFile(file, "key", { uid: 12_345, gid: 12_345 });
    expect(statSync(file)).toMatchObject({ uid: 12_345, gid: 12_345 });
  },
);
