import { once } from "node:events";
import { afterAll, beforeAll, expect, test } from "vitest";
import { WebSocket } from "ws";
import { eventually, World } from "./world.ts";

let world: World;
let id: string;
beforeAll(async () => {
  world = await World.start();
  id = (await world.sandbox()).id;
});
afterAll(async () => {
  await world[Symbol.asyncDispose]();
});

function connect(query: string, key = world.adminKey, sandbox = id): WebSocket {
  return new WebSocket(`${world.url.replace("http", "ws")}/v1/sandboxes/${sandbox}/pty${query}`, {
    headers: { authorization: `Bearer ${key}` },
  });
}

test("bytes go both ways, a resize reaches the guest, and the exit is told", async () => {
  const socket = connect(`?cols=100&rows=30&cmd=${encodeURIComponent("read line; echo got:$line; exit 7")}`);
  let output = "";
  const texts: unknown[] = [];
  socket.on("message", (data: Buffer, isBinary: boolean) => {
    if (isBinary) output += String(data);
    else texts.push(JSON.parse(String(data)));
  });
  await once(socket, "open");
  socket.send(JSON.stringify({ type: "resize", cols: 120, rows: 40 }));
  socket.send(Buffer.from("hello\n"));
  await once(socket, "close");
  expect(output).toContain("got:hello");
  expect(texts).toEqual([{ type: "exit", exit_code: 7, signal: null }]);
  expect(world.guest(id).signals).toContain('resize {"size":{"cols":120,"rows":40}}');
});

test("leaving ends the command", async () => {
  const socket = connect(`?cmd=${encodeURIComponent("sleep 61")}`);
  await once(socket, "open");
  const running = (): boolean =>
    [...world.guest(id).running.values()].some(
      ({ ended, request: { process } }) => !ended && process.args.at(-1) === "sleep 61",
    );
  await eventually(running);
  socket.terminate();
  await eventually(() => !running());
});

test("a refusal is an HTTP answer with its status", async () => {
  const cases: [WebSocket, number][] = [
    [connect("", "tp_wrong"), 401],
    [connect("", await world.newKey(["sandbox:read"])), 403],
    [connect("", world.adminKey, "s".repeat(26)), 404],
    [connect("?cols=0"), 400],
    [connect("?colour=1"), 400],
  ];
  for (const [socket, status] of cases) {
    const [, response] = (await once(socket, "unexpected-response")) as [unknown, { statusCode: number }];
    expect(response.statusCode).toBe(status);
    socket.on("error", () => {});
    socket.terminate();
  }
});

test("control text that is none closes the connection with 1008", async () => {
  const socket = connect(`?cmd=${encodeURIComponent("sleep 62")}`);
  await once(socket, "open");
  socket.send("nonsense");
  const [code] = (await once(socket, "close")) as [number];
  expect(code).toBe(1008);
});

test("a sandbox that ends under a terminal is told as an error", async () => {
  const other = await world.sandbox();
  const socket = connect(`?cmd=${encodeURIComponent("sleep 63")}`, world.adminKey, other.id);
  await once(socket, "open");
  await eventually(() => world.guest(other.id).running.size > 0);
  const last = once(socket, "message");
  world.host.end(other.id, "oom");
  expect(JSON.parse(String(((await last) as [Buffer])[0]))).toMatchObject({
    type: "error",
    code: expect.any(String),
  });
});
