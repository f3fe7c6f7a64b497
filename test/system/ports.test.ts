import { once } from "node:events";
import { type IncomingMessage, request } from "node:http";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type CreatedPreviewUrl, Sandbox, Torpor } from "@torpor/sdk";
import { WebSocket } from "ws";
import { eventually, useInstance } from "../src/index.ts";
import { WEBSOCKET_ECHO } from "./echo-program.ts";

/** A server as people write them, with a WebSocket echo. */
const PROGRAM = `
const http = require("node:http"), crypto = require("node:crypto");
const server = http.createServer((request, response) => {
  const chunks = [];
  request.on("data", (chunk) => chunks.push(chunk));
  request.on("end", () => {
    const body = Buffer.concat(chunks);
    if (request.url === "/large") return response.end(Buffer.alloc(8 * 1024 * 1024, 7));
    if (request.url === "/hash") return response.end(crypto.createHash("sha256").update(body).digest("hex"));
    if (request.url === "/events") {
      response.writeHead(200, { "content-type": "text/event-stream" });
      return response.write("data: first\\n\\n");
    }
    response.setHeader("content-type", "application/json");
    response.end(JSON.stringify({ url: request.url, headers: request.headers, pid: process.pid }));
  });
});
${WEBSOCKET_ECHO}server.listen(3000, "0.0.0.0");
`;

describe("ports of a sandbox", () => {
  const torpor = useInstance({ server: true });
  let client: Torpor;
  let sandbox: Sandbox;
  let preview: CreatedPreviewUrl;

  beforeAll(async () => {
    client = new Torpor({ url: torpor().url, apiKey: torpor().apiKey });
    sandbox = await client.sandboxes.create({
      template: "code-interpreter",
      persistent: true,
      tenant: "acme",
    });
    await sandbox.files.write("/home/user/server.js", PROGRAM);
    await sandbox.start("node /home/user/server.js");
    preview = await sandbox.previewUrl(3000);
    await eventually("the program to listen", async () => (await visit("/")).status === 200, 60_000);
  });
  afterAll(async () => {
    await sandbox?.destroy();
  });

  /** As curl would: the name resolves to this machine by itself, which Node's resolver does not know. */
  async function visit(
    path: string,
    { token = preview.token, host = preview.host, method = "GET", body = Buffer.alloc(0) } = {},
  ): Promise<{ status: number; headers: IncomingMessage["headers"]; body: Buffer }> {
    const outgoing = request({
      host: "127.0.0.1",
      port: new URL(torpor().url).port,
      method,
      path,
      headers: { host, ...(token === "" ? {} : { "x-torpor-token": token }), "content-length": body.length },
      agent: false,
    });
    outgoing.end(body);
    const [answer] = (await once(outgoing, "response")) as [IncomingMessage];
    const chunks: Buffer[] = [];
    for await (const chunk of answer as AsyncIterable<Buffer>) chunks.push(chunk);
    return { status: answer.statusCode ?? 0, headers: answer.headers, body: Buffer.concat(chunks) };
  }

  async function own(path: string, init: RequestInit = {}): Promise<Response> {
    const { url, headers } = await sandbox.ports.request(3000, path);
    return await fetch(url, { ...init, headers });
  }

  test("are reached by their owner and by visitors, byte for byte, without what lets them in", async () => {
    const mine = await own("/a%20b?q=1");
    const seen = (await mine.json()) as { url: string; headers: Record<string, string> };
    expect(seen.url).toBe("/a%20b?q=1");
    expect(JSON.stringify(seen)).not.toContain(torpor().apiKey);
    const theirs = JSON.parse(String((await visit("/x?y=2")).body)) as typeof seen;
    expect(theirs).toMatchObject({ url: "/x?y=2", headers: { host: preview.host } });
    expect(JSON.stringify(theirs)).not.toContain(preview.token);
    expect((await visit("/large")).body.equals(Buffer.alloc(8 * 1024 * 1024, 7))).toBe(true);
    const hash = await visit("/hash", { method: "POST", body: Buffer.alloc(4 * 1024 * 1024, 1) });
    expect(String(hash.body)).toMatch(/^[0-9a-f]{64}$/);
  });

  test("speak WebSocket, and are held awake by it, as its owner can see", async () => {
    const socket = new WebSocket(`ws://127.0.0.1:${new URL(torpor().url).port}/chat?secret=1`, {
      headers: { host: preview.host, "x-torpor-token": preview.token },
    });
    await once(socket, "open");
    socket.send("hello");
    expect(String(((await once(socket, "message")) as [Buffer])[0])).toBe("hello");
    const { holds } = await sandbox.lifecycle();
    expect(holds.filter(({ kind }) => kind === "port").map(({ what }) => what)).toEqual(["3000 GET /chat"]);
    // A sleep cuts it off: no connection to the outside can go into an image.
    const closed = once(socket, "close");
    await sandbox.hibernate();
    await closed;
  });

  test("of one that sleeps are closed to visitors, and wake it for its owner", async () => {
    if ((await sandbox.refresh()).state !== "hibernated") await sandbox.hibernate();
    expect((await visit("/")).status).toBe(409);
    expect((await sandbox.refresh()).state).toBe("hibernated");
    expect((await own("/")).status).toBe(200);
    expect((await visit("/")).status).toBe(200);
  });

  test("stream: an event that is written reaches the visitor while the answer goes on", async () => {
    const response = await own("/events");
    const reader = response.body?.getReader();
    expect(Buffer.from((await reader?.read())?.value ?? []).toString()).toBe("data: first\n\n");
    await reader?.cancel();
  });

  test("are nobody's without a link: not published, not by another's link, not the agent's, not on the API's host", async () => {
    await using other = await client.sandboxes.create({ template: "code-interpreter" });
    const elsewhere = await other.previewUrl(3000);
    expect((await visit("/", { token: "" })).status).toBe(401);
    expect((await visit("/", { token: elsewhere.token })).status).toBe(401);
    expect((await visit("/", { host: elsewhere.host })).status).toBe(401);
    expect((await visit("/", { host: elsewhere.host, token: elsewhere.token })).status).toBe(502);
    const agent = preview.host.replace(/^3000/, "49983");
    expect((await visit("/health", { host: agent })).status).toBe(403);
    expect((await visit("/", { host: new URL(torpor().url).host })).status).toBe(404);
    expect((await visit("/v1/sandboxes")).body.toString()).toContain('"url":"/v1/sandboxes"');
  });

  test("close when the link is revoked and when the sandbox ends", async () => {
    const revoked = await sandbox.previewUrl(3000);
    expect(await sandbox.ports.revoke(revoked.id)).toBe(true);
    expect((await visit("/", { token: revoked.token })).status).toBe(401);
    await sandbox.destroy();
    expect((await visit("/")).status).toBe(410);
  });
});
