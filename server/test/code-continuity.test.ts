import type { IncomingMessage, ServerResponse } from "node:http";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { eventually, World } from "./world.ts";

/** A code server that holds its executions, as the one in the template does: `tell` is what the code shows. */
class HeldCode {
  readonly asked: string[] = [];
  readonly executed: string[] = [];
  readonly #lines: object[] = [];
  readonly #streams = new Map<ServerResponse, number>();
  #isOver = false;
  /** Lines of one part. */
  partLines = Infinity;

  tell(...lines: object[]): void {
    this.#lines.push(...lines);
    this.#flush();
  }

  end(): void {
    this.#isOver = true;
    this.#flush();
  }

  /** As a freeze does. With `partly` half a line has gone out before. */
  cut(partly = ""): void {
    for (const stream of this.#streams.keys()) {
      if (partly === "") stream.destroy();
      else stream.write(partly, () => stream.destroy());
    }
    this.#streams.clear();
  }

  get isFollowed(): boolean {
    return this.#streams.size > 0;
  }

  answer(path: string, request: IncomingMessage, response: ServerResponse): void {
    request.resume();
    const url = new URL(request.url ?? "", "http://host");
    const query = url.searchParams.get("from");
    this.asked.push(
      `${request.method} ${path.replace(/c[0-9a-z]{12,}/, "ID")}${query === null ? "" : `?from=${query}`}`,
    );
    if (path === "/execute") {
      const executionId = url.searchParams.get("execution_id") ?? "";
      if (!this.executed.includes(executionId)) this.executed.push(executionId);
      return this.#follow(executionId, 0, response);
    }
    const [, , id = "", verb] = path.split("/");
    if (!this.executed.includes(id)) return void response.writeHead(404).end(`Execution ${id} not found`);
    if (request.method === "DELETE") {
      this.end();
      return void response.writeHead(204).end();
    }
    if (verb === "lines") return this.#follow(id, Number(url.searchParams.get("from")), response);
    response.writeHead(200).end("{}");
  }

  /** In a machine that has slept. */
  forget(): void {
    this.executed.length = 0;
  }

  #follow(id: string, from: number, response: ServerResponse): void {
    response.writeHead(200, { "content-type": "application/x-ndjson", "x-torpor-execution": id });
    response.flushHeaders();
    this.#streams.set(response, from);
    this.#flush();
  }

  #flush(): void {
    for (const [stream, from] of this.#streams) {
      const part = this.#lines.slice(from, from + this.partLines);
      for (const line of part) stream.write(`${JSON.stringify(line)}\n`);
      this.#streams.set(stream, from + part.length);
      if (part.length === this.partLines) {
        stream.end(`${JSON.stringify({ type: "continue" })}\n`);
        this.#streams.delete(stream);
      } else if (this.#isOver) {
        stream.end();
        this.#streams.delete(stream);
      }
    }
  }
}

let world: World;
let id: string;
let code: HeldCode;

beforeEach(async () => {
  world = await World.start();
  ({ id } = await world.sandbox());
  code = new HeldCode();
  world.host.codeServer = (path, request, response) => code.answer(path, request, response);
});
afterEach(() => world[Symbol.asyncDispose]());

const machine = () => {
  const entry = world.host.machines.get(id);
  if (entry === undefined) throw new Error(`no machine ${id}`);
  return entry.machine;
};
const run = (more: object = {}): ReturnType<World["call"]> =>
  world.call("POST", `/v1/sandboxes/${id}/code`, { json: { code: "x", ...more } });
const isFollowed = (): Promise<void> => eventually(() => code.isFollowed);
const stdout = (text: string): object => ({ type: "stdout", text, timestamp: "" });

describe("code whose connection is cut", () => {
  test("by a snapshot is gone on with where it broke: nothing is missing, nothing comes twice", async () => {
    const asked = run();
    await isFollowed();
    for (let round = 0; round < 3; round += 1) {
      code.tell(stdout(`${round}a`), { type: "stderr", text: "e" });
      machine().state = "snapshotting";
      code.cut('{"type":"std');
      code.tell(stdout(`${round}b `));
      machine().state = "running";
      await isFollowed();
    }
    code.tell({ type: "result", png: "iVBO", text: "3", is_main_result: true });
    code.tell({ type: "number_of_executions", execution_count: 4 });
    code.cut();
    code.end();
    expect((await asked).body).toMatchObject({
      stdout: "0a0b 1a1b 2a2b ",
      stderr: "eee",
      results: [{ png: "iVBO", text: "3" }],
      execution_count: 4,
      error: null,
    });
    expect(code.executed).toHaveLength(1);
    expect(code.asked.filter((line) => line.startsWith("GET"))).toHaveLength(4);
    expect(code.asked.some((line) => line.startsWith("DELETE"))).toBe(false);
  });

  test("or whose stream comes in parts is whole", async () => {
    code.partLines = 2;
    const asked = run();
    await isFollowed();
    code.tell(stdout("a"), stdout("b"), stdout("c"), stdout("d"), stdout("e"));
    code.end();
    expect((await asked).body).toMatchObject({ stdout: "abcde", error: null });
    expect(code.asked).toEqual([
      "POST /execute",
      "GET /executions/ID/lines?from=2",
      "GET /executions/ID/lines?from=4",
    ]);
  });

  test("before it has told that it began is asked for again, under the same id", async () => {
    world.host.fault({ on: /execute/, kind: "drop" });
    const asked = run();
    await isFollowed();
    code.tell(stdout("once"));
    code.end();
    expect((await asked).body).toMatchObject({ stdout: "once" });
    expect(code.executed).toHaveLength(1);
  });

  test("while the sandbox is paused waits for it, and wakes nothing", async () => {
    const asked = run();
    await isFollowed();
    machine().state = "paused";
    code.cut();
    code.end();
    await eventually(() => world.host.requests.some((line) => line.includes("settled_within_ms")));
    expect(machine().state).toBe("paused");
    machine().state = "running";
    expect((await asked).body).toMatchObject({ error: null });
  });

  test("by a hibernation is lost, which says what becomes of it, and is not interrupted", async () => {
    const asked = world.fetch("POST", `/v1/sandboxes/${id}/code`, {
      json: { code: "x" },
      headers: { accept: "application/x-ndjson" },
    });
    await isFollowed();
    code.tell(stdout("before"));
    const reader = (await asked).body?.pipeThrough(new TextDecoderStream()).getReader();
    let text = (await reader?.read())?.value ?? "";
    machine().state = "hibernating";
    code.cut();
    await eventually(() => world.host.requests.some((line) => line.includes("settled_within_ms")));
    machine().state = "hibernated";
    for (let more = await reader?.read(); more?.done === false; more = await reader?.read())
      text += more.value;
    const lines = text
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line) as Record<string, unknown>);
    expect(lines).toEqual([
      stdout("before"),
      {
        type: "error",
        name: "ExecutionLost",
        value: expect.stringMatching(
          /was hibernated while the code ran; the code goes on when the sandbox wakes: its variables are kept/,
        ),
        traceback: "",
      },
    ]);
    expect(code.asked).toEqual(["POST /execute"]);
  });

  test("and that the code server knows no more is lost", async () => {
    const asked = run();
    await isFollowed();
    code.forget();
    code.cut();
    const { body } = await asked;
    expect(body).toMatchObject({ error: { name: "ExecutionLost" } });
    expect((body["error"] as { value: string }).value).toMatch(/though the sandbox still runs/);
  });

  test("and whose client leaves meanwhile is interrupted as soon as it can be", async () => {
    const left = new AbortController();
    const asked = world.fetch("POST", `/v1/sandboxes/${id}/code`, {
      json: { code: "x" },
      signal: left.signal,
    });
    asked.catch(() => {});
    await isFollowed();
    machine().state = "snapshotting";
    code.cut();
    left.abort();
    await eventually(() => world.host.requests.some((line) => line.includes("settled_within_ms")));
    expect(code.asked).toEqual(["POST /execute"]);
    machine().state = "running";
    await eventually(() => code.asked.includes("DELETE /executions/ID"));
  });
});

test("a client that leaves has the execution interrupted", async () => {
  const left = new AbortController();
  const asked = world.fetch("POST", `/v1/sandboxes/${id}/code`, { json: { code: "x" }, signal: left.signal });
  asked.catch(() => {});
  await isFollowed();
  left.abort();
  await eventually(() => code.asked.includes("DELETE /executions/ID"));
});

test("the code server keeps the time limit of what it holds, so that what the sandbox stands still does not count", async () => {
  const asked = run({ timeout_seconds: 0.05 });
  await isFollowed();
  machine().state = "snapshotting";
  code.cut();
  await eventually(() => world.host.requests.some((line) => line.includes("settled_within_ms")));
  machine().state = "running";
  await isFollowed();
  code.tell(stdout("late"));
  code.end();
  expect((await asked).body).toMatchObject({ stdout: "late", error: null });
});
