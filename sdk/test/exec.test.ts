import { describe, expect, it } from "vitest";
import { CommandError, TimeoutError } from "@torpor/sdk";
import { streaming, buffered } from "./exec-servers.ts";
import { base64, closedByClient, execEndLine, FakeServer } from "./fake-server.ts";

describe("exec, in one piece", () => {
  it("sends the options and gives the result", async () => {
    await using test = await buffered({
      stdout: "hi\n",
      stderr: "oh",
      exit_code: 3,
      truncated: true,
      stdout_bytes: 9,
      message: "m",
    });
    const result = await test.sandbox.exec("echo hi", {
      cwd: "/tmp",
      env: { fooBar: "1" },
      user: "root",
      stdin: "in",
      timeoutSeconds: 5,
      maxOutputBytes: 3,
      timeoutMs: 9_000,
    });
    expect(test.body()).toEqual({
      cmd: "echo hi",
      cwd: "/tmp",
      env: { fooBar: "1" },
      user: "root",
      stdin: "in",
      timeout_seconds: 5,
      max_output_bytes: 3,
    });
    expect(result).toEqual({
      execId: "x1",
      exitCode: 3,
      signal: null,
      outcome: "exited",
      stdout: "hi\n",
      stderr: "oh",
      truncated: true,
      stdoutBytes: 9,
      stderrBytes: 0,
      durationMs: 1.5,
      message: "m",
    });
  });

  it("gives bytes when asked", async () => {
    await using test = await buffered({
      encoding: "base64",
      stdout: base64(Uint8Array.of(0, 255, 10)),
      stderr: "",
    });
    const result = await test.sandbox.exec(["cat", "/bin/true"], { bytes: true });
    expect(test.body()).toEqual({ cmd: ["cat", "/bin/true"], encoding: "base64" });
    expect(result.stdout).toEqual(Uint8Array.of(0, 255, 10));
    expect(result.stderr).toEqual(new Uint8Array(0));
  });

  it("throws with check, telling the command, its end and its last words", async () => {
    await using test = await buffered({ exit_code: 2, stderr: `${"noise\n".repeat(50)}No such file\n` });
    const error = await test.sandbox
      .exec("python3 nope.py", { check: true })
      .catch((caught: unknown) => caught);
    expect(error).toBeInstanceOf(CommandError);
    expect((error as CommandError).result.exitCode).toBe(2);
    expect((error as CommandError).message).toMatch(
      /^`python3 nope.py` exited with 2:\n(noise\n){4}No such file$/,
    );
    expect((await test.sandbox.exec("python3 nope.py")).exitCode).toBe(2);
  });

  it.each([
    [
      { outcome: "timed_out", exit_code: null, signal: "SIGKILL", duration_ms: 1000.4 },
      "was ended after 1000 ms",
    ],
    [{ outcome: "signalled", exit_code: null, signal: "SIGSEGV" }, "was ended by SIGSEGV"],
    [
      { outcome: "oom", exit_code: null, signal: "SIGKILL", message: "limit 128 MB" },
      "ran out of memory (limit 128 MB)",
    ],
    [{ outcome: "lost", exit_code: null }, "was lost with its sandbox"],
  ])("with check, %o is no success", async (answer, words) => {
    await using test = await buffered(answer);
    await expect(test.sandbox.exec("true", { check: true })).rejects.toThrow(words);
    expect((await test.sandbox.exec("true")).exitCode).toBeNull();
  });

  it("takes 32 MiB of output", async () => {
    const stdout = "0123456789abcdef".repeat(2 * 1024 * 1024);
    await using test = await buffered({ stdout });
    expect((await test.sandbox.exec("yes")).stdout.length).toBe(stdout.length);
  });

  it("closes the connection when aborted or out of time, so that the command is killed", async () => {
    await using server = (await FakeServer.start()).withSandbox();
    const controller = new AbortController();
    let closed: Promise<void> | undefined;
    server.on("POST", "/v1/sandboxes/{id}/exec", (call) => {
      closed = closedByClient(call);
      controller.abort();
    });
    const sandbox = await server.client().sandboxes.create();
    await expect(sandbox.exec("sleep 9", { signal: controller.signal })).rejects.toHaveProperty(
      "name",
      "AbortError",
    );
    await closed;
    await expect(sandbox.exec("sleep 9", { timeoutMs: 50 })).rejects.toBeInstanceOf(TimeoutError);
    await closed;
    expect(server.callsTo("POST", "/exec")).toHaveLength(2);
  });

  it("streams a command that may take longer than fetch waits for headers", async () => {
    await using test = await streaming((call, send) => {
      send({ type: "keepalive" });
      send({ type: "stdout", data: base64("done") });
      send(execEndLine());
      call.response.end();
    });
    expect((await test.sandbox.exec("sleep 999", { timeoutSeconds: 3600 })).stdout).toBe("done");
    expect(test.server.callsTo("POST", "/exec")[0]?.headers.accept).toBe("application/x-ndjson");
  });
});
