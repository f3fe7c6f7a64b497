import { connect } from "node:net";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { errorOf, World } from "./world.ts";

let world: World;
let id: string;

beforeAll(async () => {
  world = await World.start();
  id = (await world.sandbox()).id;
});
afterAll(async () => {
  await world[Symbol.asyncDispose]();
});

function issues(reply: Parameters<typeof errorOf>[0]): { path: string; message: string }[] {
  return errorOf(reply).details["issues"] as { path: string; message: string }[];
}

describe("a create with", () => {
  const cases: [string, string, RegExp][] = [
    ['{"ttl_seconds":0}', "ttl_seconds", /at least 1, but is 0/],
    ['{"ttl_seconds":-1}', "ttl_seconds", /at least 1, but is -1/],
    ['{"ttl_seconds":1e12}', "ttl_seconds", /at most 2592000/],
    ['{"ttl_seconds":1e400}', "ttl_seconds", /whole number/],
    ['{"ttl_seconds":null}', "ttl_seconds", /null only with persistent: true/],
    ['{"ttl_seconds":"5m"}', "ttl_seconds", /whole number of seconds, e.g. 300, but is "5m"/],
    ['{"ttl_seconds":1.5}', "ttl_seconds", /whole number/],
    ['{"ttl_second":5}', "ttl_second", /is not a field of this request; accepted: template, ttl_seconds/],
    ['{"cpu":64}', "cpu", /is 64, but the largest host has 4 cores/],
    ['{"cpu":5000}', "cpu", /at most 1024, but is 5000/],
    ['{"cpu":0}', "cpu", /at least 0.1/],
    ['{"memory_mb":999999}', "memory_mb", /the largest host has 8192 MiB/],
    ['{"memory_mb":1}', "memory_mb", /at least 128/],
    ['{"disk_mb":9999999}', "disk_mb", /the largest host has 65536 MiB/],
    ['{"template":"../etc"}', "template", /lower-case letters/],
    ['{"template":7}', "template", /must be a string, but is 7/],
    ['{"persistent":true}', "tenant", /is required for a persistent sandbox/],
    ['{"persistent":"yes"}', "persistent", /must be a boolean/],
    ['{"idle_timeout_seconds":0}', "idle_timeout_seconds", /at least 1/],
    ['{"on_idle":"sleep"}', "on_idle", /one of hibernate, pause, destroy, none/],
    ['{"retention_seconds":1.5}', "retention_seconds", /whole number/],
    ['{"from_snapshot":"sabc"}', "from_snapshot", /must be a snapshot id/],
    ['{"network":"open"}', "network", /one of internet, none, but is "open"/],
    [
      '{"network":{"allow":["10.0.0.0/8"]}}',
      "network.allow.0",
      /^is "10\.0\.0\.0\/8", but no policy opens 10\.0\.0\.0\/8 \([^"]*\)$/,
    ],
    [
      '{"network":{"deny":["203.0.113.80/24"]}}',
      "network.deny.0",
      /^is "203\.0\.113\.80\/24", which has bits set behind its prefix; did you mean 203\.0\.113\.0\/24\?$/,
    ],
    ['{"metadata":{"a":1}}', "metadata.a", /must be a string/],
    ['{"metadata":{"a":"\\u0000"}}', "metadata.a", /NUL/],
    ['{"metadata":{"a":"\\ud800"}}', "metadata.a", /surrogate/],
    ['{"metadata":{"tenant_id":"a b"}}', "metadata.tenant_id", /letters, digits/],
    ['{"env":{"1A":"x"}}', "env.1A", /not starting with a digit/],
    ['{"env":{"A":"s3cret\\u0000"}}', "env.A", /must not contain NUL$/],
    ["[]", "", /object/],
    ['"x"', "", /object/],
  ];
  test.each(cases)("%s is refused with 400 that names the field", async (body, path, message) => {
    const reply = await world.call("POST", "/v1/sandboxes", {
      body,
      headers: { "content-type": "application/json" },
    });
    expect(reply.status).toBe(400);
    expect(issues(reply)).toContainEqual(
      expect.objectContaining({ path, message: expect.stringMatching(message) }),
    );
    expect(reply.text).not.toContain("s3cret");
  });

  test("NaN or any other broken JSON is refused with its line and column", async () => {
    const reply = await world.call("POST", "/v1/sandboxes", {
      body: '{\n "ttl_seconds": NaN}',
      headers: { "content-type": "application/json" },
    });
    expect(reply.status).toBe(400);
    expect(errorOf(reply).message).toMatch(/not valid JSON.*line 2, column 17/);
  });

  test("an unknown template passes on the host's answer and leaves no machine", async () => {
    const reply = await world.call("POST", "/v1/sandboxes", { json: { template: "nope" } });
    expect(reply).toMatchObject({ status: 404, body: { error: { code: "template_not_found" } } });
    expect(errorOf(reply).message).toContain("known: base");
    const list = await world.call("GET", "/v1/sandboxes?state=destroyed&template=nope");
    expect(list.body).toMatchObject({ items: [{ state: "destroyed", reason: "create_failed" }] });
  });

  test("a form's content type is refused with the one to use", async () => {
    const reply = await world.call("POST", "/v1/sandboxes", {
      body: "template=base",
      headers: { "content-type": "application/x-www-form-urlencoded" },
    });
    expect(reply.status).toBe(400);
    expect(errorOf(reply).message).toContain("content-type: application/json");
  });

  test("an empty body takes every default", async () => {
    const reply = await world.call("POST", "/v1/sandboxes", { body: "" });
    expect(reply).toMatchObject({ status: 201, body: { template: "code-interpreter" } });
  });
});

test("a body of 10 MB is answered with 413 without being read to its end", async () => {
  const reply = await world.call("POST", "/v1/sandboxes", {
    body: JSON.stringify({ name: "x".repeat(10_000_000) }),
    headers: { "content-type": "application/json" },
  });
  expect(reply).toMatchObject({ status: 413, body: { error: { code: "payload_too_large" } } });
});

test("an endless chunked body is answered with 413 and cut off", async () => {
  const { hostname, port } = new URL(world.url);
  const answer = await new Promise<string>((resolve, reject) => {
    const socket = connect(Number(port), hostname);
    let text = "";
    let writing = true;
    socket.on("data", (chunk) => (text += String(chunk)));
    socket.on("close", () => {
      writing = false;
      resolve(text);
    });
    socket.on("error", () => {}); // the reset after the answer is what a cut-off looks like
    setTimeout(() => reject(new Error("the server went on reading")), 10_000).unref();
    socket.write(
      `POST /v1/sandboxes HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${world.adminKey}\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n`,
    );
    const piece = `10000\r\n${"x".repeat(65_536)}\r\n`;
    const more = (): void => {
      if (!writing) return;
      if (socket.write(piece)) setImmediate(more);
      else socket.once("drain", more);
    };
    more();
  });
  expect(answer).toMatch(/^HTTP\/1.1 413/);
  expect(answer).toContain("payload_too_large");
});

describe("a file path that", () => {
  const cases: [string, string, RegExp][] = [
    ["is relative", "a/b", /must be absolute/],
    ["climbs with ..", "/a/../../etc/passwd", /must not contain '..'/],
    ["holds a NUL", "/a\0b", /must not contain NUL/],
    ["has 5,000 characters", `/${"a".repeat(5000)}`, /at most 4095 bytes/],
    ["is empty", "", /must not be empty/],
  ];
  test.each(cases)("%s is refused with 400 invalid_path on every route", async (_what, path, message) => {
    const query = `?path=${encodeURIComponent(path)}`;
    const replies = await Promise.all([
      world.call("GET", `/v1/sandboxes/${id}/fs${query}`),
      world.call("PUT", `/v1/sandboxes/${id}/fs${query}`, { body: "x" }),
      world.call("DELETE", `/v1/sandboxes/${id}/fs${query}`),
      world.call("GET", `/v1/sandboxes/${id}/fs/stat${query}`),
      world.call("GET", `/v1/sandboxes/${id}/fs/dir${query}`),
      world.call("POST", `/v1/sandboxes/${id}/fs/dir${query}`),
      world.call("GET", `/v1/sandboxes/${id}/fs/watch${query}`),
      world.call("GET", `/v1/sandboxes/${id}/fs/archive${query}`),
      world.call("PUT", `/v1/sandboxes/${id}/fs/archive${query}`, { body: "x" }),
      world.call("POST", `/v1/sandboxes/${id}/fs/move`, { json: { source: path, destination: "/ok" } }),
      world.exec(id, { cmd: "true", cwd: path }),
    ]);
    for (const reply of replies) {
      expect(reply).toMatchObject({ status: 400, body: { error: { code: "invalid_path" } } });
      expect(errorOf(reply).message).toMatch(message);
    }
  });

  test("holds a newline is a path like any other", async () => {
    const query = `?path=${encodeURIComponent("/a\nb ü+&?.txt")}`;
    expect((await world.call("PUT", `/v1/sandboxes/${id}/fs${query}`, { body: "strange" })).status).toBe(200);
    expect((await world.call("GET", `/v1/sandboxes/${id}/fs${query}`)).text).toBe("strange");
  });

  test("is missing from the query is named as required", async () => {
    const reply = await world.call("GET", `/v1/sandboxes/${id}/fs`);
    expect(reply.status).toBe(400);
    expect(errorOf(reply).message).toBe("path is required");
  });

  test("points at a folder is refused for reading and writing", async () => {
    for (const method of ["GET", "PUT"]) {
      const reply = await world.call(
        method,
        `/v1/sandboxes/${id}/fs?path=/home/user`,
        method === "PUT" ? { body: "x" } : {},
      );
      expect(reply).toMatchObject({ status: 400, body: { error: { code: "invalid_path" } } });
    }
  });

  test("points at nothing is 404 file_not_found", async () => {
    expect(await world.call("GET", `/v1/sandboxes/${id}/fs?path=/nowhere`)).toMatchObject({
      status: 404,
      body: { error: { code: "file_not_found" } },
    });
    expect(await world.call("DELETE", `/v1/sandboxes/${id}/fs?path=/nowhere`)).toMatchObject({
      status: 404,
      body: { error: { code: "file_not_found" } },
    });
  });
});

describe("an exec with", () => {
  const cases: [unknown, RegExp][] = [
    [{}, /cmd/],
    [{ cmd: "" }, /cmd must not be empty/],
    [{ cmd: [] }, /cmd must be at least 1 items/],
    [{ cmd: ["a", 1] }, /cmd.1 must be a string/],
    [{ cmd: 5 }, /cmd must be string or array/],
    [{ cmd: "a\0b" }, /cmd must not contain NUL/],
    [{ cmd: "true", timeout_seconds: 0 }, /timeout_seconds must be more than 0/],
    [{ cmd: "true", timeout_seconds: 1e9 }, /timeout_seconds must be at most 86400/],
    [{ cmd: "true", timeout_seconds: "1" }, /timeout_seconds must be a number/],
    [{ cmd: "true", max_output_bytes: -1 }, /max_output_bytes must be at least 0/],
    [{ cmd: "true", user: "Robert'); DROP" }, /user must be a user name/],
    [
      { cmd: "true", stdin: "x", keep_stdin_open: true },
      /keep_stdin_open cannot be used together with stdin/,
    ],
    [{ cmd: "true", command: "x" }, /command is not a field/],
    [{ cmd: "true", cwd: "/nowhere" }, /cwd '\/nowhere' does not exist/],
    [{ cmd: "true", user: "nobody-here" }, /invalid username/],
    [{ cmd: ["/no/such/program"] }, /ENOENT/],
  ];
  test.each(cases)("%j is refused with 400", async (json, message) => {
    const reply = await world.exec(id, json);
    expect(reply.status).toBe(400);
    expect(errorOf(reply).message).toMatch(message);
  });

  test("and where the default user cannot be looked up, that is said, and not of a field nobody set", async () => {
    world.guest(id).isPasswdDamaged = true;
    const { message } = errorOf(await world.exec(id, { cmd: "true" }));
    world.guest(id).isPasswdDamaged = false;
    expect(message).toContain("the sandbox's default user 'user' cannot be looked up");
    expect(message).toContain("Commands as root still run");
    expect(message).not.toContain("field");
  });
});

test("a query parameter nobody knows is named, and a foreign cursor is refused", async () => {
  const reply = await world.call("GET", "/v1/sandboxes?stat=running");
  expect(reply.status).toBe(400);
  expect(errorOf(reply).message).toMatch(/stat is not a query parameter/);
  for (const cursor of ["x", "W10", Buffer.from('[1,"../x"]').toString("base64url")]) {
    expect((await world.call("GET", `/v1/sandboxes?cursor=${cursor}`)).status).toBe(400);
  }
  expect((await world.call("GET", "/v1/sandboxes?state=dead")).status).toBe(400);
  expect((await world.call("GET", "/v1/sandboxes?limit=0")).status).toBe(400);
  expect((await world.call("GET", "/v1/sandboxes?limit=1000")).status).toBe(400);
});

test("an unknown route is 404, a known one with another method 405 with Allow, each in the envelope with a request id", async () => {
  const missing = await world.call("GET", "/v1/nothing");
  expect(missing).toMatchObject({ status: 404, body: { error: { code: "not_found" } } });
  expect(missing.headers.get("x-request-id")).toBe(errorOf(missing).request_id);
  const wrong = await world.call("PUT", "/v1/sandboxes", { body: "x" });
  expect(wrong).toMatchObject({ status: 405, body: { error: { code: "method_not_allowed" } } });
  expect(wrong.headers.get("allow")).toBe("GET, HEAD, POST");
  const own = await world.call("GET", `/v1/sandboxes/${id}`, { headers: { "x-request-id": "mine-1" } });
  expect(own.headers.get("x-request-id")).toBe("mine-1");
});

test("HEAD answers like GET without a body", async () => {
  const reply = await world.call("HEAD", `/v1/sandboxes/${id}`);
  expect(reply).toMatchObject({ status: 200, text: "" });
  expect(Number(reply.headers.get("content-length"))).toBeGreaterThan(100);
  await world.call("PUT", `/v1/sandboxes/${id}/fs?path=/head.txt`, { body: "12345" });
  const file = await world.call("HEAD", `/v1/sandboxes/${id}/fs?path=/head.txt`);
  expect(file).toMatchObject({ status: 200, text: "" });
});

test("a malformed id is an unknown one: 404, never 400 or 500", async () => {
  for (const odd of ["x", "%00", "A".repeat(3000), "..%2f..%2fetc", "%F0%9F%98%80"]) {
    const reply = await world.call("GET", `/v1/sandboxes/${odd}`);
    expect(reply).toMatchObject({ status: 404, body: { error: { code: "sandbox_not_found" } } });
  }
});
