import { once } from "node:events";
import { describe, expect, it } from "vitest";
import { CommandError, ConnectionError, NotFoundError } from "@torpor/sdk";
import { streaming, collect } from "./exec-servers.ts";
import { base64, type Call, closedByClient, execEndLine, FakeServer, sendError } from "./fake-server.ts";

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
    // One is of the small requests; fetch itself opens a second when the first is not yet marked free.
    expect(test.server.connectionCount).toBeLessThanOrEqual(3);
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
