import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { createInterface } from "node:readline";
import { join } from "node:path";
import { expect, test } from "vitest";
import { eventually } from "../src/eventually.ts";
import { expectNoLeaks, lookAtMachine } from "../src/leak-check.ts";
import { repositoryRoot } from "../src/repository.ts";

/** A test run in small: starts an instance with a machine, says where, and waits to be killed. */
const PROGRAM = `
import { Instance } from "./test/src/instance.ts";
setInterval(() => {}, 1000);
const instance = await Instance.start({ pool: 1 });
await instance.host.create();
if (process.argv.includes("host-killed")) await instance.killHost("SIGKILL");
console.log(instance.stateDir);
`;

test.each([
  ["while the host runs", ""],
  ["after it killed the host", "host-killed"],
])("a test run that is killed %s leaves nothing behind", async (_when, argument) => {
  const before = await lookAtMachine("/nonexistent");
  const child = spawn(
    process.execPath,
    ["--conditions=source", "--import", "tsx", "--input-type=module", "-e", PROGRAM, argument],
    { cwd: repositoryRoot, stdio: ["ignore", "pipe", "inherit"] },
  );
  const ended = new Promise((resolve) => child.once("exit", resolve));
  let stateDir = "";
  try {
    stateDir = await new Promise<string>((resolve, reject) => {
      createInterface({ input: child.stdout }).once("line", resolve);
      void ended.then(() => reject(new Error("the test run ended by itself")));
    });
    expect(existsSync(join(stateDir, "run", "host.json"))).toBe(true);
    expect((await lookAtMachine(stateDir)).process.size).toBeGreaterThan(2);
  } finally {
    child.kill("SIGKILL");
    await ended;
  }
  await eventually("the state directory to be removed", () => !existsSync(stateDir), 60_000);
  await expectNoLeaks(stateDir, before);
});
