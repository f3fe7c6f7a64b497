import { createHash } from "node:crypto";
import { once } from "node:events";
import { type IncomingMessage, request } from "node:http";
import { Sandbox, TimeoutError } from "e2b";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { WebSocket } from "ws";
import { e2bOptions, eventually, useInstance } from "../src/index.ts";
import { ECHO_PROGRAM } from "./echo-program.ts";

const DOMAIN = "e2b.test:7443";

interface Reply {
  status: number;
  headers: IncomingMessage["headers"];
  body: Buffer;
  json(): Record<string, unknown>;
}

describe("the ingress of E2B's clients", () => {
  const torpor = useInstance({ server: true, env: { TORPOR_E2B_DOMAIN: DOMAIN } });
  const options = () => e2bOptions(torpor());
  let sandbox: Sandbox;
  let guarded: Sandbox;

  beforeAll(async () => {
    const network = { allowPublicTraffic: false, maskRequestHost: "localhost:${PORT}" };
    [sandbox, guarded] = await Promise.all([
      Sandbox.create("code-interpreter-v1", options()),
      Sandbox.create("code-interpreter-v1", { ...options(), network }),
    ]);
    for (const each of [sandbox, guarded]) {
      await each.files.write("/home/user/server.js", ECHO_PROGRAM);
      await each.commands.run("node /home/user/server.js", { background: true, timeoutMs: 0 });
      await eventually(
        "the program to listen",
        async () => (await each.commands.run("curl -s localhost:8000 || true")).stdout !== "",
        30_000,
      );
    }
  });
  afterAll(async () => {
    for (const each of [sandbox, guarded])
      if (each !== undefined) await Sandbox.kill(each.sandboxId, options());
  });

  /** The names of the domain lead here by the Host header alone. */
  async function ask(
    path: string,
    {
      host,
      headers = {},
      method = "GET",
      body,
    }: { host?: string; headers?: Record<string, string>; method?: string; body?: Buffer } = {},
  ): Promise<Reply> {
    const outgoing = request({
      host: "127.0.0.1",
      port: new URL(torpor().url).port,
      path,
      method,
      headers: { ...headers, ...(host === undefined ? {} : { host }) },
      agent: false,
    });
    outgoing.end(body);
    const [answer] = (await once(outgoing, "response")) as [IncomingMessage];
    const chunks: Buffer[] = [];
    for await (const chunk of answer as AsyncIterable<Buffer>) chunks.push(chunk);
    const whole = Buffer.concat(chunks);
    return {
      status: answer.statusCode ?? 0,
      headers: answer.headers,
      body: whole,
      json: () => JSON.parse(String(whole)) as Record<string, unknown>,
    };
  }

  test("names a port by its host, as getHost does, and shows the program that host", async () => {
    const host = sandbox.getHost(8000);
    expect(host).toBe(`8000-${sandbox.sandboxId}.${DOMAIN}`);
    const reply = await ask("/a%20b?q=1", { host, headers: { authorization: "Bearer of-theirs" } });
    expect(reply.status).toBe(200);
    expect(reply.json()).toMatchObject({
      url: "/a%20b?q=1",
      headers: { host, authorization: "Bearer of-theirs" },
    });
  });

  test("streams a large body in, and names the port by headers as well", async () => {
    const body = Buffer.alloc(8 * 1024 * 1024, 3);
    const headers = { "e2b-sandbox-id": sandbox.sandboxId, "e2b-sandbox-port": "8000" };
    const reply = await ask("/", { headers, method: "POST", body });
    expect(reply.json()["hash"]).toBe(createHash("sha256").update(body).digest("hex"));
    const seen = reply.json()["headers"] as Record<string, string>;
    expect(Object.keys(seen).filter((name) => name.startsWith("e2b-"))).toEqual([]);
  });

  test("carries WebSockets", async () => {
    const socket = new WebSocket(`ws://127.0.0.1:${new URL(torpor().url).port}/chat`, {
      headers: { host: sandbox.getHost(8000) },
    });
    await once(socket, "open");
    socket.send("hello");
    expect(String(((await once(socket, "message")) as [Buffer])[0])).toBe("hello");
    socket.close();
    await once(socket, "close");
  });

  test("answers 502 for a port where nothing listens, and for a sandbox that is not there", async () => {
    const closed = await ask("/", { host: sandbox.getHost(9) });
    expect(closed.status).toBe(502);
    expect(closed.json()).toEqual({
      sandboxId: sandbox.sandboxId,
      message: "The sandbox is running but port is not open",
      port: 9,
      code: 502,
    });
    const missing = await ask("/", { host: `8000-${"i".repeat(20)}.${DOMAIN}` });
    expect(missing.status).toBe(502);
    expect(missing.json()).toEqual({
      sandboxId: "i".repeat(20),
      message: "The sandbox was not found",
      code: 502,
    });
  });

  test("answers 400 for a host below its domain that names no port", async () => {
    expect((await ask("/", { host: `nothing.${DOMAIN}` })).json()).toMatchObject({
      code: 400,
      message: "Invalid host",
    });
  });

  test("asks for the traffic token where traffic is not public, and masks the host as asked", async () => {
    const host = guarded.getHost(8000);
    const refused = await ask("/", { host });
    expect([refused.status, refused.json()["code"]]).toEqual([403, 403]);
    expect(guarded.trafficAccessToken).toMatch(/^[0-9a-f]{64}$/);
    const wrong = await ask("/", { host, headers: { "e2b-traffic-access-token": "wrong" } });
    expect(wrong.status).toBe(403);
    const token = guarded.trafficAccessToken ?? "";
    const let_in = await ask("/", { host, headers: { "e2b-traffic-access-token": token } });
    expect(let_in.json()).toMatchObject({ headers: { host: "localhost:8000" } });
    expect(String(let_in.body)).not.toContain(token);
  });

  test("keeps agent and code interpreter for those who have the sandbox's token", async () => {
    for (const port of [49_983, 49_999]) {
      const reply = await ask(port === 49_983 ? "/envs" : "/execute", { host: sandbox.getHost(port) });
      expect(reply.status, String(port)).toBe(401);
    }
    const other = await ask("/envs", {
      host: sandbox.getHost(49_983),
      headers: { "x-access-token": "0".repeat(64) },
    });
    expect(other.json()).toMatchObject({ code: 401 });
    const rpc = await ask("/process.Process/List", {
      host: sandbox.getHost(49_983),
      method: "POST",
      headers: { "content-type": "application/json" },
      body: Buffer.from("{}"),
    });
    expect([rpc.status, rpc.json()["code"]]).toEqual([401, "unauthenticated"]);
    expect((await ask("/health", { host: sandbox.getHost(49_983) })).status).toBe(204);
  });

  test("reaches none of the agent's paths that are the host's", async () => {
    const token = (await fetchSandbox(sandbox.sandboxId))["envdAccessToken"] as string;
    for (const path of [
      "/init",
      "/torpor/archive",
      "/torpor/freeze",
      "/process.Process/../torpor/state",
      "//init",
    ]) {
      const reply = await ask(path, { host: sandbox.getHost(49_983), headers: { "x-access-token": token } });
      expect(reply.status, path).toBe(404);
    }
  });

  async function fetchSandbox(id: string): Promise<Record<string, unknown>> {
    return (await ask(`/sandboxes/${id}`, { headers: { "x-api-key": torpor().apiKey } })).json();
  }

  test("serves signed URLs, which name no sandbox, to whoever has them", async () => {
    const up = await sandbox.uploadUrl("signed.txt", { useSignatureExpiration: 60 });
    const form = new FormData();
    form.append("file", new Blob(["signed content"]), "signed.txt");
    expect((await fetch(up, { method: "POST", body: form })).status).toBe(200);
    expect(await sandbox.files.read("signed.txt")).toBe("signed content");
    const down = await sandbox.downloadUrl("signed.txt");
    const answer = await fetch(down);
    expect(await answer.text()).toBe("signed content");
    // It comes from the API's own origin: a browser is to run nothing of it.
    expect(answer.headers.get("content-security-policy")).toBe("sandbox; default-src 'none'");
    const other = await fetch(down.replace("signed.txt", "server.js"));
    expect([other.status, await other.json()]).toEqual([401, { code: 401, message: "invalid signature" }]);
    const late = new URL(await sandbox.downloadUrl("signed.txt", { useSignatureExpiration: -60 }));
    const expired = await fetch(late);
    expect([expired.status, await expired.json()]).toEqual([
      401,
      { code: 401, message: "signature is already expired" },
    ]);
  });

  test("gives the same tokens after a restart of the server, and the sandbox works on", async () => {
    const before = (await fetchSandbox(sandbox.sandboxId))["envdAccessToken"];
    await torpor().killServer();
    await torpor().startServer();
    expect((await fetchSandbox(sandbox.sandboxId))["envdAccessToken"]).toBe(before);
    // Here it listens on another port now, of which the object of before does not know.
    sandbox = await Sandbox.connect(sandbox.sandboxId, options());
    expect((await sandbox.commands.run("echo on")).stdout).toBe("on\n");
    expect((await ask("/", { host: sandbox.getHost(8000) })).status).toBe(200);
  });

  test("breaks a stream off when its sandbox is killed, and the client says what became of it", async () => {
    const dying = await Sandbox.create("base", options());
    const running = await dying.commands.run("echo started; sleep 100", { background: true, timeoutMs: 0 });
    const waiting = running.wait();
    waiting.catch(() => {});
    await eventually("its output", () => running.stdout === "started\n");
    await dying.kill();
    await expect(waiting).rejects.toThrow(TimeoutError);
    await expect(waiting).rejects.toThrow(/killed or reached its end of life/);
  });

  test("wakes a paused sandbox for traffic when it is to resume by itself, and not otherwise", async () => {
    const sleeper = await Sandbox.create("code-interpreter-v1", {
      ...options(),
      lifecycle: { onTimeout: "pause", autoResume: true },
    });
    await sleeper.files.write("/home/user/server.js", ECHO_PROGRAM);
    await sleeper.commands.run("node /home/user/server.js", { background: true, timeoutMs: 0 });
    await eventually(
      "it to listen",
      async () => (await ask("/", { host: sleeper.getHost(8000) })).status === 200,
      30_000,
    );
    await sleeper.pause();
    const replies = await Promise.all([1, 2, 3].map(() => ask("/", { host: sleeper.getHost(8000) })));
    expect(replies.map(({ status }) => status)).toEqual([200, 200, 200]);
    expect((await sleeper.getInfo()).state).toBe("running");
    await sleeper.kill();

    await sandbox.pause();
    const asleep = await ask("/", { host: sandbox.getHost(8000) });
    expect([asleep.status, asleep.json()["code"]]).toEqual([502, 502]);
    expect((await Sandbox.getInfo(sandbox.sandboxId, options())).state).toBe("paused");
    await Sandbox.connect(sandbox.sandboxId, options());
    expect((await ask("/", { host: sandbox.getHost(8000) })).status).toBe(200);
  });

  test("opens no port of a sandbox that was not made through E2B's API, but its agent", async () => {
    const own = await torpor().api.json<{ id: string }>("/v1/sandboxes", {
      method: "POST",
      body: { template: "base" },
    });
    const reply = await ask("/", { host: `8000-${own.id}.${DOMAIN}` });
    expect([reply.status, reply.json()["code"]]).toEqual([403, 403]);
    const connected = await Sandbox.connect(own.id, options());
    expect((await connected.commands.run("echo ours")).stdout).toBe("ours\n");
    await connected.kill();
  });
});
