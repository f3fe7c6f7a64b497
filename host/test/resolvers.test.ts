import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { findResolvers, resolvConfText } from "../src/resolvers.ts";

describe("the resolvers a sandbox may ask", () => {
  let directory: string;
  beforeEach(() => {
    directory = mkdtempSync(join(tmpdir(), "torpor-test-resolvers-"));
  });
  afterEach(() => rmSync(directory, { recursive: true }));

  function file(name: string, text: string): string {
    const path = join(directory, name);
    writeFileSync(path, text);
    return path;
  }

  test("are the machine's own, in order, each once, at most three", async () => {
    const path = file(
      "a",
      "# comment\nsearch example.org\nnameserver 192.0.2.1\n  nameserver\t192.0.2.2 # why\nnameserver 192.0.2.1\nnameserver 192.0.2.3\nnameserver 192.0.2.4\n",
    );
    expect(await findResolvers([path])).toEqual(["192.0.2.1", "192.0.2.2", "192.0.2.3"]);
  });

  test("are looked for behind a stub that listens on loopback", async () => {
    expect(
      await findResolvers([file("stub", "nameserver 127.0.0.53\n"), file("real", "nameserver 10.0.0.2\n")]),
    ).toEqual(["10.0.0.2"]);
  });

  test("leave out what the network inside cannot speak or a file should not say", async () => {
    const path = file(
      "a",
      "nameserver 2001:db8::1\nnameserver not-an-address\nnameserver\n;nameserver 192.0.2.9\nnameserver 999.1.1.1\n",
    );
    expect(await findResolvers([path])).toEqual([]);
  });

  test("are none when no file can be read", async () => {
    expect(await findResolvers([join(directory, "absent"), directory])).toEqual([]);
  });

  test("are written as the guest's libc reads them", () => {
    expect(resolvConfText(["192.0.2.1", "192.0.2.2"])).toBe(
      "nameserver 192.0.2.1\nnameserver 192.0.2.2\noptions timeout:2 attempts:2\n",
    );
    expect(resolvConfText([])).toBe("options timeout:2 attempts:2\n");
  });
});
