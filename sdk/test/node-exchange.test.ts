import { once } from "node:events";
import { createServer, type Server } from "node:http";
import type { AddressInfo, Socket } from "node:net";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { resolveConnection } from "../src/connection-options.ts";
import { nodeExchange } from "../src/node-exchange.ts";
import { Transport } from "../src/transport.ts";
import { toUploadBody } from "../src/upload-body.ts";

let server: Server;
let url: string;
let connections: number;
const seen: { method: string | undefined; body: string }[] = [];
let behave: (socket: Socket) => "answer" | "reset" = () => "answer";

beforeEach(async () => {
  connections = 0;
  seen.length = 0;
  behave = () => "answer";
  server = createServer((incoming, outgoing) => {
    if (behave(incoming.socket) === "reset") return void incoming.socket.resetAndDestroy();
    let body = "";
    incoming.setEncoding("utf8").on("data", (chunk) => (body += String(chunk)));
    incoming.on("end", () => {
      seen.push({ method: incoming.method, body });
      if (incoming.url === "/empty") return void outgoing.writeHead(204).end();
      if (incoming.url === "/never") return;
      outgoing.setHeader("x-twice", ["a", "b"]);
      outgoing.end(`${body}é`);
    });
  });
  server.on("connection", () => (connections += 1));
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
});

afterEach(async () => {
  server.closeAllConnections();
  server.close();
  await once(server, "close");
});

const init = (body?: string) => ({
  method: "POST",
  headers: { authorization: "Bearer x" },
  signal: new AbortController().signal,
  ...(body === undefined ? {} : { body }),
});

test("clients share their connections: each Sandbox.create is one", async () => {
  for (let count = 0; count < 3; count++) {
    const response = await (await nodeExchange(url))?.(`${url}/x`, init("x"));
    expect(await response?.text()).toBe("x\u00e9");
  }
  expect(connections).toBe(1);
});

test("answers as fetch does, on one connection", async () => {
  const exchange = await nodeExchange(url);
  for (let count = 0; count < 3; count++) {
    const response = await exchange?.(`${url}/x`, init("gr\u00fc\u00df"));
    expect(response?.status).toBe(200);
    expect(response?.headers.get("x-twice")).toBe("a, b");
    expect(await response?.text()).toBe("gr\u00fc\u00df\u00e9");
  }
  const empty = await exchange?.(`${url}/empty`, init());
  expect([empty?.status, await empty?.text()]).toEqual([204, ""]);
  expect(connections).toBe(1);
});

test("asks again when a kept connection is closed just as it is used, but not on a fresh one", async () => {
  const exchange = await nodeExchange(url);
  await exchange?.(url, init("first"));
  const closed = new Set<Socket>();
  behave = (socket) => {
    if (closed.size > 0) return "answer";
    closed.add(socket);
    return "reset";
  };
  expect(await (await exchange?.(url, init("second")))?.text()).toBe("secondé");
  expect(seen.map(({ body }) => body)).toEqual(["first", "second"]);
  behave = () => "reset";
  const fresh = await nodeExchange(url);
  await expect(fresh?.(url, init("third"))).rejects.toMatchObject({ code: "ECONNRESET" });
});

test("stops at once when it is told to", async () => {
  const exchange = await nodeExchange(url);
  const stop = new AbortController();
  const stopped = exchange?.(`${url}/never`, { ...init(), signal: stop.signal });
  setTimeout(() => stop.abort(new Error("enough")), 20);
  await expect(stopped).rejects.toThrow("enough");
});

test("sends bytes as they are, also those of an upload without a limit of time, which fetch would give up", async () => {
  const fetch = vi.spyOn(globalThis, "fetch").mockRejectedValue(new Error("fetch was used"));
  try {
    const transport = new Transport(resolveConnection({ url, apiKey: "x", maxRetries: 0 }, {}));
    const upload = () => toUploadBody(Buffer.from("gr\u00fc\u00df"));
    const request = { method: "POST", path: "/in" } as const;
    expect(await transport.text({ ...request, upload: upload(), timeoutMs: 0 })).toBe("gr\u00fc\u00df\u00e9");
    await expect(transport.text({ ...request, upload: upload() })).rejects.toThrow("fetch was used");
  } finally {
    fetch.mockRestore();
  }
});

test("goes over TLS for HTTPS", async () => {
  const exchange = await nodeExchange("https://127.0.0.1");
  await expect(exchange?.(url.replace("http:", "https:"), init("x"))).rejects.toMatchObject({
    code: expect.stringMatching(/SSL|EPROTO|ECONNRESET/),
  });
});
