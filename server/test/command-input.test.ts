import { once } from "node:events";
import { createServer, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { GuestClient } from "../src/guest/guest-client.ts";
import { HostClient } from "../src/host/host-client.ts";
import { World } from "./world.ts";

let world: World;
let id: string;
beforeAll(async () => {
  world = await World.start();
  ({ id } = await world.sandbox());
});
afterAll(() => world[Symbol.asyncDispose]());

const write = (path: string, body: string | Buffer, key: string) =>
  world.call("POST", path, { body, headers: { "idempotency-key": key } });

async function started(cmd: string): Promise<string> {
  const { body } = await world.exec(id, { cmd, keep_stdin_open: true, background: true });
  return `/v1/sandboxes/${id}/processes/${String(body["exec_id"])}`;
}

test("a command may leave its input unread for as long as it likes: it is not sent again meanwhile", async () => {
  const waiting: ServerResponse[] = [];
  const host = createServer((request, response) => {
    request.resume();
    waiting.push(response);
  });
  host.listen(0, "127.0.0.1");
  await once(host, "listening");
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  try {
    const url = `http://127.0.0.1:${(host.address() as AddressInfo).port}`;
    const machine = world.host.machines.get(id)?.machine;
    if (machine === undefined) throw new Error(`no machine ${id}`);
    const guest = new GuestClient(new HostClient({ url, token: "t" }), machine as never);
    const asked = guest.input({ pid: 1 }, { stdin: "eA==" });
    await once(host, "request");
    vi.advanceTimersByTime(3_600_000);
    await new Promise((resolve) => setImmediate(resolve));
    waiting[0]?.writeHead(200, { "content-type": "application/json" }).end("{}");
    await asked;
    expect(waiting).toHaveLength(1);
  } finally {
    vi.useRealTimers();
    host.closeAllConnections();
    host.close();
  }
});

test("input that is sent again under its key is written once, whatever of it had arrived, without a row in the store", async () => {
  const path = await started("cat; echo the end");
  const rows = () => world.server.database.db.selectFrom("idempotency").selectAll().execute();
  const [before, rowsBefore] = [world.guest(id).inputs.size, (await rows()).length];
  const input = Buffer.from(Array.from({ length: 30_000 }, (_, n) => String(n)).join(" "));
  world.host.fault({ on: /SendInput/, kind: "drop-after", times: 6 });
  expect(await write(`${path}/stdin?close=1`, input, "cut")).toMatchObject({ status: 503 });
  expect(world.guest(id).inputs.size).toBe(before + 1);
  const first = await write(`${path}/stdin?close=1`, input, "cut");
  expect(first).toMatchObject({ status: 200, body: { bytes: input.length, closed: true } });
  const output = (await world.call("GET", `${path}/output`)).text;
  const lines = output
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line) as { type: string; data?: string });
  const written = lines.flatMap(({ type, data = "" }) =>
    type === "stdout" ? [Buffer.from(data, "base64")] : [],
  );
  expect(Buffer.concat(written).toString()).toBe(`${input.toString()}the end\n`);
  // The command has ended meanwhile: what was done is answered as done.
  expect(await write(`${path}/stdin?close=1`, input, "cut")).toMatchObject({ status: 200 });
  expect(await write(`${path}/stdin?close=1`, "other input", "cut")).toMatchObject({ status: 404 });
  expect(await rows()).toHaveLength(rowsBefore);
});
