import { describe, expect, it } from "vitest";
import { Sandbox } from "@torpor/sdk";
import { API_KEY, FakeServer, sandboxWire, sendJson } from "./fake-server.ts";

const walked = {
  shape: "stateful",
  decided_by: "warmth",
  reason: "somebody waits",
  steps: [
    {
      question: "single_tenant",
      asks: "Is it strictly one tenant?",
      answer: "yes",
      points_to: null,
      decides: false,
      reason: "it is",
    },
  ],
  lost: [{ kind: "connections", when: "each sleep" }],
  notes: [],
};

describe("advice", () => {
  it("is asked for by camelCase and told so, all the way down", async () => {
    await using server = await FakeServer.start();
    const breakEven = { sleep_beats_awake_seconds: 0.9, rebuild_beats_sleep_seconds: null };
    const sent: unknown[] = [];
    server.on("POST", "/v1/advise", async (call) => {
      sent.push(await call.json());
      sendJson(call.response, 200, { ...walked, costs: [{ cost_per_day: 1.5 }], break_even: breakEven });
    });
    const advice = await Sandbox.advise({
      survives: ["memory"],
      singleTenant: true,
      idleGapSeconds: 60,
      url: server.url,
      apiKey: API_KEY,
    });
    expect(sent[0]).toEqual({
      survives: ["memory"],
      single_tenant: true,
      idle_gap_seconds: 60,
    });
    expect(advice).toMatchObject({
      decidedBy: "warmth",
      steps: [{ pointsTo: null, question: "single_tenant" }],
      costs: [{ costPerDay: 1.5 }],
      breakEven: { sleepBeatsAwakeSeconds: 0.9, rebuildBeatsSleepSeconds: null },
    });
  });

  it('of a create with lifecycle "auto" is on the sandbox; the workload goes as the wire names it', async () => {
    await using server = await FakeServer.start();
    const advice = { ...walked, applied: { idle_timeout_seconds: 60 }, set_by_caller: ["on_idle"] };
    const sent: unknown[] = [];
    server.on("POST", "/v1/sandboxes", async (call) => {
      sent.push(await call.json());
      sendJson(call.response, 201, { ...sandboxWire(), advice });
    });
    server.on("POST", "/v1/sessions", async (call) => {
      sent.push(await call.json());
      sendJson(call.response, 201, { sandbox: sandboxWire(), created: true, advice });
    });
    const { sandboxes } = server.client();
    const options = { lifecycle: "auto", workload: { setupSeconds: 9 }, acceptRisk: true } as const;
    const made = await sandboxes.create(options);
    expect(made.advice).toMatchObject({ applied: { idleTimeoutSeconds: 60 }, setByCaller: ["on_idle"] });
    expect((await sandboxes.session({ ...options, key: "k" })).advice).toEqual(made.advice);
    expect(sent[0]).toEqual({ lifecycle: "auto", workload: { setup_seconds: 9 }, accept_risk: true });
    expect(sent[1]).toMatchObject({ workload: { setup_seconds: 9 } });
    server.withSandbox();
    expect((await sandboxes.create()).advice).toBeUndefined();
  });
});
