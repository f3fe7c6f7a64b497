import { once } from "node:events";
import { randomText } from "@torpor/protocol";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { WebSocket } from "ws";
import { errorOf, eventually, type Reply } from "../world.ts";
import { AccessWorld, TENANT } from "./access-world.ts";

let access: AccessWorld;
/** A key of the tenant, its id, and a sandbox. */
let key: string;
let keyId: string;
let id: string;

beforeEach(async () => {
  access = await AccessWorld.start();
  const made = await access.world.call("POST", "/v1/keys", { json: { name: "k", tenant: TENANT } });
  ({ key, id: keyId } = made.body as { key: string; id: string });
  ({ id } = await access.world.sandbox({ template: "base", tenant: TENANT }));
});
afterEach(async () => {
  await access[Symbol.asyncDispose]();
});

const revoke = async (): Promise<void> => {
  expect((await access.world.call("DELETE", `/v1/keys/${keyId}`)).status).toBe(200);
};

/** Reads to the end; `cut` when the connection broke off. */
async function readOut(response: Response): Promise<string> {
  let text = "";
  try {
    for await (const chunk of response.body ?? []) text += Buffer.from(chunk).toString();
    return `${text}(end)`;
  } catch {
    return `${text}(cut)`;
  }
}

const isRunning = (): boolean => [...access.world.guest(id).running.values()].some(({ ended }) => !ended);

describe("what is under way when its key is revoked is cut off", () => {
  test("an event stream, and a key that lives on keeps its own", async () => {
    const other = new AbortController();
    const { world } = access;
    const kept = await world.fetch("GET", "/v1/events", { signal: other.signal });
    const response = await world.fetch("GET", `/v1/sandboxes/${id}/events`, { key });
    const read = readOut(response);
    await revoke();
    expect(await read).toMatch(/sandbox\.running[^]*\(cut\)$/);
    const reader = kept.body?.getReader();
    await reader?.read(); // its place
    await world.call("DELETE", `/v1/sandboxes/${id}`);
    expect(Buffer.from((await reader?.read())?.value ?? []).toString()).toContain(id);
    other.abort();
  });

  test("a command's stream, and with it the command", async () => {
    const response = await access.world.fetch("POST", `/v1/sandboxes/${id}/exec`, {
      key,
      json: { cmd: ["sleep", "60"] },
      headers: { accept: "application/x-ndjson" },
    });
    const read = readOut(response);
    await eventually(isRunning);
    await revoke();
    expect(await read).toMatch(/"type":"start"[^]*\(cut\)$/);
    await eventually(() => !isRunning());
  });

  test("a command whose answer is still to come, with the refusal as its answer", async () => {
    const running = access.world.exec(id, { cmd: ["sleep", "60"] }, { key });
    await eventually(isRunning);
    await revoke();
    const reply: Reply = await running;
    expect([reply.status, errorOf(reply).code]).toEqual([401, "unauthenticated"]);
    expect(errorOf(reply).message).toContain("has been revoked");
    await eventually(() => !isRunning());
  });

  test("a terminal, told why, and with it its command", async () => {
    const socket = new WebSocket(
      `${access.world.url.replace("http", "ws")}/v1/sandboxes/${id}/pty?cmd=${encodeURIComponent("sleep 60")}`,
      { headers: { authorization: `Bearer ${key}` } },
    );
    const told: string[] = [];
    socket.on("message", (data: Buffer, isBinary) => {
      if (!isBinary) told.push(data.toString());
    });
    await once(socket, "open");
    await eventually(isRunning);
    await revoke();
    const [code] = (await once(socket, "close")) as [number];
    expect([code, JSON.parse(told[0] ?? "")]).toMatchObject([1008, { code: "unauthenticated" }]);
    await eventually(() => !isRunning());
  });

  test("the watch of a folder and an upload", async () => {
    const watch = readOut(await access.world.fetch("GET", `/v1/sandboxes/${id}/fs/watch?path=/`, { key }));
    let feed: ReadableStreamDefaultController<Uint8Array> | undefined;
    const body = new ReadableStream<Uint8Array>({ start: (controller) => void (feed = controller) });
    const upload = access.world
      .call("PUT", `/v1/sandboxes/${id}/fs?path=/large`, { key, body })
      .then(({ status }) => status)
      .catch(() => "cut");
    feed?.enqueue(Buffer.from("half"));
    await revoke();
    expect(await watch).toMatch(/\(cut\)$/);
    expect(await upload).toSatisfy((outcome) => outcome === 401 || outcome === "cut");
    await eventually(async () => {
      const stat = await access.world.call("GET", `/v1/sandboxes/${id}/fs/stat?path=/large`);
      return stat.status === 404;
    });
  });
});

test("what is under way when its key expires is cut off too", async () => {
  const short = await access.addKey({
    scopes: ["sandbox:read"],
    tenant: TENANT,
    expiresAt: Date.now() + 1_500,
  });
  const read = readOut(await access.world.fetch("GET", "/v1/events", { key: short }));
  expect(await read).toMatch(/\(cut\)$/);
  const reply = await access.world.call("GET", "/v1/sandboxes", { key: short });
  expect([reply.status, errorOf(reply).message]).toEqual([401, expect.stringContaining("expired")]);
});

test("a store that cannot be read ends nothing", async () => {
  const leave = new AbortController();
  const response = await access.world.fetch("GET", `/v1/sandboxes/${id}/events`, {
    key,
    signal: leave.signal,
  });
  let ended = false;
  const read = readOut(response).finally(() => (ended = true));
  const { keyStore } = access.world.server;
  const reload = keyStore.reload.bind(keyStore);
  let failed = 0;
  keyStore.reload = () => {
    failed += 1;
    return Promise.reject(new Error("the disk is gone"));
  };
  await eventually(() => failed >= 2);
  expect(ended).toBe(false);
  keyStore.reload = reload;
  await revoke();
  expect(await read).toMatch(/\(cut\)$/);
  leave.abort();
});

describe("a key gives no more than it has", () => {
  const make = (json: object, maker: string): Promise<Reply> =>
    access.world.call("POST", "/v1/keys", { key: maker, json: { name: randomText(6), ...json } });

  test("no other tenant, and its own when none is named", async () => {
    const bound = await access.addKey({ scopes: ["admin"], tenant: TENANT });
    expect((await make({}, bound)).body).toMatchObject({ tenant: TENANT });
    expect((await make({ tenant: "globex" }, bound)).status).toBe(403);
  });

  test("no longer life, and its own end when none is named", async () => {
    const expiresAt = Date.now() + 60_000;
    const maker = await access.addKey({ scopes: ["admin"], expiresAt });
    expect((await make({}, maker)).body).toMatchObject({ expires_at: new Date(expiresAt).toISOString() });
    expect((await make({ expires_in_seconds: 30 }, maker)).status).toBe(201);
    const reply = await make({ expires_in_seconds: 3600 }, maker);
    expect([reply.status, errorOf(reply).code]).toEqual([403, "permission_denied"]);
  });

  test("none at all without the scope admin", async () => {
    const maker = await access.addKey({ scopes: ["sandbox:read", "sandbox:write", "sandbox:exec"] });
    expect((await make({ scopes: ["sandbox:read"] }, maker)).status).toBe(403);
  });
});
