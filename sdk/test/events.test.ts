import { createHmac } from "node:crypto";
import { describe, expect, it } from "vitest";
import { EventsExpiredError, type SandboxEvent, verifyWebhook } from "@torpor/sdk";
import { FakeServer, SANDBOX_ID, sendError } from "./fake-server.ts";

function eventWire(seq: number, state = "running", previous: string | null = "creating"): string {
  return `${JSON.stringify({
    id: `evt_${seq}`,
    type: `sandbox.${state}`,
    at: "2026-11-29T16:00:00.000Z",
    sandbox_id: SANDBOX_ID,
    name: "nightly",
    metadata: { job_id: "41" },
    tenant: "acme",
    generation: 1,
    state,
    previous_state: previous,
    reason: state === "destroyed" ? "user" : null,
    changes: { on_expire: "hibernate" },
  })}\n`;
}
const keepalive = (seq: number): string => `${JSON.stringify({ type: "keepalive", id: `evt_${seq}` })}\n`;

describe("events", () => {
  it("of a sandbox are typed, and over with its end", async () => {
    await using server = (await FakeServer.start()).withSandbox();
    server.on("GET", "/v1/sandboxes/{id}/events", ({ response }) => {
      response.writeHead(200, { "content-type": "application/x-ndjson" });
      response.write(keepalive(3) + eventWire(4) + eventWire(5, "destroyed", "destroying"));
    });
    const sandbox = await server.client().sandboxes.create();
    const events: SandboxEvent[] = [];
    for await (const event of sandbox.events()) events.push(event);
    expect(events).toMatchObject([
      {
        id: "evt_4",
        type: "sandbox.running",
        at: new Date("2026-11-29T16:00:00.000Z"),
        sandboxId: SANDBOX_ID,
        name: "nightly",
        metadata: { job_id: "41" },
        previousState: "creating",
        reason: null,
        changes: { on_expire: "hibernate" },
      },
      { type: "sandbox.destroyed", reason: "user" },
    ]);
    expect(server.calls.at(-1)?.headers.accept).toBe("application/x-ndjson");
  });

  it("go on where a connection broke, also when none had come yet, and while the server is away", async () => {
    await using server = await FakeServer.start();
    const asked: (string | null)[] = [];
    server.on("GET", "/v1/events", ({ response, query }) => {
      asked.push(query.get("after"));
      if (asked.length === 3)
        return sendError(response, 503, "store_unavailable", "away", { retryable: true });
      response.writeHead(200, { "content-type": "application/x-ndjson" });
      if (asked.length === 1) response.write(keepalive(7), () => response.destroy());
      else if (asked.length === 2) response.write(eventWire(8), () => response.end());
      else response.write(eventWire(9));
    });
    const seen: string[] = [];
    const stream = server.client({ maxRetries: 0 }).events({ types: ["sandbox.running"], tenant: "acme" });
    for await (const { id } of stream) {
      seen.push(id);
      if (seen.length === 2) break;
    }
    expect(seen).toEqual(["evt_8", "evt_9"]);
    expect(asked).toEqual([null, "evt_7", "evt_8", "evt_8"]);
    expect(server.calls[0]?.url).toContain("types=sandbox.running");
    // The last one was in hand when the loop was left: another stream from here tells it again.
    expect(stream.lastId).toBe("evt_8");
  });

  it("whose place is no longer kept are an EventsExpiredError, not a silent gap", async () => {
    await using server = await FakeServer.start();
    server.on("GET", "/v1/events", ({ response }) =>
      sendError(response, 410, "events_expired", "too old", { details: { oldest_id: "evt_50" } }),
    );
    const read = async (): Promise<void> => {
      for await (const event of server.client().events({ after: "evt_1" })) void event;
    };
    const error = await read().catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(EventsExpiredError);
    expect(error).toMatchObject({ details: { oldest_id: "evt_50" } });
  });

  it("end with close, and with the caller's signal", async () => {
    await using server = await FakeServer.start();
    server.on("GET", "/v1/events", ({ response }) => {
      response.writeHead(200, { "content-type": "application/x-ndjson" });
      response.write(eventWire(1));
    });
    const closed = server.client().events();
    for await (const event of closed) {
      void event;
      closed.close();
    }
    const controller = new AbortController();
    const read = async (): Promise<void> => {
      for await (const event of server.client().events({ signal: controller.signal })) {
        void event;
        controller.abort(new Error("enough"));
      }
    };
    await expect(read()).rejects.toThrow("enough");
  });

  it("that are not followed end with what there is", async () => {
    await using server = await FakeServer.start();
    server.on("GET", "/v1/events", ({ response }) => {
      response.writeHead(200, { "content-type": "application/x-ndjson" });
      response.end(keepalive(0) + eventWire(1) + eventWire(2));
    });
    const seen: string[] = [];
    for await (const { id } of server.client().events({ after: "oldest", follow: false })) seen.push(id);
    expect(seen).toEqual(["evt_1", "evt_2"]);
    expect(server.calls).toHaveLength(1);
  });
});

describe("a webhook's request", () => {
  const secret = `whsec_${Buffer.alloc(32, 7).toString("base64")}`;
  const body = eventWire(5).trim();
  const headersAt = (timestamp: number, key = secret): Record<string, string> => {
    const digest = createHmac("sha256", Buffer.from(key.slice(6), "base64"))
      .update(`evt_5.${timestamp}.${body}`)
      .digest("base64");
    return {
      "webhook-id": "evt_5",
      "webhook-timestamp": String(timestamp),
      "webhook-signature": `v1a,x v1,%%% v1,${digest}`,
    };
  };
  const now = Math.floor(Date.now() / 1_000);

  it("is its event when the signature holds", async () => {
    expect(await verifyWebhook(body, headersAt(now), secret)).toMatchObject({ id: "evt_5" });
    expect(await verifyWebhook(body, new Headers(headersAt(now)), secret)).toMatchObject({ id: "evt_5" });
  });

  it.each([
    ["another secret's", body, headersAt(now, `whsec_${Buffer.alloc(32, 8).toString("base64")}`)],
    ["one whose body was changed", body.replace("acme", "evil"), headersAt(now)],
    ["an old one", body, headersAt(now - 600)],
    ["one of the future", body, headersAt(now + 600)],
    ["one without headers", body, {}],
  ])("is refused: %s", async (_what, text, headers) => {
    await expect(verifyWebhook(text, headers, secret)).rejects.toMatchObject({ code: "webhook_invalid" });
  });

  it.each(["", "whsec_", "whsec_%"])("is refused when the secret at hand is %j", async (bad) => {
    await expect(verifyWebhook(body, headersAt(now, bad), bad)).rejects.toMatchObject({
      code: "webhook_invalid",
    });
  });
});
