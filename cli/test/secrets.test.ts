import { rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, it } from "vitest";
import { capturedCli } from "./captured-cli.ts";
import { FakeApi } from "./fake-api.ts";

const VARIABLE = "TORPOR_TEST_SECRET";
let api: FakeApi;
beforeEach(async () => {
  api = await FakeApi.start();
  process.env[VARIABLE] = "from-the-shell";
});
afterEach(async () => {
  await api[Symbol.asyncDispose]();
  delete process.env[VARIABLE];
});

it("create and fork take secrets from the environment and from files", async () => {
  const file = join(tmpdir(), `torpor-secret-${process.pid}`);
  writeFileSync(file, "from a file\nof two lines\n", { mode: 0o600 });
  try {
    const secrets = ["--secret", VARIABLE, "--secret", `CERT=@${file}`];
    const made = await capturedCli(["create", "-q", ...secrets], api.env);
    expect(made.exitCode).toBe(0);
    await capturedCli(["fork", made.stdout.trim(), ...secrets], api.env); // one of its copies fails, which it tells
    const sent = { [VARIABLE]: "from-the-shell", CERT: "from a file\nof two lines" };
    expect(api.sent.get("POST /v1/sandboxes")).toEqual({ secrets: sent });
    expect(api.sent.get("POST fork")).toEqual({ secrets: sent });
  } finally {
    rmSync(file);
  }
});

it("a value on the command line is refused without repeating it, and so is what is not there", async () => {
  const refused = await capturedCli(["create", "--secret", "TOKEN=hunter2"], api.env);
  expect(refused).toMatchObject({ exitCode: 2 });
  expect(refused.stderr).toMatch(/would stand in the process list/);
  expect(refused.stderr).not.toContain("hunter2");
  for (const secret of ["TORPOR_TEST_UNSET", "CERT=@/nowhere/at/all", "=x", ""])
    expect(await capturedCli(["create", `--secret=${secret}`], api.env)).toMatchObject({ exitCode: 2 });
});
