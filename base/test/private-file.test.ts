import { chmodSync, mkdtempSync, readdirSync, rmSync, statSync, symlinkSync, writeFileSync } from "node:fs";
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
  expect(() => writePrivateFile(file, "mine")).toThrow("ELOOP");
  expect(readPrivateFile(other)?.toString()).toBe("theirs");
});
