import { once } from "node:events";
import { request } from "node:http";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { ExecEvent, ExecResult } from "@torpor/protocol";
import { eventually, errorOf, World } from "./world.ts";

let world: World;
let id: string;

beforeAll(async () => {
  world = await World.start();
  id = (await world.sandbox({ template: "base", env: { FROM_CREATE: "yes" } })).id;
});
afterAll(async () => {
  await world[Symbol.asyncDispose]();
});

async function exec(json: Record<string, unknown>): Promise<ExecResult> {
  const reply = await world.exec(id, json);
  expect(reply.status, reply.text).toBe(200);
  return reply.body as unknown as ExecResult;
}

const ndjson = { accept: "application/x-ndjson" };

async function stream(
  json: Record<string, unknown>,
  headers: Record<string, string> = {},
): Promise<ExecEvent[]> {
  const reply = await world.exec(id, json, { headers: { ...ndjson, ...headers } });
  expect(reply.status, reply.text).toBe(200);
  return reply.text
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line) as ExecEvent);
}

const base64 = (text: string | Buffer): string => Buffer.from(text).toString("base64");
const end = (more: Record<string, unknown> = {}): Record<string, unknown> => ({
  end: {
    exited: true,
    exitCode: 0,
    status: "exit status 0",
    torpor: {
      outcome: "exited",
      exitCode: 0,
      signal: null,
      durationMs: 1,
      stdoutBytes: 0,
      stderrBytes: 0,
      stdoutTruncated: false,
      stderrTruncated: false,
      ...more,
    },
  },
});

function script(command: string, steps: (Record<string, unknown> | number | "drop")[]): void {
  world.guest(id).scripted.set(command, { steps });
}

describe("a buffered exec", () => {
  test("takes arguments without a shell, environment, working folder and standard input", async () => {
    expect(await exec({ cmd: ["printf", "%s|", "a b", "$HOME"] })).toMatchObject({ stdout: "a b|$HOME|" });
    expect(
      await exec({
        cmd: "echo $FROM_CREATE $X; pwd; cat",
        env: { X: "1" },
        cwd: "/home/user",
        stdin: "in\nput",
      }),
    ).toMatchObject({ stdout: expect.stringMatching(/^yes 1\n.*\/home\/user\nin\nput$/) });
  });

  test("keeps partial output when the time is up", async () => {
    const result = await exec({ cmd: "echo before; sleep 30; echo after", timeout_seconds: 0.3 });
    expect(result).toMatchObject({
      outcome: "timed_out",
      exit_code: null,
      stdout: "before\n",
      signal: "SIGTERM",
    });
  });

  test("tells a signal as a signal and makes up no exit code", async () => {
    expect(await exec({ cmd: "kill -9 $$" })).toMatchObject({
      outcome: "signalled",
      exit_code: null,
      signal: "SIGKILL",
    });
  });

  test("keeps max_output_bytes of each stream and tells the totals", async () => {
    const result = await exec({
      cmd: "head -c 100000 /dev/zero | tr '\\0' a; head -c 50 /dev/zero | tr '\\0' b >&2",
      max_output_bytes: 1000,
    });
    expect(result).toMatchObject({
      stdout: "a".repeat(1000),
      stderr: "b".repeat(50),
      truncated: true,
      stdout_bytes: 100_000,
      stderr_bytes: 50,
    });
    expect(await exec({ cmd: "echo hi", max_output_bytes: 0 })).toMatchObject({
      stdout: "",
      truncated: true,
      stdout_bytes: 3,
    });
  });

  test("joins a character that was cut between two chunks, and leaves out one that only the limit cut", async () => {
    const euro = Buffer.from("€");
    script("split", [
      { start: { pid: 7 } },
      { data: { stdout: base64(euro.subarray(0, 1)) } },
      { data: { stdout: base64(euro.subarray(1)) } },
      end({ stdoutBytes: 3 }),
    ]);
    expect(await exec({ cmd: "split" })).toMatchObject({ stdout: "€", truncated: false });
    script("cut", [
      { start: { pid: 7 } },
      { data: { stdout: base64(Buffer.concat([euro, euro.subarray(0, 2)])) } },
      end({ stdoutBytes: 6, stdoutTruncated: true }),
    ]);
    expect(await exec({ cmd: "cut", max_output_bytes: 5 })).toMatchObject({
      stdout: "€",
      truncated: true,
      stdout_bytes: 6,
    });
  });

  test("replaces invalid UTF-8 in text and keeps it exactly in base64", async () => {
    expect(await exec({ cmd: "printf 'a\\377b'" })).toMatchObject({
      stdout: "a\uFFFDb",
      encoding: "utf8",
      truncated: false,
    });
    expect(await exec({ cmd: "printf 'a\\377b\\000'", encoding: "base64" })).toMatchObject({
      stdout: base64(Buffer.from([97, 255, 98, 0])),
    });
    expect((await exec({ cmd: "printf '\\357\\273\\277bom'" })).stdout).toBe("\uFEFFbom");
  });

  test("in the background answers once it has started, and goes on", async () => {
    const reply = await world.exec(id, { cmd: "sleep 0.4; echo done", background: true });
    expect(reply.status).toBe(202);
    const { exec_id, pid } = reply.body as { exec_id: string; pid: number };
    const list = await world.call("GET", `/v1/sandboxes/${id}/processes`);
    expect(list.body["items"]).toContainEqual(expect.objectContaining({ pid, exec_id, user: "user" }));
    const output = await world.call("GET", `/v1/sandboxes/${id}/processes/${exec_id}/output`);
    const events = output.text
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line) as ExecEvent);
    expect(events).toContainEqual({ type: "stdout", data: base64("done\n") });
    expect(events.at(-1)).toMatchObject({ type: "end", outcome: "exited", exit_code: 0 });
  });

  test("is killed when its client leaves, unless it runs in the background", async () => {
    const leave = new AbortController();
    const asked = world.exec(id, { cmd: "echo $$; sleep 60" }, { signal: leave.signal });
    await eventually(
      () =>
        world.guest(id).running.size > 0 &&
        [...world.guest(id).running.values()].some(
          ({ ended, request: { process } }) => !ended && process.args.at(-1)?.includes("sleep 60") === true,
        ),
    );
    leave.abort();
    await expect(asked).rejects.toThrow();
    await eventually(() =>
      [...world.guest(id).running.values()].every(
        ({ ended, request: { process } }) => ended || process.args.at(-1)?.includes("sleep 60") !== true,
      ),
    );
  });
});

describe("a streamed exec", () => {
  test("sends start, output as bytes and end, a line each", async () => {
    const events = await stream({ cmd: "printf 'a\\377'; echo err >&2; exit 2" });
    expect(events[0]).toMatchObject({ type: "start", pid: expect.any(Number), exec_id: expect.any(String) });
    expect(events).toContainEqual({ type: "stdout", data: base64(Buffer.from([97, 255])) });
    expect(events).toContainEqual({ type: "stderr", data: base64("err\n") });
    expect(events.at(-1)).toMatchObject({
      type: "end",
      exit_code: 2,
      outcome: "exited",
      stdout_bytes: 2,
      stderr_bytes: 4,
      truncated: false,
    });
  });

  test("makes the command wait for a client that does not read", async () => {
    const { hostname, port } = new URL(world.url);
    const asked = request({
      hostname,
      port,
      method: "POST",
      path: `/v1/sandboxes/${id}/exec`,
      headers: { ...ndjson, authorization: `Bearer ${world.adminKey}`, "content-type": "application/json" },
    });
    asked.end(JSON.stringify({ cmd: "head -c 60000000 /dev/zero", max_output_bytes: 67_108_864 }));
    const [answer] = (await once(asked, "response")) as [NodeJS.ReadableStream & { statusCode: number }];
    answer.pause();
    const produced = (): number =>
      [...world.guest(id).running.values()].find(
        ({ request: { process } }) => process.args.at(-1)?.includes("60000000") === true,
      )?.events.length ?? 0;
    await eventually(() => produced() > 0);
    let before = -1;
    await eventually(async () => {
      const now = produced();
      const still = now === before;
      before = now;
      await new Promise((resolve) => setTimeout(resolve, 100));
      return still;
    }, 10_000);
    // The command stands still with most of its output unwritten.
    expect(before * 32_768).toBeLessThan(40_000_000);
    let bytes = 0;
    for await (const chunk of answer) bytes += (chunk as Buffer).length;
    expect(bytes).toBeGreaterThan(80_000_000); // 60 MB in base64
  });

  test("that is refused before its start answers with the status of the refusal", async () => {
    const reply = await world.exec(id, { cmd: "true", cwd: "/nowhere" }, { headers: ndjson });
    expect(reply).toMatchObject({ status: 400, body: { error: { code: "invalid_request" } } });
  });
});

describe("when the sandbox dies", () => {
  test("during a command the outcome is lost or oom, with the output so far and the reason", async () => {
    for (const [reason, outcome] of [
      ["runtime_crashed", "lost"],
      ["oom", "oom"],
      ["ttl_expired", "lost"],
    ] as const) {
      const other = await world.sandbox();
      const asked = world.exec(other.id, { cmd: "echo partial; sleep 60" });
      await eventually(() =>
        [...world.guest(other.id).running.values()].some(({ events }) => events.length > 1),
      );
      world.host.end(other.id, reason, { message: "exit status 137" });
      const reply = await asked;
      expect(reply).toMatchObject({
        status: 200,
        body: { outcome, exit_code: null, signal: null, stdout: "partial\n", stdout_bytes: 8 },
      });
      expect(String(reply.body["message"])).toContain(`${reason}): exit status 137`);
      await eventually(
        async () => (await world.call("GET", `/v1/sandboxes/${other.id}`)).body["state"] === "destroyed",
      );
      expect((await world.call("GET", `/v1/sandboxes/${other.id}`)).body).toMatchObject({
        reason,
        ended_at: expect.any(String),
      });
    }
  });

  test("just before a command the answer is 410 with the reason, before the event has come", async () => {
    const other = await world.sandbox();
    world.host.end(other.id, "oom", { silent: true });
    const reply = await world.exec(other.id, { cmd: "true" });
    expect(reply).toMatchObject({
      status: 410,
      body: { error: { code: "sandbox_ended", details: { reason: "oom" } } },
    });
    expect(await world.call("GET", `/v1/sandboxes/${other.id}/fs?path=/x`)).toMatchObject({ status: 410 });
    await eventually(
      async () => (await world.call("GET", `/v1/sandboxes/${other.id}`)).body["reason"] === "oom",
    );
  });

  test("a connection that breaks while the sandbox lives is lost too, and says that it lives", async () => {
    script("broken", [{ start: { pid: 9 } }, { data: { stdout: base64("x") } }, 50, "drop"]);
    const result = await exec({ cmd: "broken" });
    expect(result).toMatchObject({
      outcome: "lost",
      stdout: "x",
      message: expect.stringContaining("still runs"),
    });
    script("unstarted", ["drop"]);
    expect(await world.exec(id, { cmd: "unstarted" })).toMatchObject({
      status: 503,
      body: { error: { retryable: true } },
    });
  });
});

describe("a process", () => {
  test("with keep_stdin_open takes input piece by piece until it is closed", async () => {
    const started = await world.exec(id, {
      cmd: "cat; echo closed",
      keep_stdin_open: true,
      background: true,
    });
    const path = `/v1/sandboxes/${id}/processes/${String(started.body["exec_id"])}`;
    const bytes = Buffer.alloc(100_000, "ü");
    expect((await world.call("POST", `${path}/stdin`, { body: bytes })).body).toEqual({
      bytes: 100_000,
      closed: false,
    });
    const last = await world.call("POST", `${path}/stdin?close=true`, {
      body: "end\n",
      headers: { "idempotency-key": "in" },
    });
    expect(last).toMatchObject({ status: 200, body: { bytes: 4, closed: true } });
    const output = (await world.call("GET", `${path}/output`)).text
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line) as ExecEvent);
    const written = Buffer.concat(
      output.flatMap((event) => (event.type === "stdout" ? [Buffer.from(event.data, "base64")] : [])),
    );
    expect(written.equals(Buffer.concat([bytes, Buffer.from("end\nclosed\n")]))).toBe(true);
  });

  test("is followed and signalled by pid and by exec id, and a missing one is told", async () => {
    const events = stream({ cmd: "cat; sleep 60", background: true, timeout_seconds: 100 });
    await eventually(() =>
      [...world.guest(id).running.values()].some(
        ({ request: { process }, ended }) => process.args.at(-1) === "cat; sleep 60" && !ended,
      ),
    );
    const running = [...world.guest(id).running.values()].find(
      ({ request: { process } }) => process.args.at(-1) === "cat; sleep 60",
    );
    const path = `/v1/sandboxes/${id}/processes`;
    expect(
      await world.call("POST", `${path}/${running?.pid}/signal`, { json: { signal: "KILL" } }),
    ).toMatchObject({ status: 200, body: { signal: "SIGKILL" } });
    expect((await events).at(-1)).toMatchObject({ type: "end", outcome: "signalled", signal: "SIGKILL" });
    expect(await world.call("POST", `${path}/999999/signal`, { json: { signal: "SIGTERM" } })).toMatchObject({
      status: 404,
      body: { error: { code: "process_not_found" } },
    });
    expect(await world.call("GET", `${path}/999999/output`)).toMatchObject({
      status: 404,
      body: { error: { code: "process_not_found" } },
    });
    expect((await world.call("POST", `${path}/1/signal`, { json: { signal: "rm -rf" } })).status).toBe(400);
    expect(
      errorOf(await world.call("POST", `${path}/1/stdin`, { body: Buffer.alloc(9_000_000) })),
    ).toMatchObject({ code: "payload_too_large" });
  });
});
