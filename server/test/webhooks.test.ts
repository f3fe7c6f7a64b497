import { createHmac } from "node:crypto";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import type { SandboxEvent } from "@torpor/protocol";
import { isAddressRange, TargetGuard } from "../src/webhook/target-guard.ts";
import { errorOf, eventually, World } from "./world.ts";

interface Received {
  id: string;
  timestamp: string;
  signature: string;
  body: string;
  event: SandboxEvent;
}

/** An endpoint on a loopback port, which answers as it is told. */
class Receiver {
  readonly received: Received[] = [];
  /** Status of the answer to each; `hang` never answers. */
  answer: (request: Received) => number | "hang" = () => 200;
  readonly #server: Server;

  constructor() {
    this.#server = createServer((request, response) => {
      let body = "";
      request.on("data", (chunk: Buffer) => (body += chunk.toString()));
      request.on("end", () => {
        const header = (name: string): string => String(request.headers[name]);
        const got: Received = {
          id: header("webhook-id"),
          timestamp: header("webhook-timestamp"),
          signature: header("webhook-signature"),
          body,
          event: JSON.parse(body) as SandboxEvent,
        };
        this.received.push(got);
        const status = this.answer(got);
        if (status === "hang") return;
        response.writeHead(status, status === 302 ? { location: this.url } : {});
        response.end();
      });
    });
  }

  async listen(): Promise<this> {
    await new Promise<void>((resolve) => this.#server.listen(0, "127.0.0.1", resolve));
    return this;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}/hook`;
  }

  async close(): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}

let world: World;
let receiver: Receiver;
beforeEach(async () => {
  receiver = await new Receiver().listen();
  world = await World.start({
    webhooks: { allow: ["127.0.0.0/8"], retryAfterSeconds: [0.05, 0.05, 0.1, 0.1] },
  });
});
afterEach(async () => {
  await world[Symbol.asyncDispose]();
  await receiver.close();
});

async function addWebhook(
  json: Record<string, unknown> = {},
  key = world.adminKey,
): Promise<{ id: string; secret: string }> {
  const reply = await world.call("POST", "/v1/webhooks", { json: { url: receiver.url, ...json }, key });
  if (reply.status !== 201) throw new Error(reply.text);
  return reply.body as { id: string; secret: string };
}

async function life(tenant?: string): Promise<string> {
  const { id } = await world.sandbox({ template: "base", ...(tenant === undefined ? {} : { tenant }) });
  await world.call("DELETE", `/v1/sandboxes/${id}`);
  return id;
}

describe("a webhook", () => {
  test("gets every event once it said yes, signed as Standard Webhooks has it", async () => {
    const { secret } = await addWebhook();
    const sandboxId = await life();
    await eventually(() => receiver.received.length === 4);
    const states = receiver.received.map(({ event }) => event.state);
    expect(new Set(states)).toEqual(new Set(["creating", "running", "destroying", "destroyed"]));
    for (const { id, timestamp, signature, body, event } of receiver.received) {
      expect(event.sandbox_id).toBe(sandboxId);
      expect(event.id).toBe(id);
      expect(Math.abs(Number(timestamp) - Date.now() / 1_000)).toBeLessThan(5);
      const key = Buffer.from(secret.replace("whsec_", ""), "base64");
      expect(key.length).toBe(32);
      const expected = createHmac("sha256", key).update(`${id}.${timestamp}.${body}`).digest("base64");
      expect(signature).toBe(`v1,${expected}`);
    }
  });

  test("is told the sandbox's name and metadata, so that whoever hears of it need not ask whose it is", async () => {
    await addWebhook({ types: ["sandbox.running", "sandbox.destroyed"] });
    const named = { name: "nightly", metadata: { job: "41", "user.id": "u-7" } };
    const { id } = await world.sandbox({ template: "base", ...named });
    await world.call("DELETE", `/v1/sandboxes/${id}`);
    await life();
    await eventually(() => receiver.received.length === 4);
    for (const { event } of receiver.received)
      expect(event).toMatchObject(event.sandbox_id === id ? named : { name: null, metadata: {} });
  });

  test("gets only the types it asked for, and nothing from before it was made", async () => {
    await life();
    await addWebhook({ types: ["sandbox.destroyed"] });
    await life();
    await life();
    await eventually(() => receiver.received.length === 2);
    expect(new Set(receiver.received.map(({ event }) => event.type))).toEqual(new Set(["sandbox.destroyed"]));
  });

  test("is tried again with the same id until it says yes; others are not held up meanwhile", async () => {
    let refusals = 0;
    receiver.answer = ({ event }) => (event.state === "creating" && refusals++ < 3 ? 503 : 200);
    const { id } = await addWebhook();
    await life();
    await eventually(() => receiver.received.length === 7);
    const tries = receiver.received.filter(({ event }) => event.state === "creating");
    expect(new Set(tries.map((one) => one.id)).size).toBe(1);
    await eventually(async () => (await world.call("GET", `/v1/webhooks/${id}`)).body["pending"] === 0);
    expect((await world.call("GET", `/v1/webhooks/${id}`)).body).toMatchObject({
      failed: 0,
      last_error: null,
    });
  });

  test("that refuses to the last is given up for that event, counted and told", async () => {
    receiver.answer = ({ event }) => (event.state === "creating" ? 302 : 200);
    const { id } = await addWebhook();
    await life();
    await eventually(async () => (await world.call("GET", `/v1/webhooks/${id}`)).body["failed"] === 1);
    // 5 tries, no redirect followed, and the three other events.
    expect(receiver.received).toHaveLength(8);
    const { body } = await world.call("GET", `/v1/webhooks/${id}`);
    expect(body).toMatchObject({ pending: 0, enabled: true });
    expect(body["last_error"]).toContain("answered 302");
  });

  test("that hangs holds nobody else up", async () => {
    const other = await new Receiver().listen();
    receiver.answer = () => "hang";
    await addWebhook();
    await addWebhook({ url: other.url });
    for (let index = 0; index < 4; index += 1) await life();
    await eventually(() => other.received.length === 16);
    expect(receiver.received.length).toBeLessThanOrEqual(4);
    await other.close();
  });

  test("gets what happened while it was away and over a restart of the server, each at least once", async () => {
    const ids = new Set<string>();
    receiver.answer = () => 500;
    await addWebhook({ types: ["sandbox.destroyed"] });
    ids.add(await life());
    await eventually(() => receiver.received.length > 0);
    await world.restart();
    receiver.answer = () => 200;
    ids.add(await life());
    await eventually(() => {
      const got = new Set(receiver.received.map(({ event }) => event.sandbox_id));
      return [...ids].every((id) => got.has(id));
    });
  });

  test("whose receiver says 410 is disabled, says why, and begins anew when it is enabled", async () => {
    receiver.answer = () => 410;
    const { id } = await addWebhook();
    await life();
    await eventually(async () => (await world.call("GET", `/v1/webhooks/${id}`)).body["enabled"] === false);
    expect((await world.call("GET", `/v1/webhooks/${id}`)).body["disabled_because"]).toContain("410");
    receiver.answer = () => 200;
    const from = receiver.received.length;
    await world.call("PATCH", `/v1/webhooks/${id}`, { json: { enabled: true } });
    const sandboxId = await life();
    await eventually(() => receiver.received.length >= from + 4);
    expect(new Set(receiver.received.slice(from).map(({ event }) => event.sandbox_id))).toEqual(
      new Set([sandboxId]),
    );
  });

  test("of a key bound to a tenant gets that tenant's events and is that tenant's alone", async () => {
    const key = await world.newKey(["admin"], "a");
    const { id } = await addWebhook({}, key);
    await life("b");
    await life("a");
    await eventually(() => receiver.received.length === 4);
    expect(new Set(receiver.received.map(({ event }) => event.tenant))).toEqual(new Set(["a"]));
    const other = await world.newKey(["admin"], "b");
    for (const [method, json] of [["GET"], ["PATCH", { description: "mine" }], ["DELETE"]] as const)
      expect((await world.call(method, `/v1/webhooks/${id}`, { key: other, json })).status).toBe(404);
    expect((await world.call("GET", "/v1/webhooks", { key: other })).body["items"]).toEqual([]);
  });

  test("shows its secret once, is changed, and is gone after a delete", async () => {
    const { id, secret } = await addWebhook({ description: "first" });
    const listed = await world.call("GET", "/v1/webhooks");
    expect(listed.text).not.toContain(secret);
    expect(listed.body["items"]).toMatchObject([{ id, description: "first", enabled: true }]);
    const changed = await world.call("PATCH", `/v1/webhooks/${id}`, { json: { description: "second" } });
    expect(changed.body).toMatchObject({ id, description: "second", url: receiver.url });
    expect((await world.call("DELETE", `/v1/webhooks/${id}`)).status).toBe(204);
    expect((await world.call("GET", `/v1/webhooks/${id}`)).status).toBe(404);
    await life();
    expect(receiver.received).toEqual([]);
  });

  test("needs an admin key, and its Idempotency-Key makes it once", async () => {
    const key = await world.newKey(["sandbox:read", "sandbox:write"]);
    expect((await world.call("GET", "/v1/webhooks", { key })).status).toBe(403);
    const post = async (): Promise<number> =>
      (
        await world.call("POST", "/v1/webhooks", {
          json: { url: receiver.url },
          headers: { "idempotency-key": "one" },
        })
      ).status;
    expect([await post(), await post()]).toEqual([201, 409]);
    expect((await world.call("GET", "/v1/webhooks")).body["items"]).toHaveLength(1);
  });

  test.each([
    ["ftp://example.com/", "https://"],
    ["https://user:pw@example.com/", "without user name"],
    ["http://10.0.0.1/", "not a public address"],
    ["https://169.254.169.254/latest", "not a public address"],
    ["https://[::1]/", "not a public address"],
    ["https://[::ffff:10.0.0.1]/", "not a public address"],
    ["http://93.184.216.34/", "must be https"],
    ["not a url", "absolute"],
  ])("is refused for %s", async (url, message) => {
    const reply = await world.call("POST", "/v1/webhooks", { json: { url } });
    expect(reply.status).toBe(400);
    expect(errorOf(reply).message).toContain(message);
  });
});

describe("where webhooks may go", () => {
  const ask = (guard: TargetGuard, url: string): Promise<string | undefined> => {
    const target = new URL(url);
    return new Promise((resolve) => {
      guard.lookupFor(target)(target.hostname, { all: false }, (error) => resolve(error?.message));
    });
  };

  test("a name that resolves to a private address is refused when it is connected to, not when it is written", async () => {
    const guard = new TargetGuard([]);
    expect(guard.refusal(new URL("https://localhost/"))).toBeUndefined();
    expect(await ask(guard, "https://localhost/")).toContain("is not a public address");
    expect(await ask(new TargetGuard(["127.0.0.1", "::1"]), "http://localhost/")).toBeUndefined();
  });

  test.each([
    ["10.0.0.0/8", true],
    ["127.0.0.1", true],
    ["fd00::/8", true],
    ["10.0.0.0/33", false],
    ["10.0.0", false],
    ["example.com", false],
    ["10.0.0.0/8/8", false],
  ])("the configuration takes %s: %s", (range, isValid) => {
    expect(isAddressRange(range)).toBe(isValid);
  });
});
