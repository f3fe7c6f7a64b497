import type { IncomingMessage, ServerResponse } from "node:http";
import { afterEach, beforeEach, expect, test } from "vitest";
import { errorOf, eventually, type Reply, World } from "./world.ts";

let world: World;
let id: string;
/** What the code server was asked, and how many of its answers were cut off. */
let asked: { path: string; method: string; body: Record<string, unknown> }[];
let cut: number;

const LINES = [
  { type: "stdout", text: "a", timestamp: 1 },
  { type: "keepalive" },
  { type: "stderr", text: "b", timestamp: 2 },
  { type: "stdout", text: "ü\n", timestamp: 3 },
  { type: "result", text: "3", png: "iVBO", is_main_result: true },
  { type: "error", name: "ValueError", value: "no", traceback: "tb" },
  { type: "number_of_executions", execution_count: 7 },
];

beforeEach(async () => {
  world = await World.start();
  ({ id } = await world.sandbox());
  asked = [];
  cut = 0;
  world.host.codeServer = async (path: string, request: IncomingMessage, response: ServerResponse) => {
    let text = "";
    for await (const chunk of request) text += String(chunk);
    const body = text === "" ? {} : (JSON.parse(text) as Record<string, unknown>);
    asked.push({ path, method: request.method ?? "", body });
    response.once("close", () => {
      if (!response.writableFinished) cut += 1;
    });
    const json = (status: number, value: unknown): void =>
      void response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(value));
    if (path === "/contexts" && request.method === "GET")
      return json(200, [{ id: "c1", language: "python", cwd: "/workspace" }]);
    if (path === "/contexts") return json(200, { id: "c2", language: "bash", cwd: "/", ...body });
    if (path.startsWith("/contexts/"))
      return path.includes("c1")
        ? void response.writeHead(204).end()
        : void response.writeHead(404).end("Context nope not found");
    if (body["context_id"] === "nope") return void response.writeHead(404).end("Context nope not found");
    response.writeHead(200, { "content-type": "application/x-ndjson" });
    if (body["code"] === "hang") return void response.write(`${JSON.stringify(LINES[0])}\n`);
    if (body["code"] === "garbage") return void response.end("{nonsense\n");
    const bytes = Buffer.from(LINES.map((line) => `${JSON.stringify(line)}\n`).join(""));
    for (const byte of bytes) response.write(Buffer.of(byte)); // cut at every byte, characters too
    response.end();
  };
});
afterEach(async () => {
  await world[Symbol.asyncDispose]();
});

const run = (json: object, headers: Record<string, string> = {}): Promise<Reply> =>
  world.call("POST", `/v1/sandboxes/${id}/code`, { json, headers });
const ndjson = { accept: "application/x-ndjson" };

test("code answers in one piece or line by line", async () => {
  expect(await run({ code: "1+2", language: "python" })).toMatchObject({
    status: 200,
    body: {
      results: [{ text: "3", png: "iVBO", is_main_result: true }],
      stdout: "aü\n",
      stderr: "b",
      error: { name: "ValueError", value: "no", traceback: "tb" },
      execution_count: 7,
    },
  });
  expect(asked).toEqual([{ path: "/execute", method: "POST", body: { code: "1+2", language: "python" } }]);
  const streamed = await run({ code: "1+2" }, ndjson);
  expect(streamed.headers.get("content-type")).toBe("application/x-ndjson");
  expect(
    streamed.text
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line) as unknown),
  ).toEqual(LINES);
});

test("its time limit interrupts it and is told as an error, with what came before", async () => {
  expect((await run({ code: "hang", timeout_seconds: 0.2 })).body).toMatchObject({
    stdout: "a",
    error: { name: "TimeoutError" },
  });
  const { text } = await run({ code: "hang", timeout_seconds: 0.2 }, ndjson);
  expect(JSON.parse(text.trim().split("\n").at(-1) ?? "")).toMatchObject({
    type: "error",
    name: "TimeoutError",
  });
  await eventually(() => cut === 2);
});

test("a client that leaves cuts the code server's connection, which interrupts the code", async () => {
  const leave = new AbortController();
  const path = `/v1/sandboxes/${id}/code`;
  const lost = world.fetch("POST", path, { json: { code: "hang" }, headers: ndjson, signal: leave.signal });
  const response = await lost;
  await response.body?.getReader().read();
  leave.abort();
  await eventually(() => cut === 1);
});

test("a repeat with the same key never runs it again", async () => {
  const key = { "idempotency-key": "k" };
  const first = await run({ code: "1+2" }, key);
  expect((await run({ code: "1+2" }, key)).text).toBe(first.text);
  const streamed = { ...ndjson, "idempotency-key": "s" };
  expect((await run({ code: "1+2" }, streamed)).status).toBe(200);
  expect(await run({ code: "1+2" }, streamed)).toMatchObject({ status: 409 });
  expect(asked).toHaveLength(2);
});

test("refusals say what is wrong", async () => {
  const unknown = await run({ code: "1", context_id: "nope" }, ndjson);
  expect([unknown.status, errorOf(unknown).code]).toEqual([404, "not_found"]);
  expect((await run({ code: "1", context_id: "c1", language: "python" })).status).toBe(400);
  expect((await run({})).status).toBe(400);
  expect(errorOf(await run({ code: "garbage" })).code).toBe("guest_unavailable");
  delete world.host.codeServer;
  const none = await run({ code: "1" });
  expect([none.status, errorOf(none).code]).toEqual([503, "guest_unavailable"]);
  expect(errorOf(none).message).toContain("code-interpreter");
});

test("contexts are listed, started, restarted and ended", async () => {
  const path = `/v1/sandboxes/${id}/code/contexts`;
  expect((await world.call("GET", path)).body).toEqual({
    items: [{ id: "c1", language: "python", cwd: "/workspace" }],
  });
  const made = await world.call("POST", path, { json: { language: "bash", cwd: "/tmp" } });
  expect(made).toMatchObject({ status: 201, body: { id: "c2", language: "bash", cwd: "/tmp" } });
  expect(await world.call("POST", `${path}/c1/restart`)).toMatchObject({ status: 200 });
  expect(await world.call("DELETE", `${path}/c1`)).toMatchObject({ status: 200 });
  expect(await world.call("DELETE", `${path}/x`)).toMatchObject({ status: 404 });
  const other = await world.newKey(["sandbox:exec"], "globex");
  expect((await world.call("GET", path, { key: other })).status).toBe(404);
});
