import { once } from "node:events";
import { describe, expect, it } from "vitest";
import {
  CommandError,
  ConnectionError,
  type ExecEvent,
  NotFoundError,
  type Sandbox,
  TimeoutError,
  TorporError,
} from "@torpor/sdk";
import {
  base64,
  type Call,
  closedByClient,
  execEndLine,
  execWire,
  FakeServer,
  ndjson,
  sendError,
  sendJson,
} from "./fake-server.ts";

type OnExec = (call: Call, send: (line: object) => void) => Promise<void> | void;

/** A server whose exec streams what `onExec` sends, after a start. */
async function streaming(
  onExec: OnExec,
): Promise<{ server: FakeServer; sandbox: Sandbox } & AsyncDisposable> {
  const server = (await FakeServer.start()).withSandbox();
  server.on("POST", "/v1/sandboxes/{id}/exec", async (call) => {
    const send = ndjson(call.response);
    send({ type: "start", exec_id: "x1", pid: 42 });
    await onExec(call, send);
  });
  const sandbox = await server.client().sandboxes.create();
  return { server, sandbox, [Symbol.asyncDispose]: () => server[Symbol.asyncDispose]() };
}

/** A server whose exec answers in one piece. */
async function buffered(
  answer: object,
): Promise<{ server: FakeServer; sandbox: Sandbox; body: () => unknown } & AsyncDisposable> {
  const server = (await FakeServer.start()).withSandbox();
  let body: unknown;
  server.on("POST", "/v1/sandboxes/{id}/exec", async (call) => {
    body = await call.json();
    sendJson(call.response, 200, execWire(answer));
  });
  const sandbox = await server.client().sandboxes.create();
  return { server, sandbox, body: () => body, [Symbol.asyncDispose]: () => server[Symbol.asyncDispose]() };
}

async function collect<Output extends string | Uint8Array>(
  events: AsyncIterable<ExecEvent<Output>>,
): Promise<ExecEvent<Output>[]> {
  const all: ExecEvent<Output>[] = [];
  for await (const event of events) all.push(event);
  return all;
}

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

describe("exec, streamed", () => {
  it("calls back with text whose characters are whole, and collects it", async () => {
    const bytes = Buffer.from("naïve ☃ 🦔\ufeff end");
    await using test = await streaming((call, send) => {
      for (const byte of bytes) send({ type: "stdout", data: base64(Uint8Array.of(byte)) });
      send({ type: "stderr", data: base64("warn") });
      send(execEndLine({ stdout_bytes: bytes.length }));
      call.response.end();
    });
    const out: string[] = [];
    const err: string[] = [];
    const result = await test.sandbox.exec("x", {
      onStdout: (text) => out.push(text),
      onStderr: (text) => err.push(text),
    });
    expect(out.join("")).toBe(bytes.toString());
    expect(out.every((text) => text !== "" && !text.includes("\ufffd"))).toBe(true);
    expect(err).toEqual(["warn"]);
    expect(result).toMatchObject({ stdout: bytes.toString(), stderr: "warn", exitCode: 0 });
    expect(result).not.toHaveProperty("type");
  });

  it("replaces invalid UTF-8, also at the very end, and keeps it as bytes when asked", async () => {
    await using test = await streaming((call, send) => {
      send({ type: "stdout", data: base64(Uint8Array.of(65, 0xff, 66)) });
      send({ type: "stdout", data: base64(Uint8Array.of(0xe2, 0x98)) });
      send(execEndLine());
      call.response.end();
    });
    const text: string[] = [];
    expect((await test.sandbox.exec("x", { onStdout: (chunk) => text.push(chunk) })).stdout).toBe(
      "A\ufffdB\ufffd",
    );
    expect(text.join("")).toBe("A\ufffdB\ufffd");
    const chunks: Uint8Array[] = [];
    const result = await test.sandbox.exec("x", { bytes: true, onStdout: (chunk) => chunks.push(chunk) });
    expect(Buffer.concat(chunks)).toEqual(Buffer.from([65, 0xff, 66, 0xe2, 0x98]));
    expect(Buffer.from(result.stdout)).toEqual(Buffer.concat(chunks));
  });

  it("waits for a callback, and stops the command when one throws", async () => {
    const marks: string[] = [];
    await using test = await streaming(async (call, send) => {
      send({ type: "stdout", data: base64("1") });
      send({ type: "stdout", data: base64("2") });
      await closedByClient(call);
      marks.push("closed");
    });
    const call = test.sandbox.exec("x", {
      onStdout: async (text) => {
        await new Promise((resolve) => setTimeout(resolve, 20));
        marks.push(text);
        if (text === "2") throw new Error("callback failed");
      },
    });
    await expect(call).rejects.toThrow("callback failed");
    await expect.poll(() => marks).toEqual(["1", "2", "closed"]);
  });

  it("gives events in order and the result with the last", async () => {
    await using test = await streaming((call, send) => {
      send({ type: "stdout", data: base64("a"), dropped_bytes: 7 });
      send({ type: "of_the_future" });
      send({ type: "keepalive" });
      send(execEndLine({ exit_code: 1, outcome: "exited" }));
      call.response.end();
    });
    const stream = test.sandbox.execStream("x");
    const events = await collect(stream);
    expect(events.map(({ type }) => type)).toEqual(["start", "stdout", "end"]);
    expect(events[0]).toEqual({ type: "start", execId: "x1", pid: 42 });
    expect(events[1]).toEqual({ type: "stdout", data: "a", droppedBytes: 7 });
    expect(events[2]).toMatchObject({ type: "end", exitCode: 1, truncated: true });
    expect(await stream.result).toMatchObject({ exitCode: 1, stdout: "a", truncated: true });
    expect(() => stream[Symbol.asyncIterator]()).toThrow("read already");
  });

  it("gives the result without iteration, and iteration after the result was asked for", async () => {
    await using test = await streaming((call, send) => {
      send({ type: "stdout", data: base64("a") });
      send(execEndLine());
      call.response.end();
    });
    expect((await test.sandbox.execStream("x").result).stdout).toBe("a");
    const stream = test.sandbox.execStream("x");
    const { result } = stream;
    expect(await collect(stream)).toHaveLength(3);
    expect((await result).stdout).toBe("a");
  });

  it("keeps the connection after a command that ended well", async () => {
    await using test = await streaming((call, send) => {
      send(execEndLine());
      call.response.end();
    });
    for (let count = 0; count < 8; count++) await test.sandbox.execStream("x").result;
    // fetch itself opens a second when the first is not yet marked free.
    expect(test.server.connectionCount).toBeLessThanOrEqual(2);
  });

  it("closes the connection when the loop is left, cancelled, aborted or disposed", async () => {
    const closings: Promise<void>[] = [];
    await using test = await streaming((call) => void closings.push(closedByClient(call)));
    const left = test.sandbox.execStream("x");
    for await (const event of left) if (event.type === "start") break;
    await expect(left.result).rejects.toHaveProperty("name", "AbortError");

    const cancelled = test.sandbox.execStream("x");
    for await (const event of cancelled) if (event) break;
    cancelled.cancel();
    cancelled.cancel();
    await expect(cancelled.result).rejects.toHaveProperty("name", "AbortError");

    const controller = new AbortController();
    const aborted = test.sandbox.execStream("x", { signal: controller.signal });
    const reading = collect(aborted);
    await expect.poll(() => closings.length).toBe(3);
    controller.abort(new Error("stop now"));
    await expect(reading).rejects.toThrow("stop now");
    await expect(aborted.result).rejects.toThrow("stop now");

    {
      await using disposed = test.sandbox.execStream("x");
      await disposed[Symbol.asyncIterator]().next();
    }
    await Promise.all(closings);
    expect(closings).toHaveLength(4);
  });

  it("cancelled before it is answered, rejects and nothing else", async () => {
    await using server = (await FakeServer.start()).withSandbox();
    server.on("POST", "/v1/sandboxes/{id}/exec", () => {});
    const sandbox = await server.client().sandboxes.create();
    const stream = sandbox.execStream("x");
    stream.cancel();
    await expect(stream.result).rejects.toHaveProperty("name", "AbortError");
  });

  it.each([
    ["dropped", (call: Call) => void call.response.destroy()],
    ["ended without an end", (call: Call) => void call.response.end()],
    [
      "cut in the middle of a line",
      (call: Call) => void call.response.write('{"type":"std', () => call.response.destroy()),
    ],
  ])("throws ConnectionError, with the id of the command, when the stream is %s", async (_what, end) => {
    await using test = await streaming((call, send) => {
      send({ type: "stdout", data: base64("partial") });
      setImmediate(() => end(call));
    });
    const seen: string[] = [];
    const error = await test.sandbox
      .exec("x", { onStdout: (text) => seen.push(text) })
      .catch((caught: unknown) => caught);
    expect(error).toBeInstanceOf(ConnectionError);
    expect(error).toMatchObject({ code: "connection_lost", details: { execId: "x1" }, retryable: false });
    expect(seen).toEqual(["partial"]);
    expect(test.server.callsTo("POST", "/exec")).toHaveLength(1);
  });

  it.each([
    ["a line that is no JSON", "not json\n", "invalid_response"],
    ["a line that is no object", "[1]\n", "invalid_response"],
    ["an error line", '{"error":{"code":"guest_unavailable","message":"gone"}}\n', "guest_unavailable"],
  ])("throws on %s", async (_what, line, code) => {
    await using test = await streaming((call) => void call.response.end(line));
    await expect(test.sandbox.execStream("x").result).rejects.toMatchObject({ code });
  });

  it("throws what the server refuses with, from the iteration and from the result", async () => {
    await using server = (await FakeServer.start()).withSandbox();
    server.on("POST", "/v1/sandboxes/{id}/exec", ({ response }) =>
      sendError(response, 404, "file_not_found", "no such cwd"),
    );
    const sandbox = await server.client().sandboxes.create();
    const stream = sandbox.execStream("x", { cwd: "/nope" });
    await expect(collect(stream)).rejects.toBeInstanceOf(NotFoundError);
    await expect(stream.result).rejects.toBeInstanceOf(NotFoundError);
  });

  it("tells a server that cannot be reached from a command that was lost", async () => {
    const server = (await FakeServer.start()).withSandbox();
    const sandbox = await server.client({ maxRetries: 0 }).sandboxes.create();
    await server[Symbol.asyncDispose]();
    await expect(sandbox.execStream("x").result).rejects.toMatchObject({
      code: "connection_failed",
      retryable: true,
    });
  });

  it("keeps the head of output beyond the limit, without half a character, while events carry it all", async () => {
    await using test = await streaming(async (call, send) => {
      for (let count = 0; count < 64; count++) send({ type: "stdout", data: base64("☃".repeat(8192)) });
      send(execEndLine());
      call.response.end();
    });
    const stream = test.sandbox.execStream("x", { maxOutputBytes: 100_000 });
    let characters = 0;
    for await (const event of stream) if (event.type === "stdout") characters += event.data.length;
    const result = await stream.result;
    expect(characters).toBe(64 * 8192);
    expect(result.truncated).toBe(true);
    expect(result.stdout).toBe("☃".repeat(33_333));
  });

  it("does not read ahead of a slow reader", async () => {
    let sent = 0;
    const chunk = base64("x".repeat(32 * 1024));
    await using test = await streaming(async (call) => {
      const line = `${JSON.stringify({ type: "stdout", data: chunk })}\n`;
      const closed = closedByClient(call);
      while (!call.response.destroyed && sent < 4000) {
        sent++;
        if (call.response.write(line)) continue;
        await Promise.race([once(call.response, "drain"), closed]);
      }
    });
    const iterator = test.sandbox.execStream("x")[Symbol.asyncIterator]();
    await iterator.next();
    await iterator.next();
    await new Promise((resolve) => setTimeout(resolve, 300));
    // 4,000 lines are 170 MB; what is under way fits in the buffers of sockets and streams.
    expect(sent).toBeLessThan(1000);
    await iterator.return();
  });

  it("throws CommandError from the result with check", async () => {
    await using test = await streaming((call, send) => {
      send(execEndLine({ exit_code: 9 }));
      call.response.end();
    });
    await expect(test.sandbox.execStream("make", { check: true }).result).rejects.toThrow(
      "`make` exited with 9",
    );
    await expect(test.sandbox.exec("make", { check: true, onStdout: () => {} })).rejects.toBeInstanceOf(
      CommandError,
    );
  });
});

describe("commands in the background", () => {
  it("start, leave, attach and wait", async () => {
    let body: unknown;
    await using server = (await FakeServer.start()).withSandbox();
    server.on("POST", "/v1/sandboxes/{id}/exec", async (call) => {
      body = await call.json();
      sendJson(call.response, 202, { exec_id: "x9", pid: 7 });
    });
    server.on("GET", "/v1/sandboxes/{id}/processes/x9/output", ({ response }) => {
      const send = ndjson(response);
      send({ type: "start", exec_id: "x9", pid: 7 });
      send({ type: "stdout", data: base64("served"), dropped_bytes: 3 });
      send(execEndLine({ exec_id: "x9" }));
      response.end();
    });
    const sandbox = await server.client().sandboxes.create();
    const command = await sandbox.start("python3 -m http.server", { cwd: "/workspace" });
    expect(command).toMatchObject({ execId: "x9", pid: 7 });
    expect(body).toEqual({
      cmd: "python3 -m http.server",
      cwd: "/workspace",
      timeout_seconds: 86_400,
      background: true,
    });
    expect(await command.wait()).toMatchObject({ stdout: "served", truncated: true });
    expect((await sandbox.attach("x9", { bytes: true }).result).stdout).toEqual(
      new TextEncoder().encode("served"),
    );
  });

  it("kill and list", async () => {
    await using server = (await FakeServer.start()).withSandbox();
    const signals: unknown[] = [];
    server.on("POST", "/v1/sandboxes/{id}/processes/*/signal", async (call) => {
      signals.push(await call.json());
      if (signals.length < 3) call.response.writeHead(204).end();
      else sendError(call.response, 404, "process_not_found", "no such process");
    });
    server.on("GET", "/v1/sandboxes/{id}/processes", ({ response }) => {
      const process = {
        pid: 7,
        exec_id: null,
        cmd: "top",
        args: [],
        cwd: null,
        user: "user",
        tag: null,
        started_at: "2026-11-29T16:00:00Z",
      };
      sendJson(response, 200, { processes: [process] });
    });
    const sandbox = await server.client().sandboxes.create();
    expect(await sandbox.kill(7)).toBe(true);
    expect(await sandbox.kill("x9", "SIGTERM")).toBe(true);
    expect(await sandbox.kill("x9")).toBe(false);
    expect(signals).toEqual([{ signal: "SIGKILL" }, { signal: "SIGTERM" }, { signal: "SIGKILL" }]);
    const [process] = await sandbox.processes();
    expect(process).toMatchObject({ pid: 7, execId: null, startedAt: new Date("2026-11-29T16:00:00Z") });
    await expect(sandbox.kill("..")).rejects.toBeInstanceOf(TorporError);
  });
});
