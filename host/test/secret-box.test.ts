import { mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { SecretBox } from "../src/secret-box.ts";

let directory: string;
let file: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "torpor-secret-box-"));
  file = join(directory, "secrets.key");
});
afterEach(() => rmSync(directory, { recursive: true, force: true }));

const secrets = { TOKEN: "s3cr3t-ünïcode\n", EMPTY: "" };

test("what one process seals the next opens, and the text tells nothing of it", () => {
  const sealed = SecretBox.open(file).seal(secrets, "acme");
  expect(statSync(file).mode & 0o777).toBe(0o600);
  expect(SecretBox.open(file).unseal(sealed, "acme")).toEqual(secrets);
  expect(sealed).not.toMatch(/TOKEN|s3cr3t/);
  expect(Buffer.from(String(sealed).slice(3), "base64").toString("latin1")).not.toMatch(/TOKEN|s3cr3t/);
  expect(SecretBox.open(file).seal(secrets, "acme")).not.toBe(sealed);
});

test("nothing is sealed as nothing", () => {
  const box = SecretBox.open(file);
  expect(box.seal({}, "acme")).toBeUndefined();
  expect(box.unseal(undefined, "acme")).toEqual({});
});

test("another tenant, another key, and any change is refused with what to do", () => {
  const box = SecretBox.open(file);
  const sealed = String(box.seal(secrets, "acme"));
  expect(() => box.unseal(sealed, "globex")).toThrow(/cannot be opened.*put the right file back/);
  const bytes = Buffer.from(sealed.slice(3), "base64");
  for (let at = 0; at < bytes.length; at += 1) {
    const changed = Buffer.from(bytes);
    changed[at] = (changed[at] ?? 0) ^ 1;
    expect(() => box.unseal(`v1:${changed.toString("base64")}`, "acme")).toThrow(/cannot be opened/);
  }
  for (const nonsense of ["", "v1:", "v2:AAAA", `v1:${bytes.subarray(0, 20).toString("base64")}`])
    expect(() => box.unseal(nonsense, "acme")).toThrow(/cannot be opened/);
  const other = SecretBox.open(join(directory, "other.key"));
  expect(() => other.unseal(sealed, "acme")).toThrow(/other\.key/);
});

test("a file that holds no key is neither used nor overwritten", () => {
  writeFileSync(file, "short");
  expect(() => SecretBox.open(file)).toThrow(/does not hold a key/);
  expect(readFileSync(file, "utf8")).toBe("short");
});
