import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { findResolvers, RESOLV_CONF } from "../src/resolvers.ts";

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
    expect(await findResolvers(path)).toEqual(["192.0.2.1", "192.0.2.2", "192.0.2.3"]);
  });

  test("may listen on loopback or by IPv6: the host asks them, not the sandbox", async () => {
    const path = file("stub", "nameserver 127.0.0.53\nnameserver 2001:db8::1\n");
    expect(await findResolvers(path)).toEqual(["127.0.0.53", "2001:db8::1"]);
  });

  test("leave out what a file should not say", async () => {
    const path = file(
      "a",
      "nameserver not-an-address\nnameserver\n;nameserver 192.0.2.9\nnameserver 999.1.1.1\n",
    );
    expect(await findResolvers(path)).toEqual([]);
  });

  test("are none when no file can be read", async () => {
    expect(await findResolvers(join(directory, "absent"))).toEqual([]);
    expect(await findResolvers(directory)).toEqual([]);
  });

  test("are behind the gateway, as every guest's libc reads it", () => {
    expect(RESOLV_CONF).toBe("nameserver 10.200.0.1\noptions timeout:2 attempts:2\n");
  });
});
