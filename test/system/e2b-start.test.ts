import { Sandbox as Sandbox251 } from "e2b";
import { Sandbox as Sandbox245 } from "e2b-2.45";
import { describe, expect, test } from "vitest";
import { e2bOptions, useInstance } from "../src/index.ts";

/** Their types differ where their wires do; what is used here is the same in both. */
const VERSIONS: { version: string; Sandbox: typeof Sandbox251 }[] = [
  { version: "2.51.0", Sandbox: Sandbox251 },
  { version: "2.45.0", Sandbox: Sandbox245 as unknown as typeof Sandbox251 },
];

describe.each(VERSIONS)("E2B's client $version, unmodified", ({ Sandbox }) => {
  const torpor = useInstance({ server: true });

  test("makes a sandbox, runs a command, writes and reads a file, and kills it", async () => {
    const sandbox = await Sandbox.create("base", e2bOptions(torpor()));
    expect((await sandbox.commands.run("echo hi")).stdout).toBe("hi\n");
    await sandbox.files.write("note.txt", "kept");
    expect(await sandbox.files.read("note.txt")).toBe("kept");
    expect(await sandbox.isRunning()).toBe(true);
    expect(await sandbox.kill()).toBe(true);
    expect(await sandbox.kill()).toBe(false);
  });
});
