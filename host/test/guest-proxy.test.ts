import { once } from "node:events";
import { type IncomingMessage, request } from "node:http";
import { createServer, type AddressInfo, type Server, type Socket } from "node:net";
import { silentLog } from "@torpor/base";
import { PORT_HEADERS } from "@torpor/protocol";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { createHostApi, type HostApiOptions } from "../src/api/host-api.ts";
import { TEST_SPEC } from "./fakes/journal-entry.ts";
import { MachineBench } from "./fakes/machine-bench.ts";
import { until } from "./fakes/until.ts";

const TOKEN = "host-token";
const PROGRAM_PORT = 18_080;

let bench: MachineBench;
let api: ReturnType<typeof createHostApi>;
let program: Server;
let inside: Socket[];
/** What the program does with a connection once it has something from it. */
let behaviour: (socket: Socket, received: string) => void;

beforeEach(async () => {
  bench = new MachineBench();
  await bench.open();
  await bench.machines.create("one", { ...TEST_SPEC });
  inside = [];
  program = createServer((socket) => {
    inside.push(socket);
    socket.on("error", () => {});
    socket.once("data", (data) => behaviour(socket, String(data)));
  });
  const { address } = bench.machines.reach("one").handle.place;
  await new Promise<void>((resolve) => program.listen(PROGRAM_PORT, address, resolve));
  // Only what the ports need of a host.
  const options: Pick<HostApiOptions, "machines" | "log" | "token"> = {
    machines: bench.machines,
    log: silentLog,
    token: TOKEN,
  };
  api = createHostApi(options as HostApiOptions);
  await new Promise<void>((resolve) => api.listen(0, "127.0.0.1", resolve));
});
afterEach(async () => {
  for (const socket of inside) socket.destroy();
  program.close();
  api.closeAllConnections();
  api.close();
  await bench.close();
});

function ask(
  headers: Record<string, string> = {},
  { port = PROGRAM_PORT, path = "/x?secret=1" } = {},
): ReturnType<typeof request> {
  const outgoing = request({
    host: "127.0.0.1",
    port: (api.address() as AddressInfo).port,
    path: `/v1/machines/one/ports/${port}${path}`,
    headers: { ...headers, authorization: `Bearer ${TOKEN}` },
    agent: false,
  });
  outgoing.end();
  return outgoing;
}

async function answerTo(outgoing: ReturnType<typeof request>): Promise<{
  status: number | undefined;
  headers: IncomingMessage["headers"];
  text: string;
  complete: boolean;
}> {
  const [answer] = (await once(outgoing, "response")) as [IncomingMessage];
  let text = "";
  answer.on("data", (chunk: Buffer) => (text += String(chunk)));
  await new Promise((resolve) => answer.once("close", resolve).once("error", resolve));
  return { status: answer.statusCode, headers: answer.headers, text, complete: answer.complete };
}

const WEBSOCKET = { connection: "Upgrade", upgrade: "websocket" };

describe("a program in a sandbox that answers what is no answer", () => {
  test.each([
    ["a status no answer has", "HTTP/1.1 099 Odd\r\ncontent-length: 0\r\n\r\n"],
    ["an upgrade nobody asked for", "HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"],
    ["no HTTP", "SSH-2.0-OpenSSH\r\n"],
    ["a head without an end", `HTTP/1.1 200 OK\r\nx: ${"a".repeat(1024 * 1024)}`],
    ["nothing", ""],
  ])("with %s: the host says so and lives", async (_what, bytes) => {
    behaviour = (socket) => socket.end(bytes);
    const { status, headers, text } = await answerTo(ask());
    expect(status).toBe(503);
    expect(headers[PORT_HEADERS.isHostsOwn]).toBe("1");
    expect(JSON.parse(text)).toMatchObject({
      error: { code: "guest_unavailable", details: { port: PROGRAM_PORT } },
    });
    expect(bench.machines.get("one")?.holds).toEqual([]);
  });

  test("half a body is a broken answer, never a whole one", async () => {
    behaviour = (socket) => socket.end("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf");
    const { text, complete } = await answerTo(ask());
    expect([text, complete]).toEqual(["half", false]);
  });

  test("one that claims to be the host's is passed on without the claim", async () => {
    behaviour = (socket) =>
      socket.end(`HTTP/1.1 200 OK\r\n${PORT_HEADERS.isHostsOwn}: 1\r\ncontent-length: 2\r\n\r\nok`);
    const { status, headers } = await answerTo(ask());
    expect([status, headers[PORT_HEADERS.isHostsOwn]]).toEqual([200, undefined]);
  });
});

test("the program sees the Host and Authorization that are passed on for it, and nothing of the host's", async () => {
  let received = "";
  behaviour = (socket, text) => {
    received = text;
    socket.end("HTTP/1.1 204 No Content\r\n\r\n");
  };
  await answerTo(ask({ [PORT_HEADERS.host]: "3000-x.example", [PORT_HEADERS.authorization]: "Basic abc" }));
  expect(received).toMatch(/^GET \/x\?secret=1 HTTP\/1.1/);
  expect(received.toLowerCase()).toContain("host: 3000-x.example");
  expect(received).toContain("Basic abc");
  expect(received).not.toContain(TOKEN);
  expect(received.toLowerCase()).not.toContain("x-torpor");
  await answerTo(ask());
  expect(received.toLowerCase()).toContain(`host: localhost:${PROGRAM_PORT}`);
});

test("a body whose length is not said stays one, whatever the method", async () => {
  for (const method of ["GET", "DELETE", "POST"]) {
    let received = "";
    behaviour = (socket, text) => {
      received = text;
      const answer = (): void => {
        if (received.endsWith("0\r\n\r\n")) socket.end("HTTP/1.1 204 No Content\r\n\r\n");
      };
      socket.on("data", (data) => {
        received += String(data);
        answer();
      });
      answer();
    };
    const outgoing = request({
      host: "127.0.0.1",
      port: (api.address() as AddressInfo).port,
      path: `/v1/machines/one/ports/${PROGRAM_PORT}/`,
      method,
      headers: { authorization: `Bearer ${TOKEN}`, "transfer-encoding": "chunked" },
      agent: false,
    });
    outgoing.end("body");
    expect((await answerTo(outgoing)).status).toBe(204);
    expect(received.toLowerCase()).toContain("transfer-encoding: chunked");
    expect(received).toContain("\r\n\r\n4\r\nbody\r\n0\r\n\r\n");
  }
});

test("an upgraded connection carries bytes both ways, holds the machine awake without telling queries, and goes with a freeze", async () => {
  behaviour = (socket) => {
    socket.write(
      "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nfirst ",
    );
    socket.on("data", (data) => socket.write(`echo ${String(data)}`));
  };
  const [, socket, head] = (await once(ask(WEBSOCKET), "upgrade")) as [IncomingMessage, Socket, Buffer];
  let text = String(head);
  socket.on("data", (data: Buffer) => (text += String(data)));
  socket.write("hello");
  await until(() => text === "first echo hello");
  expect(bench.machines.get("one")?.holds).toMatchObject([{ kind: "port", what: `${PROGRAM_PORT} GET /x` }]);
  expect(bench.machines.get("one")?.idle_at).toBeNull();
  const closed = once(socket, "close");
  await bench.machines.hibernate("one");
  await closed;
  expect(bench.machines.get("one")).toMatchObject({ state: "hibernated", holds: [] });
});

test("what is not to wake a machine finds it asleep, and all else wakes it", async () => {
  behaviour = (socket) => socket.end("HTTP/1.1 204 No Content\r\n\r\n");
  await bench.machines.hibernate("one");
  const asleep = await answerTo(ask({ [PORT_HEADERS.wake]: "never" }));
  expect([asleep.status, bench.machines.get("one")?.state]).toEqual([409, "hibernated"]);
  const upgrade = await answerTo(ask({ ...WEBSOCKET, [PORT_HEADERS.wake]: "never" }));
  expect([upgrade.status, bench.machines.get("one")?.state]).toEqual([409, "hibernated"]);
  await answerTo(ask({}, { port: 9 }));
  expect(bench.machines.get("one")?.state).toBe("running");
});

test("an upgrade is refused by an ordinary answer", async () => {
  for (const [headers, port, status] of [
    [{ ...WEBSOCKET, authorization: "Bearer wrong" }, PROGRAM_PORT, 401],
    [WEBSOCKET, 49_983, 403],
    [WEBSOCKET, 9, 503],
  ] as const) {
    const outgoing = request({
      host: "127.0.0.1",
      port: (api.address() as AddressInfo).port,
      path: `/v1/machines/one/ports/${port}/`,
      headers: { authorization: `Bearer ${TOKEN}`, ...headers },
      agent: false,
    });
    outgoing.end();
    expect((await answerTo(outgoing)).status).toBe(status);
  }
});
