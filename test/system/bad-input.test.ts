import { connect } from "node:net";
import type { ErrorEnvelope, Sandbox } from "@torpor/protocol";
import { beforeAll, describe, expect, test } from "vitest";
import { eventually } from "../src/eventually.ts";
import type { HttpAnswer, HttpCall } from "../src/http-client.ts";
import { useInstance } from "../src/use-instance.ts";

/** What a bad request must get: a 4xx whose message and details name what is wrong, and soon. */
interface Refusal {
  status: number;
  code: string;
  /** Must occur in the message or the details. */
  names: string;
}

describe("bad input to the API", () => {
  const torpor = useInstance({ server: true });
  let id: string;

  beforeAll(async () => {
    const sandbox = await torpor().api.json<Sandbox>("/v1/sandboxes", {
      method: "POST",
      body: { template: "base", ttl_seconds: 3600 },
    });
    ({ id } = sandbox);
    await torpor().api.json(`/v1/sandboxes/${id}/exec`, {
      method: "POST",
      body: {
        cmd: "cd /workspace && mkdir dir && mkfifo fifo && ln -s loop2 loop1 && ln -s loop1 loop2 && ln -s /etc/passwd link && echo text > file",
      },
    });
  });

  async function expectRefusal(
    path: string,
    options: HttpCall,
    { status, code, names }: Refusal,
  ): Promise<void> {
    const startedAt = performance.now();
    const answer = await torpor().api.call(path, options);
    expect({ status: answer.status, code: errorOf(answer).code }).toEqual({ status, code });
    expect(`${errorOf(answer).message} ${JSON.stringify(errorOf(answer).details)}`).toContain(names);
    expect(errorOf(answer).request_id).not.toBe("");
    expect(performance.now() - startedAt).toBeLessThan(5000);
  }

  function errorOf(answer: HttpAnswer): ErrorEnvelope["error"] {
    const { error } = (answer.json ?? {}) as Partial<ErrorEnvelope>;
    if (error === undefined)
      throw new Error(
        `answered ${answer.status} without an error: ${answer.body.toString("utf8").slice(0, 500)}`,
      );
    return error;
  }

  const refusedCreates: [string, unknown, string][] = [
    ["a ttl of 0", { ttl_seconds: 0 }, "ttl_seconds"],
    ["a ttl of -1", { ttl_seconds: -1 }, "ttl_seconds"],
    ["a ttl of 1e12", { ttl_seconds: 1e12 }, "ttl_seconds"],
    ["a ttl that is no number", '{"template":"base","ttl_seconds":NaN}', "JSON"],
    ["a ttl of null", { ttl_seconds: null }, "ttl_seconds"],
    ['a ttl of "5m"', { ttl_seconds: "5m" }, "ttl_seconds"],
    ["a ttl of one and a half", { ttl_seconds: 1.5 }, "ttl_seconds"],
    ["an unknown field", { ttl: 300 }, "ttl"],
    ["a misspelt field", { memory_md: 300 }, "memory_md"],
    ["more cores than the host has", { cpu: 1000 }, "cpu"],
    ["no cores", { cpu: 0 }, "cpu"],
    ["more memory than the host has", { memory_mb: 16_000_000 }, "memory_mb"],
    ["more disk than the host has", { disk_mb: 16_000_000 }, "disk_mb"],
    ["a negative disk", { disk_mb: -1 }, "disk_mb"],
    ["a network that does not exist", { network: "lan" }, "network"],
    ["an environment name no shell takes", { env: { "A=B": "x" } }, "env"],
    ["a NUL in the environment", { env: { A: "x\0y" } }, "env"],
    ["metadata that is no text", { metadata: { a: 1 } }, "metadata"],
    ["a tenant with a slash", { tenant: "a/b" }, "tenant"],
    ["a template's name that climbs", { template: "../../etc" }, "template"],
    ["persistence without a tenant", { persistent: true }, "tenant"],
    ["no end, though it is ephemeral", { ttl_seconds: null, idle_timeout_seconds: 60 }, "ttl_seconds"],
    ["a snapshot's id that is none", { from_snapshot: "../x" }, "from_snapshot"],
    ["an array", [], ""],
    ["text", '"text"', ""],
    ["half a JSON", '{"template":', "JSON"],
  ];

  test.each(refusedCreates)("a create with %s is refused by name", async (_what, body, names) => {
    const whole = typeof body === "object" && !Array.isArray(body) ? { template: "base", ...body } : body;
    await expectRefusal(
      "/v1/sandboxes",
      { method: "POST", body: whole },
      { status: 400, code: "invalid_request", names },
    );
  });

  test("an unknown template is named, with what there is", () =>
    expectRefusal(
      "/v1/sandboxes",
      { method: "POST", body: { template: "no-such-template" } },
      { status: 404, code: "template_not_found", names: "no-such-template" },
    ));

  test("a body of 10 MB is refused, by its size", async () => {
    for (const body of [
      JSON.stringify({ template: "base", metadata: { a: "x".repeat(10_000_000) } }),
      "x".repeat(10_000_000),
    ]) {
      await expectRefusal(
        "/v1/sandboxes",
        { method: "POST", body },
        { status: 413, code: "payload_too_large", names: "bytes" },
      );
    }
    expect((await torpor().api.call("/healthz")).status).toBe(200);
  });

  const refusedPaths: [string, string, number, string][] = [
    ["relative", "workspace/file", 400, "path"],
    ["empty", "", 400, "path"],
    ["climbing", "/workspace/../etc/passwd", 400, "path"],
    ["with a NUL", "/workspace/a\0b", 400, "path"],
    ["of 5,000 characters", `/${"x".repeat(4999)}`, 400, "path"],
    ["with a name of 300 characters", `/workspace/${"x".repeat(300)}`, 400, "name"],
    ["through a loop of links", "/workspace/loop1", 400, "loop1"],
    ["of a directory", "/workspace/dir", 400, "dir"],
    ["of a fifo", "/workspace/fifo", 400, "fifo"],
    ["of a device", "/dev/zero", 400, "/dev/zero"],
    ["below a file", "/workspace/file/below", 400, "file"],
    ["of nothing", "/workspace/nothing", 404, "nothing"],
  ];

  test.each(refusedPaths)("reading a path %s is refused", async (_what, path, status, names) => {
    const answer = await torpor().api.call(`/v1/sandboxes/${id}/fs?path=${encodeURIComponent(path)}`, {
      timeoutMs: 10_000,
    });
    expect(answer.status).toBe(status);
    expect(`${errorOf(answer).message} ${JSON.stringify(errorOf(answer).details)}`).toContain(names);
  });

  test.each(refusedPaths.filter(([what]) => !["of nothing", "of a device"].includes(what)))(
    "writing a path %s is refused, and changes nothing",
    async (_what, path, _status, names) => {
      const answer = await torpor().api.call(`/v1/sandboxes/${id}/fs?path=${encodeURIComponent(path)}`, {
        method: "PUT",
        body: "content",
        headers: { "content-type": "application/octet-stream" },
        timeoutMs: 10_000,
      });
      expect(answer.status).toBe(400);
      expect(`${errorOf(answer).message} ${JSON.stringify(errorOf(answer).details)}`).toContain(names);
    },
  );

  test("odd names that a file may have are taken as they are", async () => {
    for (const path of [
      "/workspace/new\nline",
      "/workspace/tab\tand quote'\"",
      "/workspace/ünïcödé 🎈",
      "/workspace/%2e%2e",
      "/workspace/..dots",
      "/workspace/?query&a=b#c",
    ]) {
      const at = `/v1/sandboxes/${id}/fs?path=${encodeURIComponent(path)}`;
      expect(
        (
          await torpor().api.call(at, {
            method: "PUT",
            body: path,
            headers: { "content-type": "application/octet-stream" },
          })
        ).status,
      ).toBeLessThan(300);
      expect((await torpor().api.call(at)).body.toString("utf8")).toBe(path);
    }
  });

  test("files of /proc are read to their end, or refused; never a hang", async () => {
    const status = await torpor().api.call(`/v1/sandboxes/${id}/fs?path=/proc/self/status`);
    expect([status.status, status.body.toString("utf8")]).toEqual([200, expect.stringMatching(/^Name:/)]);
    for (const path of ["/proc/1/mem", "/proc/self", "/proc/nothing", "/proc/1/fd"]) {
      const answer = await torpor().api.call(`/v1/sandboxes/${id}/fs?path=${path}`, { timeoutMs: 10_000 });
      expect(answer.status).toBeGreaterThanOrEqual(400);
      expect(answer.status).toBeLessThan(500);
    }
  });

  const refusedExecs: [string, unknown, string][] = [
    ["no command", {}, "cmd"],
    ["an empty command", { cmd: "" }, "cmd"],
    ["an empty list", { cmd: [] }, "cmd"],
    ["a NUL in it", { cmd: "echo a\0b" }, "cmd"],
    ["a number for a command", { cmd: 7 }, "cmd"],
    ["a directory that is not there", { cmd: "true", cwd: "/no/such/dir" }, "/no/such/dir"],
    ["a user that is not there", { cmd: "true", user: "nosuchuser" }, "nosuchuser"],
    ["a user's name with a line break", { cmd: "true", user: "a\nb" }, "user"],
    ["a time of 0", { cmd: "true", timeout_seconds: 0 }, "timeout_seconds"],
    ["a time of a week", { cmd: "true", timeout_seconds: 604_800 }, "timeout_seconds"],
    ["negative output", { cmd: "true", max_output_bytes: -1 }, "max_output_bytes"],
    ["an unknown field", { cmd: "true", timeout: 5 }, "timeout"],
    ["a program that is not there", { cmd: ["no-such-program"] }, "no-such-program"],
  ];

  test.each(refusedExecs)("an exec with %s is refused by name, and nothing runs", (_what, body, names) =>
    expectRefusal(
      `/v1/sandboxes/${id}/exec`,
      { method: "POST", body },
      { status: 400, code: "invalid_request", names },
    ),
  );

  test("an exec in a relative directory is refused as a path", () =>
    expectRefusal(
      `/v1/sandboxes/${id}/exec`,
      { method: "POST", body: { cmd: "true", cwd: "tmp" } },
      { status: 400, code: "invalid_path", names: "cwd" },
    ));

  test("ids that are none, or nobody's, are not found: on every route", async () => {
    for (const foreign of [
      "nonexistingsandbox",
      `s${"a".repeat(25)}`,
      "..%2f..%2fetc",
      "%00",
      "x".repeat(3000),
    ]) {
      for (const [method, rest, body] of [
        ["GET", "", undefined],
        ["DELETE", "", undefined],
        ["POST", "/exec", { cmd: "true" }],
        ["GET", "/fs?path=/etc/passwd", undefined],
        ["PATCH", "/lifecycle", { ttl_seconds: 5 }],
        ["GET", "/logs", undefined],
      ] as const) {
        const answer = await torpor().api.call(`/v1/sandboxes/${foreign}${rest}`, {
          method,
          ...(body === undefined ? {} : { body }),
        });
        expect([`${method} ${foreign.slice(0, 30)}${rest}`, answer.status]).toEqual([
          `${method} ${foreign.slice(0, 30)}${rest}`,
          404,
        ]);
      }
    }
  });

  test("deleting twice is no error, and the second changes nothing", async () => {
    const made = await torpor().api.json<Sandbox>("/v1/sandboxes", {
      method: "POST",
      body: { template: "base" },
    });
    const [first, second] = [
      await torpor().api.json<Sandbox>(`/v1/sandboxes/${made.id}`, { method: "DELETE" }),
      await torpor().api.call(`/v1/sandboxes/${made.id}`, { method: "DELETE" }),
    ];
    expect(first).toMatchObject({ state: "destroyed", reason: "user" });
    expect(second.status).toBe(200);
    expect(second.json).toMatchObject({ state: "destroyed", reason: "user", ended_at: first.ended_at });
    const both = await torpor().api.json<Sandbox>("/v1/sandboxes", {
      method: "POST",
      body: { template: "base" },
    });
    const at_once = await Promise.all(
      [1, 2, 3].map(() => torpor().api.call(`/v1/sandboxes/${both.id}`, { method: "DELETE" })),
    );
    expect(at_once.map(({ status }) => status)).toEqual([200, 200, 200]);
  });

  test("work asked of a sandbox that has just died answers that it has ended, and why", async () => {
    const { id: dying } = await torpor().api.json<Sandbox>("/v1/sandboxes", {
      method: "POST",
      body: { template: "base" },
    });
    await torpor().host.end(dying, "runtime_crashed");
    for (const [method, rest, body] of [
      ["POST", "/exec", { cmd: "true" }],
      ["GET", "/fs?path=/etc/passwd", undefined],
      ["PATCH", "/lifecycle", { ttl_seconds: 5 }],
    ] as const) {
      const answer = await torpor().api.call(`/v1/sandboxes/${dying}${rest}`, {
        method,
        ...(body === undefined ? {} : { body }),
      });
      expect([rest, answer.status, errorOf(answer).code, errorOf(answer).details["reason"]]).toEqual([
        rest,
        410,
        "sandbox_ended",
        "runtime_crashed",
      ]);
    }
  });

  test("an exec under way when the sandbox dies ends as lost, with what it had said", async () => {
    const { id: dying } = await torpor().api.json<Sandbox>("/v1/sandboxes", {
      method: "POST",
      body: { template: "base" },
    });
    const exec = torpor().api.json(`/v1/sandboxes/${dying}/exec`, {
      method: "POST",
      body: { cmd: "echo said; touch /tmp/begun; sleep 100" },
    });
    await eventually(
      "it to run",
      async () => (await torpor().api.call(`/v1/sandboxes/${dying}/fs/stat?path=/tmp/begun`)).status === 200,
    );
    await torpor().host.end(dying, "runtime_crashed");
    expect(await exec).toMatchObject({ outcome: "lost", exit_code: null, stdout: "said\n" });
  });

  test("a client that leaves in the middle of a create leaves no sandbox behind", async () => {
    const metadata = { left: "yes" };
    const leaving = new AbortController();
    const call = torpor().api.call("/v1/sandboxes", {
      method: "POST",
      body: { template: "base", metadata, disk_mb: 333 },
      signal: leaving.signal,
    });
    await eventually("it to be under way", async () => (await torpor().host.health()).machines.creating > 0);
    leaving.abort();
    await expect(call).rejects.toThrow();
    await eventually(
      "nothing of it to run",
      async () => (await torpor().host.list()).map((machine) => machine.id).join() === id,
      20_000,
    );
  });

  test("a client that leaves in the middle of an upload leaves the old file, and nothing half-written", async () => {
    const at = `/v1/sandboxes/${id}/fs?path=/workspace/dir/kept`;
    await torpor().api.call(at, {
      method: "PUT",
      body: "old",
      headers: { "content-type": "application/octet-stream" },
    });
    const { hostname, port } = new URL(torpor().url);
    await new Promise<void>((resolve) => {
      const socket = connect(Number(port), hostname, () => {
        socket.write(
          `PUT ${at} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${torpor().apiKey}\r\ncontent-type: application/octet-stream\r\ncontent-length: 1000000\r\n\r\n${"n".repeat(100_000)}`,
          () => setTimeout(() => socket.resetAndDestroy(), 200),
        );
      });
      socket.on("error", () => {});
      socket.on("close", () => resolve());
    });
    await eventually("only the old file to be there", async () => {
      const { stdout } = await torpor().api.json<{ stdout: string }>(`/v1/sandboxes/${id}/exec`, {
        method: "POST",
        body: { cmd: "ls -A /workspace/dir; cat /workspace/dir/kept" },
      });
      return stdout === "kept\nold";
    });
  });

  test("a client that leaves in the middle of a stream ends the command", async () => {
    const leaving = new AbortController();
    const stream = await torpor().api.open(`/v1/sandboxes/${id}/exec`, {
      method: "POST",
      body: { cmd: "while :; do echo tick; sleep 0.05; done # leaving" },
      headers: { accept: "application/x-ndjson" },
      signal: leaving.signal,
    });
    stream.on("error", () => {});
    await new Promise((resolve) => stream.once("data", resolve));
    leaving.abort();
    await eventually("the command to be gone", async () => {
      const { items } = await torpor().api.json<{ items: { cmd: string; args: string[] }[] }>(
        `/v1/sandboxes/${id}/processes`,
      );
      return !items.some(({ args }) => args.join(" ").includes("# leaving"));
    });
  });

  test("a method or path that does not exist, a missing key and a wrong one each get their answer", async () => {
    await expectRefusal("/v1/nothing", {}, { status: 404, code: "not_found", names: "/v1/nothing" });
    expect((await torpor().api.call(`/v1/sandboxes/${id}`, { method: "PUT", body: {} })).status).toBe(405);
    for (const authorization of [
      "",
      "Bearer",
      "Bearer nonsense",
      "Basic abc",
      `Bearer ${torpor().apiKey}x`,
    ]) {
      const answer = await torpor().api.call(`/v1/sandboxes/${id}`, { headers: { authorization } });
      expect([authorization.slice(0, 15), answer.status]).toEqual([authorization.slice(0, 15), 401]);
    }
  });
});
