import { once } from "node:events";
import { request, type IncomingHttpHeaders, type IncomingMessage } from "node:http";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { WebSocket, WebSocketServer } from "ws";
import { eventually, errorOf, type Reply, World } from "./world.ts";

let world: World;
let id: string;
/** What the program saw last. */
let seen: { method: string | undefined; path: string; headers: IncomingHttpHeaders; body: string };
const sockets = new WebSocketServer({ noServer: true });

beforeAll(async () => {
  world = await World.start();
  id = (await world.sandbox()).id;
  world.host.programs.set(3000, {
    answer: async (path, incoming, response) => {
      let body = "";
      for await (const chunk of incoming) body += String(chunk);
      seen = { method: incoming.method, path, headers: incoming.headers, body };
      if (path.startsWith("/stream")) {
        response.writeHead(200, { "content-type": "text/event-stream" });
        response.write("data: 1\n\n");
        return; // and never ends
      }
      response.writeHead(path.startsWith("/teapot") ? 418 : 200, {
        "content-type": "text/html",
        "set-cookie": ["app=1; Path=/; Domain=localhost", "torpor_preview=planted; Path=/"],
        "clear-site-data": '"cookies"',
        "x-torpor-host-answer": path.startsWith("/forged") ? "" : [],
        "x-own": "yes",
      });
      response.end(`<p>${body}</p>`);
    },
    upgrade: (path, incoming, connection, head) => {
      seen = { method: incoming.method, path, headers: incoming.headers, body: "" };
      sockets.handleUpgrade(incoming, connection, head, (socket) => {
        socket.on("message", (data: Buffer) => socket.send(`echo ${data.toString()}`));
      });
    },
  });
});
afterAll(async () => {
  await world[Symbol.asyncDispose]();
});

interface Made {
  id: string;
  url: string;
  host: string;
  token: string;
  expires_at: string;
}

async function previewOf(sandbox = id, json: unknown = {}, port = 3000, key = world.adminKey): Promise<Made> {
  const reply = await world.call("POST", `/v1/sandboxes/${sandbox}/ports/${port}/url`, { json, key });
  expect(reply.text).toContain("url_");
  expect(reply.status).toBe(201);
  return reply.body as unknown as Made;
}

/** A request to the server under a Host of one's choice, as a browser or curl sends it. */
async function visit(
  host: string,
  path: string,
  headers: Record<string, string> = {},
  { method = "GET", body = "" } = {},
): Promise<Reply & { raw: IncomingHttpHeaders }> {
  const { port } = new URL(world.url);
  const outgoing = request({
    host: "127.0.0.1",
    port,
    path,
    method,
    headers: { ...headers, host },
    agent: false,
  });
  outgoing.end(body);
  const [answer] = (await once(outgoing, "response")) as [IncomingMessage];
  let text = "";
  for await (const chunk of answer) text += String(chunk);
  const isJson = answer.headers["content-type"]?.includes("json") === true;
  return {
    status: answer.statusCode ?? 0,
    headers: new Headers(),
    raw: answer.headers,
    text,
    body: isJson ? (JSON.parse(text) as Record<string, unknown>) : {},
  };
}

describe("an owner's requests to a port", () => {
  const path = (rest: string, port: number | string = 3000, sandbox = id): string =>
    `/v1/sandboxes/${sandbox}/ports/${port}${rest}`;

  test("reach the program with any method, path and body, without the API key", async () => {
    for (const method of ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]) {
      const body = method === "GET" ? undefined : `body of ${method}`;
      const reply = await world.call(method, path("/a%20b/c?q=1&r=%2F"), {
        ...(body === undefined ? {} : { body }),
        headers: { "x-mine": "kept", "x-torpor-passive": "1", cookie: "mine=1" },
      });
      expect([reply.status, reply.headers.get("x-own")]).toEqual([200, "yes"]);
      expect(seen).toMatchObject({ method, path: "/a%20b/c?q=1&r=%2F", body: body ?? "" });
      expect(seen.headers).toMatchObject({
        "x-mine": "kept",
        "x-forwarded-for": expect.stringContaining("127.0.0.1"),
        "x-forwarded-prefix": `/v1/sandboxes/${id}/ports/3000`,
      });
      expect(seen.headers["x-torpor-passive"]).toBeUndefined();
      expect(JSON.stringify(seen.headers)).not.toContain(world.adminKey);
    }
    expect((await world.call("GET", path("/teapot"))).status).toBe(418);
    expect((await world.call("GET", path("/"))).status).toBe(200);
  });

  test("carry a body whose length is not said, or said to be for one hop, with any method", async () => {
    const { port } = new URL(world.url);
    for (const method of ["GET", "DELETE", "OPTIONS", "POST"])
      for (const framing of [
        { "transfer-encoding": "chunked" },
        { "content-length": "4", connection: "close, content-length" },
      ] as Record<string, string>[]) {
        const outgoing = request({
          host: "127.0.0.1",
          port,
          path: path("/framed"),
          method,
          headers: { ...framing, authorization: `Bearer ${world.adminKey}` },
          agent: false,
        });
        outgoing.end("body");
        const [answer] = (await once(outgoing, "response")) as [IncomingMessage];
        answer.resume();
        expect([method, answer.statusCode, seen.method, seen.body]).toEqual([method, 200, method, "body"]);
      }
  });

  test("get nothing back that could act on the API's origin", async () => {
    const { headers } = await world.call("GET", path("/"));
    expect(headers.get("content-security-policy")).toContain("sandbox");
    expect(headers.get("x-content-type-options")).toBe("nosniff");
    for (const name of ["set-cookie", "clear-site-data"]) expect(headers.get(name)).toBeNull();
  });

  test("stream: the first event comes before the last is written, and leaving ends the program's side", async () => {
    const left = new AbortController();
    const response = await world.fetch("GET", path("/stream"), { signal: left.signal });
    const reader = response.body?.getReader();
    const first = await reader?.read();
    expect(Buffer.from(first?.value ?? []).toString()).toBe("data: 1\n\n");
    left.abort();
  });

  test("are refused as documented", async () => {
    const other = await world.newKey(["sandbox:exec"], "other");
    const read = await world.newKey(["sandbox:read"]);
    const cases: [string, string | null, number, string][] = [
      [path("/"), null, 401, "unauthenticated"],
      [path("/"), read, 403, "permission_denied"],
      [path("/"), other, 404, "sandbox_not_found"],
      [path("/", 3000, "s".repeat(26)), world.adminKey, 404, "sandbox_not_found"],
      [path("/", 0), world.adminKey, 400, "invalid_request"],
      [path("/", 65_536), world.adminKey, 400, "invalid_request"],
      [path("/", "%33000"), world.adminKey, 400, "invalid_request"],
      [path("/health", 49_983), world.adminKey, 403, "permission_denied"],
      [path("/contexts", 49_999), world.adminKey, 403, "permission_denied"],
      [path("/", 3001), world.adminKey, 502, "port_not_open"],
    ];
    for (const [url, key, status, code] of cases) {
      const reply = await world.call("GET", url, { key });
      expect([url, reply.status, errorOf(reply).code]).toEqual([url, status, code]);
    }
  });

  test("never reach another sandbox by dots in the path", async () => {
    const other = await world.sandbox();
    const before = world.host.requests.length;
    const { port } = new URL(world.url);
    const outgoing = request({
      host: "127.0.0.1",
      port,
      path: path(`/../../../${other.id}/ports/3000/x`),
      headers: { authorization: `Bearer ${world.adminKey}` },
    });
    outgoing.end();
    const [answer] = (await once(outgoing, "response")) as [IncomingMessage];
    answer.resume();
    const asked = world.host.requests.slice(before).filter((line) => line.includes("/ports/3000"));
    for (const line of asked) expect(line).toContain(`/v1/machines/${id}/ports/3000/`);
  });

  test("upgrade to a WebSocket, both ways", async () => {
    const socket = new WebSocket(`${world.url.replace("http", "ws")}${path("/ws?x=1")}`, {
      headers: { authorization: `Bearer ${world.adminKey}` },
    });
    await once(socket, "open");
    socket.send("hello");
    expect(String(((await once(socket, "message")) as [Buffer])[0])).toBe("echo hello");
    expect(seen.path).toBe("/ws?x=1");
    expect(JSON.stringify(seen.headers)).not.toContain(world.adminKey);
    socket.close();
    await once(socket, "close");
  });

  test("for a WebSocket are refused by an HTTP answer", async () => {
    world.host.programs.set(3002, { answer: (_path, _request, response) => void response.end() });
    const cases: [string, string, number][] = [
      [path("/"), "tp_wrong", 401],
      [path("/"), await world.newKey(["sandbox:exec"], "other"), 404],
      [path("/health", 49_983), world.adminKey, 403],
      [path("/", 3002), world.adminKey, 426],
    ];
    for (const [url, key, status] of cases) {
      const socket = new WebSocket(`${world.url.replace("http", "ws")}${url}`, {
        headers: { authorization: `Bearer ${key}` },
      });
      socket.on("error", () => {});
      const [, response] = (await once(socket, "unexpected-response")) as [unknown, { statusCode: number }];
      expect([url, response.statusCode]).toEqual([url, status]);
      socket.terminate();
    }
  });

  test("wake a sandbox that sleeps", async () => {
    const sleeper = await world.sandbox();
    await world.call("POST", `/v1/sandboxes/${sleeper.id}/hibernate`);
    expect((await world.call("GET", path("/", 3000, sleeper.id))).status).toBe(200);
    expect(world.host.machines.get(sleeper.id)?.machine.state).toBe("running");
  });
});

describe("a preview URL", () => {
  test("lets a program in by header and by query, and keeps the token from the sandbox", async () => {
    const { host, token } = await previewOf();
    for (const [path, headers] of [
      ["/x?a=1&b=2", { "x-torpor-token": token }],
      [`/x?a=1&torpor_token=${token}&b=2`, {}],
    ] as const) {
      const reply = await visit(
        host,
        path,
        { ...headers, authorization: "Basic abc" },
        { method: "POST", body: "hi" },
      );
      expect([reply.status, reply.text]).toEqual([200, "<p>hi</p>"]);
      expect(seen.path).toBe("/x?a=1&b=2");
      expect(JSON.stringify(seen.headers)).not.toContain(token);
      expect(seen.headers["x-torpor-forwarded-authorization"]).toBe("Basic abc"); // which the host hands on
      expect(seen.headers["x-torpor-forwarded-host"]).toBe(host);
      expect(seen.headers["x-torpor-wake"]).toBe("never");
    }
  });

  test("turns a browser's first visit into a cookie of that host, and the address loses the token", async () => {
    const { host, token } = await previewOf();
    const page = { accept: "text/html,*/*", "sec-fetch-mode": "navigate" };
    const first = await visit(host, `//elsewhere.example/p?a=1&torpor_token=${token}`, page);
    expect(first.status).toBe(302);
    expect(first.raw.location).toBe(`http://${host}//elsewhere.example/p?a=1`);
    expect(first.raw["referrer-policy"]).toBe("no-referrer");
    const cookie = first.raw["set-cookie"]?.[0] ?? "";
    expect(cookie).toMatch(/^torpor_preview=tpv_\w+; Path=\/; HttpOnly; SameSite=Lax; Max-Age=3[56]\d\d$/);
    const second = await visit(host, "/p?a=1", {
      ...page,
      cookie: `a=1; ${cookie.split(";")[0]}; b=2`,
    });
    expect(second.status).toBe(200);
    expect(seen.headers.cookie).toBe("a=1; b=2");
    // What a sandbox sets stays on its own host, and is never ours.
    expect(second.raw["set-cookie"]).toEqual(["app=1; Path=/"]);
    expect(second.raw["clear-site-data"]).toBeUndefined();
  });

  test("opens its own port of its own sandbox and no other, whatever cookie a sibling has planted", async () => {
    const other = await world.sandbox();
    const mine = await previewOf();
    const theirs = await previewOf(other.id);
    const wrong = await visit(theirs.host, "/", { "x-torpor-token": mine.token });
    expect([wrong.status, errorOf(wrong).code]).toEqual([401, "unauthenticated"]);
    const otherPort = await visit(mine.host.replace("3000-", "3002-"), "/", { "x-torpor-token": mine.token });
    expect(otherPort.status).toBe(401);
    const planted = `torpor_preview=${mine.token}; torpor_preview=${theirs.token}`;
    expect((await visit(theirs.host, "/", { cookie: planted })).status).toBe(200);
  });

  test("is not shut to a visitor by cookies that siblings plant, where https keeps ours apart", async () => {
    const { host, token } = await previewOf();
    const planted = Array.from({ length: 20 }, () => `torpor_preview=tpv_${"a".repeat(40)}`).join("; ");
    const cookie = `${planted}; __Host-torpor_preview=${token}; ${planted}`;
    expect((await visit(host, "/", { cookie })).status).toBe(200);
  });

  test("takes a cookie from no page of another sandbox or site, whatever it asks for", async () => {
    const other = await previewOf((await world.sandbox()).id);
    const { host, token } = await previewOf();
    const cookie = `torpor_preview=${token}`;
    const { port } = new URL(world.url);
    for (const origin of [`http://${other.host}`, `http://localhost:${port}`, "https://x.example", "null"]) {
      const reply = await visit(host, "/", { cookie, origin }, { method: "POST", body: "x" });
      expect([origin, reply.status]).toEqual([origin, 401]);
      const socket = new WebSocket(`ws://127.0.0.1:${port}/ws`, { headers: { cookie, origin, host } });
      socket.on("error", () => {});
      const [, response] = (await once(socket, "unexpected-response")) as [unknown, { statusCode: number }];
      expect([origin, response.statusCode]).toEqual([origin, 401]);
      socket.terminate();
      // One that knows the token may.
      expect((await visit(host, "/", { "x-torpor-token": token, origin })).status).toBe(200);
    }
    for (const origin of [`http://${host}`, `https://3000-${id}.localhost`, `http://8000-${id}.localhost`])
      expect((await visit(host, "/", { cookie, origin })).status).toBe(200);
    const form = { cookie, origin: "null", "sec-fetch-site": "same-origin" };
    expect((await visit(host, "/", form, { method: "POST", body: "x" })).status).toBe(200);
  });

  test("answers the same for no token, a wrong one and a sandbox that does not exist", async () => {
    const { host } = await previewOf();
    const bodies = new Set<string>();
    for (const [name, headers] of [
      [host, {}],
      [host, { "x-torpor-token": `tpv_${"a".repeat(40)}` }],
      [host, { "x-torpor-token": "nonsense" }],
      [host, { authorization: `Bearer ${world.adminKey}` }],
      [host.replace(id, "s".repeat(26)), {}],
    ] as const) {
      const reply = await visit(name, "/", headers);
      expect(reply.status).toBe(401);
      bodies.add(`${errorOf(reply).code} ${errorOf(reply).message}`);
    }
    expect(bodies.size).toBe(1);
    const page = await visit(host, "/", { accept: "text/html" });
    expect([page.status, page.raw["content-type"]]).toEqual([401, "text/html; charset=utf-8"]);
    expect(page.text).toContain("needs its link");
  });

  test("hosts below the domain serve nothing of the API, and the API's host nothing of a preview", async () => {
    const { host, token } = await previewOf();
    const { port } = new URL(world.url);
    const asAdmin = { authorization: `Bearer ${world.adminKey}` };
    for (const name of [
      host,
      `api.localhost:${port}`,
      `x.${host}`,
      `49983-${id}.localhost`,
      `3000-${id}.localhost.`,
    ]) {
      for (const path of ["/v1/sandboxes", "/healthz", "/docs"]) {
        const reply = await visit(name, path, asAdmin);
        expect([name, path, [401, 403, 404].includes(reply.status)]).toEqual([name, path, true]);
      }
    }
    for (const name of [`localhost:${port}`, `127.0.0.1:${port}`, `3000-${id}.elsewhere.example`]) {
      const reply = await visit(name, "/", { "x-torpor-token": token });
      expect([name, reply.status]).toEqual([name, 404]);
      expect((await visit(name, "/v1/sandboxes", asAdmin)).status).toBe(200);
    }
    const seenBefore = seen;
    expect((await visit(host, "/v1/sandboxes", { "x-torpor-token": token })).text).toBe("<p></p>");
    expect(seen).not.toBe(seenBefore); // the program's own /v1/sandboxes
    expect((await visit(host, "http://elsewhere.example/", { "x-torpor-token": token })).status).toBe(404);
  });

  test("is never of the agent's ports", async () => {
    for (const port of [49_983, 49_999]) {
      const reply = await world.call("POST", `/v1/sandboxes/${id}/ports/${port}/url`, { json: {} });
      expect([reply.status, errorOf(reply).code]).toEqual([403, "permission_denied"]);
    }
  });

  test("stops when it is revoked, when it expires, when its key is revoked and when its sandbox ends", async () => {
    const revoked = await previewOf();
    const at = `/v1/sandboxes/${id}/urls`;
    for (let turn = 0; turn < 2; turn += 1) {
      const reply = await world.call("DELETE", `${at}/${revoked.id}`);
      expect([reply.status, typeof reply.body["revoked_at"]]).toEqual([200, "string"]);
    }
    expect((await visit(revoked.host, "/", { "x-torpor-token": revoked.token })).status).toBe(401);
    expect((await world.call("DELETE", `${at}/url_none`)).status).toBe(404);

    const short = await previewOf(id, { expires_in_seconds: 1 });
    await eventually(
      async () => (await visit(short.host, "/", { "x-torpor-token": short.token })).status === 401,
    );

    const made = await world.call("POST", "/v1/keys", { json: { name: "k", expires_in_seconds: 60 } });
    const { key, id: keyId } = made.body as { key: string; id: string };
    const byKey = await previewOf(id, { expires_in_seconds: 3600 }, 3000, key);
    expect(Date.parse(byKey.expires_at) - Date.now()).toBeLessThan(61_000);
    expect((await visit(byKey.host, "/", { "x-torpor-token": byKey.token })).status).toBe(200);
    await world.call("DELETE", `/v1/keys/${keyId}`);
    expect((await visit(byKey.host, "/", { "x-torpor-token": byKey.token })).status).toBe(401);

    const ending = await world.sandbox();
    const last = await previewOf(ending.id);
    await world.call("DELETE", `/v1/sandboxes/${ending.id}`);
    const gone = await visit(last.host, "/", { "x-torpor-token": last.token });
    expect([gone.status, errorOf(gone).code]).toEqual([410, "sandbox_ended"]);
    expect((await world.call("POST", `/v1/sandboxes/${ending.id}/ports/3000/url`, { json: {} })).status).toBe(
      410,
    );
  });

  test("never wakes a sandbox, unless it was made to and the sandbox lets it", async () => {
    const sleeper = await world.sandbox();
    const quiet = await previewOf(sleeper.id);
    const waking = await previewOf(sleeper.id, { auto_wake: true });
    await world.call("POST", `/v1/sandboxes/${sleeper.id}/hibernate`);
    const state = (): string | undefined => world.host.machines.get(sleeper.id)?.machine.state;
    for (const headers of [{}, { accept: "text/html" }] as Record<string, string>[]) {
      const refused = await visit(quiet.host, "/", { ...headers, "x-torpor-token": quiet.token });
      expect([refused.status, state()]).toEqual([409, "hibernated"]);
      expect(refused.text).toContain("its owner can make a link that wakes it");
      expect(refused.text).not.toContain("wake or resume");
    }
    expect((await visit(waking.host, "/", { "x-torpor-token": waking.token })).status).toBe(200);
    expect(state()).toBe("running");

    await world.call("PATCH", `/v1/sandboxes/${sleeper.id}/lifecycle`, { json: { auto_wake: false } });
    await world.call("POST", `/v1/sandboxes/${sleeper.id}/hibernate`);
    expect((await visit(waking.host, "/", { "x-torpor-token": waking.token })).status).toBe(409);
  });

  test("wakes within its owner's limits alone", async () => {
    const sleeper = await world.sandbox();
    const waking = await previewOf(sleeper.id, { auto_wake: true });
    await world.call("POST", `/v1/sandboxes/${sleeper.id}/hibernate`);
    const operator = await world.newKey(["operator"]);
    const limit = async (sandboxes_awake: number | null): Promise<void> => {
      const json = { limits: { sandboxes_awake } };
      const reply = await world.call("PATCH", "/v1/accounts/default", { key: operator, json });
      expect(reply.status).toBe(200);
    };
    await limit(1); // others are awake
    try {
      const refused = await visit(waking.host, "/", { "x-torpor-token": waking.token });
      expect([refused.status, errorOf(refused).code]).toEqual([403, "quota_exceeded"]);
      expect(world.host.machines.get(sleeper.id)?.machine.state).toBe("hibernated");
    } finally {
      await limit(null);
    }
    expect((await visit(waking.host, "/", { "x-torpor-token": waking.token })).status).toBe(200);
  });

  test("carries WebSockets, and refuses them without its token", async () => {
    const { host, token } = await previewOf();
    const { port } = new URL(world.url);
    const open = (headers: Record<string, string>): WebSocket =>
      new WebSocket(`ws://127.0.0.1:${port}/ws`, { headers: { ...headers, host } });
    const socket = open({ cookie: `torpor_preview=${token}` });
    await once(socket, "open");
    socket.send("x".repeat(100_000));
    expect(String(((await once(socket, "message")) as [Buffer])[0])).toHaveLength(100_005);
    expect(JSON.stringify(seen.headers)).not.toContain(token);
    const closed = once(socket, "close");
    const [{ id: urlId } = { id: "" }] = (await world.call("GET", `/v1/sandboxes/${id}/urls`)).body[
      "items"
    ] as Made[];
    await world.call("DELETE", `/v1/sandboxes/${id}/urls/${urlId}`);
    await closed; // what is open goes with its URL
    const refused = open({});
    refused.on("error", () => {});
    const [, response] = (await once(refused, "unexpected-response")) as [unknown, { statusCode: number }];
    expect(response.statusCode).toBe(401);
    refused.terminate();
  });

  test("is listed without its token, for its tenant alone, and made once for one Idempotency-Key", async () => {
    const mine = await world.sandbox({ template: "base", tenant: "acme" });
    const key = await world.newKey(["sandbox:read", "sandbox:exec"], "acme");
    const other = await world.newKey(["sandbox:read", "sandbox:exec"], "other");
    const at = `/v1/sandboxes/${mine.id}`;
    const keyed = { json: {}, key, headers: { "idempotency-key": "one" } };
    const made = await world.call("POST", `${at}/ports/3000/url`, keyed);
    expect(made.status).toBe(201);
    expect((await world.call("POST", `${at}/ports/3000/url`, keyed)).status).toBe(409);
    const list = await world.call("GET", `${at}/urls`, { key });
    expect(list.body["items"]).toHaveLength(1);
    expect(list.text).not.toContain("tpv_");
    const urlId = (made.body as unknown as Made).id;
    for (const [method, path] of [
      ["GET", `${at}/urls`],
      ["DELETE", `${at}/urls/${urlId}`],
      ["POST", `${at}/ports/3000/url`],
    ] as const) {
      const reply = await world.call(method, path, {
        key: other,
        ...(method === "POST" ? { json: {} } : {}),
      });
      expect([method, reply.status]).toEqual([method, 404]);
    }
  });

  test("says what nothing listens on, with a page for browsers", async () => {
    const closed = await previewOf(id, {}, 3999);
    const json = await visit(closed.host, "/", { "x-torpor-token": closed.token });
    expect([json.status, errorOf(json).code]).toEqual([502, "port_not_open"]);
    expect(errorOf(json).details).toEqual({ port: 3999 }); // the cause names addresses of the inside
    const page = await visit(closed.host, "/", { "x-torpor-token": closed.token, accept: "text/html" });
    expect([page.status, page.text.includes("0.0.0.0")]).toEqual([502, true]);
  });

  test("tells no visitor where the host is when it is away", async () => {
    const { host, token } = await previewOf();
    await world.host.goAway();
    const json = await visit(host, "/", { "x-torpor-token": token });
    await world.host.listen();
    expect([json.status, errorOf(json)]).toMatchObject([
      503,
      {
        code: "host_unavailable",
        message: "the sandbox cannot be reached now; try again shortly",
        details: {},
      },
    ]);
  });
});
