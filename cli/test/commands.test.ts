import { randomBytes } from "node:crypto";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { findInstallation } from "../src/instance/installation.ts";
import { instancePaths } from "../src/instance/instance-paths.ts";
import { ownIdentity } from "../src/instance/process-identity.ts";
import { capturedCli } from "./captured-cli.ts";
import { FakeApi } from "./fake-api.ts";

/** How the command line of this checkout is started, wherever one is. */
const BINARY = join(findInstallation().root, "bin", "torpor");

let api: FakeApi;
let directory: string;

beforeEach(async () => {
  api = await FakeApi.start();
  directory = mkdtempSync(join(tmpdir(), "torpor-cli-"));
});

afterEach(async () => {
  await api[Symbol.asyncDispose]();
  rmSync(directory, { recursive: true, force: true });
});

const cli = (...args: string[]) => capturedCli(args, api.env);

describe("usage", () => {
  it("suggests the command that was meant and exits with 2", async () => {
    const { exitCode, stderr } = await cli("statsu");
    expect(exitCode).toBe(2);
    expect(stderr).toMatch(/unknown command 'statsu'[\s\S]*Did you mean status\?/);
  });

  it("writes a usage error as one JSON envelope with --json", async () => {
    const { exitCode, stdout, stderr } = await cli("create", "--json", "--nonsense");
    expect(exitCode).toBe(2);
    expect(stdout).toBe("");
    expect(JSON.parse(stderr)).toMatchObject({
      error: { code: "invalid_request", message: expect.stringContaining("--nonsense") },
    });
  });

  it("takes the global options before and after the command", async () => {
    const before = await cli("--json", "create");
    const after = await cli("create", "--json");
    for (const run of [before, after])
      expect(JSON.parse(run.stdout)).toMatchObject({ state: "running", memory_mb: 1024 });
  });

  it("prints help on standard output with exit code 0", async () => {
    const { exitCode, stdout } = await cli("run", "--help");
    expect(exitCode).toBe(0);
    expect(stdout).toContain("--json");
  });

  it.each([
    ["--ttl", "soon"],
    ["--ttl", "0.5"],
    ["--cpu", "many"],
    ["--metadata", "=x"],
  ])("refuses %s %s", async (option, value) => {
    expect(await cli("create", option, value)).toMatchObject({ exitCode: 2, stdout: "" });
    expect(api.calls).toEqual([]);
  });
});

describe("create, ls and rm", () => {
  it("prints the id alone on standard output", async () => {
    const { stdout } = await cli("create", "-t", "base", "--ttl", "60", "-m", "team=red", "-e", "A=b=c");
    const [sandbox] = [...api.sandboxes.values()];
    expect(stdout).toBe(`${sandbox?.["id"] as string}\n`);
    expect(sandbox?.["requested"]).toEqual({
      template: "base",
      ttl_seconds: 60,
      metadata: { team: "red" },
      env: { A: "b=c" },
    });
  });

  it("takes one spelling of times in every option, and sets a deadline anew", async () => {
    await cli("create", "--ttl", "10m", "--idle-timeout", "1h", "--retention", "30d");
    const [sandbox] = [...api.sandboxes.values()];
    expect(sandbox?.["requested"]).toMatchObject({
      ttl_seconds: 600,
      idle_timeout_seconds: 3_600,
      retention_seconds: 2_592_000,
    });
    const id = sandbox?.["id"] as string;
    await cli("exec", "--timeout", "1.5m", id, "true");
    expect(api.commands.at(-1)).toMatchObject({ timeout_seconds: 90 });
    await cli("exec", "--timeout", "0.5", id, "true");
    expect(api.commands.at(-1)).toMatchObject({ timeout_seconds: 0.5 });
    const route = `PATCH /v1/sandboxes/${id}/lifecycle`;
    api.scripted.set(route, { ...sandbox, expires_at: "2126-01-01T00:00:00Z" });
    expect((await cli("ttl", id, "10m")).stdout).toBe(`${id} until 2126-01-01T00:00:00.000Z\n`);
    expect(api.sent.get(route)).toEqual({ ttl_seconds: 600 });
    api.scripted.set(route, { ...sandbox, expires_at: null });
    expect((await cli("ttl", id, "none")).stdout).toBe(`${id} has no deadline\n`);
    expect(api.sent.get(route)).toEqual({ ttl_seconds: null });
    for (const bad of ["soon", "-5", "0", "0.5"]) {
      const { exitCode, stderr } = await cli("ttl", id, bad);
      expect(exitCode).toBe(2);
      expect(stderr).toContain(`must be at least 1 second`);
      expect(stderr).toContain(`or 'none'; it is '${bad}'`);
    }
  });

  it("lists what lives, as a table that a name cannot break", async () => {
    await cli("create", "--name", "a\u001b[2J\nb");
    const { stdout } = await cli("ls");
    expect(stdout.split("\n")[0]).toMatch(/^ID +NAME +STATE/);
    expect(stdout).toContain("a\\x1b[2J\\nb");
    expect(stdout).not.toContain("\u001b");
  });

  it("destroys what is named, says of what is not there, and exits with 1 then", async () => {
    const id = (await cli("create")).stdout.trim();
    const { exitCode, stdout, stderr } = await cli("rm", id, "sdoesnotexist0000000000");
    expect(exitCode).toBe(1);
    expect(stdout).toBe(`${id}\n`);
    expect(stderr).toContain("there is no sandbox");
    expect(api.sandboxes.get(id)?.["state"]).toBe("destroyed");
    expect((await cli("ls")).stdout).toBe("No sandboxes.\n");
  });

  it("asks for either ids or --all", async () => {
    expect((await cli("rm")).exitCode).toBe(2);
    expect((await cli("rm", "--all", "x")).exitCode).toBe(2);
  });
});

describe("exec", () => {
  it("passes output on byte for byte and ends with the command's exit code", async () => {
    const id = (await cli("create")).stdout.trim();
    api.next = { stdout: "out\n", stderr: "err\n", end: { exit_code: 3 } };
    expect(await cli("exec", id, "ls", "-la", "--json")).toEqual({
      exitCode: 3,
      stdout: "out\n",
      stderr: "err\n",
    });
    expect(api.commands).toMatchObject([{ cmd: ["ls", "-la", "--json"] }]);
  });

  it("answers with one document when --json stands before the id", async () => {
    const id = (await cli("create")).stdout.trim();
    api.next = { stdout: "out\n", end: { exit_code: 4 } };
    const { exitCode, stdout } = await cli("exec", "--json", id, "true");
    expect(exitCode).toBe(4);
    expect(JSON.parse(stdout)).toMatchObject({
      sandbox_id: id,
      exit_code: 4,
      stdout: "out\n",
      outcome: "exited",
    });
  });

  it.each([
    [{ outcome: "timed_out", exit_code: null, signal: "SIGKILL" }, 124, /time limit/],
    [{ outcome: "signalled", exit_code: null, signal: "SIGSEGV" }, 139, /SIGSEGV/],
    [
      { outcome: "oom", exit_code: null, signal: "SIGKILL", message: "cgroup limit" },
      137,
      /out of memory.*cgroup limit/,
    ],
    [{ outcome: "lost", exit_code: null, message: "ttl_expired" }, 125, /sandbox ended.*ttl_expired/],
  ])("turns %o into exit code %d and says why", async (end, expected, why) => {
    const id = (await cli("create")).stdout.trim();
    api.next = { end };
    const { exitCode, stderr } = await cli("exec", id, "true");
    expect(exitCode).toBe(expected);
    expect(stderr).toMatch(why);
  });

  it("exits with 125 when Torpor failed, not the command", async () => {
    const { exitCode, stderr } = await cli("exec", "snosuchsandbox0000000000", "true");
    expect(exitCode).toBe(125);
    expect(stderr).toMatch(/error: there is no sandbox.*\n\(sandbox_not_found, request req-1\)/);
  });

  it("gives standard input only when asked, byte for byte, whatever its length", async () => {
    const id = (await cli("create")).stdout.trim();
    const input = randomBytes(3_000_000);
    expect((await capturedCli(["exec", "-i", id, "cat"], api.env, input)).exitCode).toBe(0);
    expect(Buffer.concat(api.input).equals(input)).toBe(true);
    expect((await capturedCli(["exec", id, "cat"], api.env, "hello")).exitCode).toBe(0);
    expect(Buffer.concat(api.input)).toHaveLength(input.length);
  });

  it("says of output that did not come whole, and fails then", async () => {
    const id = (await cli("create")).stdout.trim();
    api.next = { stdout: "out\n", end: { stdout_bytes: 9 } };
    const { exitCode, stdout, stderr } = await cli("exec", id, "true");
    expect({ exitCode, stdout }).toEqual({ exitCode: 125, stdout: "out\n" });
    expect(stderr).toContain("5 bytes of the command's output are missing");
    api.next = { stdout: "out\n", end: { truncated: true } };
    const document = await cli("exec", "--json", id, "true");
    expect(document.exitCode).toBe(125);
    expect(JSON.parse(document.stdout)).toMatchObject({ stdout: "out\n", truncated: true });
    expect(document.stderr).toContain("run it without --json");
  });

  it("refuses a terminal where there is none", async () => {
    const id = (await cli("create")).stdout.trim();
    const { exitCode, stderr } = await cli("exec", "-it", id);
    expect(exitCode).toBe(2);
    expect(stderr).toContain("-t needs a terminal");
  });
});

const NOT_RUN =
  "the command was not run: error starting process 'WORD': program \"WORD\" is in no folder of PATH (/usr/bin:/bin): file does not exist";

describe("a command that does not start", () => {
  const refuse = (word: string): void =>
    void api.refusals.set("POST /v1/sandboxes/ID/exec", {
      code: "invalid_request",
      message: NOT_RUN.replaceAll("WORD", word),
    });

  it("is told once why, and how a shell would take it when it was meant for one", async () => {
    const id = (await cli("create")).stdout.trim();
    refuse("echo hi | wc -c");
    expect((await cli("exec", id, "--", "echo hi | wc -c")).stderr).toBe(
      'error: the command was not run: program "echo hi | wc -c" is in no folder of PATH (/usr/bin:/bin)\n' +
        `For a shell line: ${BINARY} --state-dir /nonexistent/torpor exec --shell ${id} -- 'echo hi | wc -c'\n` +
        "(invalid_request, request req-1)\n",
    );
    expect((await cli("run", "--", "echo hi | wc -c")).stderr).toContain("run -- bash -c 'echo hi | wc -c'");
    refuse("nosuch");
    const plain = await cli("exec", id, "--", "nosuch", "a b");
    expect(plain.exitCode).toBe(125);
    expect(plain.stderr).not.toContain("shell line");
  });

  it("is told of when it names a file of this machine that was not copied in", async () => {
    const here = process.cwd();
    process.chdir(directory);
    try {
      writeFileSync("agent.py", "");
      writeFileSync("data.csv", "");
      api.next = { end: { exit_code: 2 } };
      api.files.set("/workspace/data.csv", Buffer.from(""));
      const missed = await cli("run", "--", "python3", "./agent.py", "data.csv", "none.txt", "-q");
      expect(missed.exitCode).toBe(2);
      expect(missed.stderr).toBe("torpor: agent.py is here but was not copied in; add --in agent.py\n");
      refuse("./agent.py");
      expect((await cli("run", "--", "./agent.py")).stderr).toContain("add --in agent.py");
      api.refusals.clear();
      api.next = { end: { exit_code: 0 } };
      expect((await cli("run", "--", "python3", "agent.py")).stderr).toBe("");
    } finally {
      process.chdir(here);
    }
  });
});

describe("run", () => {
  it("copies the script in, runs it with its interpreter, and destroys the sandbox", async () => {
    const script = join(directory, "hello.py");
    writeFileSync(script, "print('hi')\n");
    api.next = { stdout: "hi\n" };
    expect(await cli("run", script, "a", "-b")).toEqual({ exitCode: 0, stdout: "hi\n", stderr: "" });
    expect(api.files.get("/workspace/hello.py")?.toString()).toBe("print('hi')\n");
    expect(api.commands).toMatchObject([
      { cmd: ["python3", "/workspace/hello.py", "a", "-b"], cwd: "/workspace" },
    ]);
    expect([...api.sandboxes.values()].map((sandbox) => sandbox["state"])).toEqual(["destroyed"]);
  });

  it("runs what stands behind -- as it is, and keeps its exit code", async () => {
    api.next = { end: { exit_code: 42 } };
    expect((await cli("run", "--", "sh", "-c", "exit 42")).exitCode).toBe(42);
    expect(api.commands).toMatchObject([{ cmd: ["sh", "-c", "exit 42"] }]);
  });

  it("copies results out, also after a failed command", async () => {
    api.files.set("/workspace/result.txt", Buffer.from("42"));
    api.next = { end: { exit_code: 1 } };
    const target = join(directory, "here.txt");
    expect((await cli("run", "--out", `/workspace/result.txt:${target}`, "--", "false")).exitCode).toBe(1);
    expect(readFileSync(target, "utf8")).toBe("42");
  });

  it("exits with 125 when the command succeeded and its result is missing", async () => {
    const { exitCode, stderr } = await cli(
      "run",
      "--out",
      `/workspace/none:${join(directory, "x")}`,
      "--",
      "true",
    );
    expect(exitCode).toBe(125);
    expect(stderr).toContain("was not copied out");
    expect([...api.sandboxes.values()][0]?.["state"]).toBe("destroyed");
  });

  it("says what to do when the first word is no file here", async () => {
    const { exitCode, stderr } = await cli("run", "python3", "-V");
    expect(exitCode).toBe(2);
    expect(stderr).toContain("torpor run -- python3 -V");
    expect(api.calls).toEqual([]);
  });

  it("destroys the sandbox when it is interrupted in mid-command", async () => {
    api.next = { stdout: "started\n", hangs: true };
    const running = cli("run", "--", "sleep", "1000");
    while (api.commands.length === 0) await new Promise((resolve) => setTimeout(resolve, 5));
    process.emit("SIGINT", "SIGINT");
    expect((await running).exitCode).toBe(130);
    expect([...api.sandboxes.values()][0]?.["state"]).toBe("destroyed");
  });
});

describe("the key", () => {
  it("of a state directory goes to the server that runs from it, and to nobody else who listens", async () => {
    const paths = instancePaths(directory);
    mkdirSync(paths.runDir, { recursive: true });
    writeFileSync(paths.apiKeyFile, "tp_test\n");
    const record = { ...ownIdentity(), url: api.env["TORPOR_URL"] };
    const ls = (env = {}) => capturedCli(["ls"], { TORPOR_STATE_DIR: directory, ...env });
    writeFileSync(paths.serverFile, JSON.stringify(record));
    expect(await ls()).toMatchObject({ exitCode: 0, stdout: "No sandboxes.\n" });

    api.calls.length = 0;
    const dead = { ...record, start_time: record.start_time - 1 }; // the pid is another process's by now
    writeFileSync(paths.serverFile, JSON.stringify(dead));
    writeFileSync(paths.instanceFile, JSON.stringify({ url: record.url, supervisor: dead }));
    const stopped = await ls();
    expect(stopped).toMatchObject({ exitCode: 1, stdout: "" });
    expect(stopped.stderr).toContain(
      `no instance runs from ${directory}; start it with 'sudo ${BINARY} up --detach --state-dir ${directory}'`,
    );
    expect((await ls({ TORPOR_API_KEY: "tp_test" })).stderr).toContain("no instance runs from");

    writeFileSync(paths.supervisorLock, JSON.stringify(ownIdentity()));
    expect((await ls()).stderr).toContain("is not up just now");
    expect(api.calls).toEqual([]);
  });

  it("needs an instance that runs, or an address", async () => {
    const { exitCode, stderr } = await capturedCli(["ls", "--state-dir", directory]);
    expect(exitCode).toBe(1);
    expect(stderr).toContain(`no instance runs from ${directory}; start it with 'sudo ${BINARY} up --detach`);
    expect(stderr).not.toMatch(/\n\s+at /);
  });

  it("has its hints name the command by its path, and a key's file that is not there by its name", async () => {
    const logs = await capturedCli(["logs", "host", "--state-dir", directory]);
    expect(logs.stderr).toContain(`sudo ${BINARY} logs host --state-dir`);
    const { stderr } = await capturedCli(["ls", "--api-key-file", "/nope/key"], api.env);
    expect(stderr).toContain("/nope/key, which --api-key-file names, is not there");
    expect(stderr).not.toContain("no instance");
  });

  it("of this machine is not sent to another", async () => {
    writeFileSync(join(directory, "api-key"), "tp_secret\n");
    const { exitCode, stderr } = await capturedCli([
      "ls",
      "--state-dir",
      directory,
      "--url",
      "http://192.0.2.1:7070",
    ]);
    expect(exitCode).toBe(1);
    expect(stderr).toContain("no API key for http://192.0.2.1:7070");
  });
});

describe("logs", () => {
  it("of nothing says so, on standard error", async () => {
    const { exitCode, stdout, stderr } = await capturedCli(["logs", "host", "--state-dir", directory]);
    expect({ exitCode, stdout }).toEqual({ exitCode: 0, stdout: "" });
    expect(stderr).toContain(`nothing in ${directory}/logs/host.log`);
  });
});

describe("status", () => {
  it("says that nothing runs, with exit code 1 and an envelope for programs", async () => {
    const text = await capturedCli(["status", "--state-dir", directory]);
    expect(text).toMatchObject({ exitCode: 1, stdout: "" });
    expect(text.stderr).toContain(`no Torpor instance runs from ${directory}`);
    expect(text.stderr).toContain(`up --detach --state-dir ${directory}'`);
    const json = await capturedCli(["status", "--json", "--state-dir", directory]);
    expect(json).toMatchObject({ exitCode: 1, stdout: "" });
    expect(JSON.parse(json.stderr)).toMatchObject({
      error: { code: "host_unavailable", details: { state_dir: directory } },
    });
  });
});
