import { closeSync, mkdtempSync, openSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ProcessError, run } from "@torpor/base";
import { describe, expect, test } from "vitest";

/** What `action` throws. */
async function failureOf(action: Promise<unknown>): Promise<ProcessError> {
  const error: unknown = await action.then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  expect(error).toBeInstanceOf(ProcessError);
  return error as ProcessError;
}

describe("run", () => {
  test("gives both outputs apart, and takes arguments as they are", async () => {
    const result = await run(["sh", "-c", 'printf "%s" "$1"; printf err >&2', "sh", "$HOME; `id` 'x'"]);
    expect(result).toEqual({ stdout: "$HOME; `id` 'x'", stderr: "err" });
  });

  test("writes the input and closes it", async () => {
    expect((await run(["cat"], { input: "text" })).stdout).toBe("text");
    expect((await run(["cat"])).stdout).toBe("");
  });

  test("survives a child that does not read its input", async () => {
    await run(["true"], { input: Buffer.alloc(4 * 1024 * 1024) });
  });

  test("tells command, exit code and the last lines of standard error of a failure", async () => {
    const failure = await failureOf(
      run(["sh", "-c", "for i in 1 2 3 4 5 6 7; do echo line $i >&2; done; exit 3"]),
    );
    expect(failure.exitCode).toBe(3);
    expect(failure.message).toMatch(/^sh -c .* exited with 3: line 3\nline 4\nline 5\nline 6\nline 7$/s);
  });

  test("tells the signal that ended it", async () => {
    expect(await failureOf(run(["sh", "-c", "kill -SEGV $$"]))).toMatchObject({
      exitCode: null,
      signal: "SIGSEGV",
    });
  });

  test("says so when the program does not exist", async () => {
    expect((await failureOf(run(["/nonexistent/program"]))).message).toContain("could not be started");
  });

  test("kills what takes too long", async () => {
    const startedAt = performance.now();
    expect((await failureOf(run(["sleep", "30"], { timeoutMs: 50 }))).message).toContain(
      "was killed after 50 ms",
    );
    expect(performance.now() - startedAt).toBeLessThan(5000);
  });

  test("kills when aborted, and does not start when aborted before", async () => {
    const abort = new AbortController();
    const running = failureOf(run(["sleep", "30"], { signal: abort.signal }));
    abort.abort();
    expect((await running).message).toContain("was aborted");
    expect((await failureOf(run(["touch", "/nonexistent/x"], { signal: abort.signal }))).message).toContain(
      "was not started",
    );
  });

  test("keeps no more output than asked for, and the child still ends", async () => {
    const { stdout } = await run(["sh", "-c", "yes | head -c 1000000"], { maxOutputBytes: 1001 });
    expect(stdout).toHaveLength(1001);
  });

  test("does not wait for a daemon that keeps the output when that goes to a file", async () => {
    const directory = mkdtempSync(join(tmpdir(), "torpor-test-run-"));
    const file = openSync(join(directory, "out"), "a");
    try {
      const startedAt = performance.now();
      await run(["sh", "-c", "echo started; sleep 2 &"], { outputFd: file });
      expect(performance.now() - startedAt).toBeLessThan(1500);
      expect(readFileSync(join(directory, "out"), "utf8")).toBe("started\n");
    } finally {
      closeSync(file);
      rmSync(directory, { recursive: true });
    }
  });
});
