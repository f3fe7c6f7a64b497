import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { costOf, DEFAULT_PRICES, quantitiesIn, type Usage, type UsageInterval } from "@torpor/protocol";
import { World } from "./world.ts";

let world: World;
beforeAll(async () => {
  world = await World.start({ budgets: { everyMs: 50 } });
});
afterAll(() => world[Symbol.asyncDispose]());

const usageOf = async (query: string, key?: string): Promise<Usage> => {
  const reply = await world.call("GET", `/v1/usage?${query}`, key === undefined ? {} : { key });
  expect(reply.status, reply.text).toBe(200);
  return reply.body as unknown as Usage;
};
const intervalsOf = async (id: string): Promise<UsageInterval[]> =>
  (await world.call("GET", `/v1/sandboxes/${id}/usage`)).body["items"] as UsageInterval[];
const destroy = async (id: string): Promise<void> => {
  await world.call("DELETE", `/v1/sandboxes/${id}`);
};
const eventually = (check: () => Promise<void>): Promise<void> =>
  vi.waitFor(check, { timeout: 10_000, interval: 10 });
const states = async (id: string): Promise<string[]> => (await intervalsOf(id)).map(({ state }) => state);
const used = (id: string, cpuSeconds: number): void => {
  const machine = world.host.machines.get(id)?.machine;
  if (machine !== undefined) machine.used = { ...machine.used, cpu_seconds: cpuSeconds, idle_seconds: 0.02 };
};

describe("the intervals of a sandbox", () => {
  test("follow it through sleep, wake and end, tile its life, and tell what it used", async () => {
    const { id, created_at: createdAt } = await world.sandbox({ template: "base", tenant: "walk" });
    used(id, 1);
    await world.call("POST", `/v1/sandboxes/${id}/hibernate`);
    await world.call("POST", `/v1/sandboxes/${id}/wake`);
    used(id, 3);
    await world.call("POST", `/v1/sandboxes/${id}/pause`);
    await world.call("POST", `/v1/sandboxes/${id}/resume`);
    const alive = await intervalsOf(id);
    expect(alive.at(-1)).toMatchObject({ state: "running", to: null });
    await world.call("DELETE", `/v1/sandboxes/${id}`);
    const intervals = await intervalsOf(id);
    const without = intervals.filter(({ state }) => state !== "creating" && state !== "destroying");
    expect(without.map(({ state }) => state).join(" ")).toMatch(/^running.* hibernated running.*$/);
    expect(intervals[0]?.from).toBe(createdAt);
    for (const [index, { from }] of intervals.entries())
      if (index > 0) expect(from).toBe(intervals[index - 1]?.to);
    expect(intervals.every(({ to }) => to !== null)).toBe(true);
    expect(intervals.find(({ state }) => state === "hibernated")?.image_bytes).toBe(4096);
    expect(intervals.reduce((sum, { cpu_seconds: cpu }) => sum + cpu, 0)).toBeCloseTo(3, 6);
  });

  test.each([
    ["a destroy", "user", destroy],
    ["its ttl", "ttl_expired", (id: string) => world.host.end(id, "ttl_expired")],
    ["idleness", "idle", (id: string) => world.host.end(id, "idle")],
    ["a crash", "runtime_crashed", (id: string) => world.host.fail(id, "runtime_crashed")],
    ["lack of memory", "oom", (id: string) => world.host.fail(id, "oom")],
    ["an absolute end", "max_lifetime", (id: string) => world.host.end(id, "max_lifetime")],
  ] as const)("are closed by %s, and count nothing that computes after it", async (_what, reason, end) => {
    const { id } = await world.sandbox({ template: "base" });
    await new Promise((resolve) => setTimeout(resolve, 5));
    await end(id);
    await eventually(async () => {
      const { body } = await world.call("GET", `/v1/sandboxes/${id}`);
      expect(["destroyed", "failed"]).toContain(body["state"]);
      expect(body["reason"]).toBe(reason);
    });
    const machine = world.host.machines.get(id)?.machine;
    const intervals = await intervalsOf(id);
    const running = intervals.filter(({ state }) => state === "running");
    expect(running).toHaveLength(1);
    const over = machine?.moves.find(({ to }) => to === "ending" || to === "failed");
    expect(Date.parse(running[0]?.to ?? "")).toBeLessThanOrEqual(Date.parse(over?.at ?? ""));
    if (machine?.state === "ended") expect(intervals.every(({ to }) => to !== null)).toBe(true);
    else expect(intervals.at(-1)).toMatchObject({ state: "failed", to: null });
  });

  test("have what happened while no server lived, at the times it happened", async () => {
    const { id } = await world.sandbox({ template: "base", persistent: true, tenant: "night" });
    await world.host.move(id, "hibernate", { silent: true });
    await world.host.move(id, "wake", { silent: true });
    await world.host.move(id, "pause", { silent: true });
    await world.restart();
    await eventually(async () => expect((await states(id)).at(-1)).toBe("paused"));
    const moves = world.host.machines.get(id)?.machine.moves ?? [];
    const slept = (await intervalsOf(id)).find(({ state }) => state === "hibernated");
    const index = moves.findIndex(({ to }) => to === "hibernated");
    expect([slept?.from, slept?.to]).toEqual([moves[index]?.at, moves[index + 1]?.at]);
    await world.call("DELETE", `/v1/sandboxes/${id}`);
  });

  test("are found for one that is no longer on record, and not by another tenant", async () => {
    const { id } = await world.sandbox({ template: "base", tenant: "mine" });
    const other = await world.newKey(["sandbox:read"], "theirs");
    expect((await world.call("GET", `/v1/sandboxes/${id}/usage`, { key: other })).status).toBe(404);
    expect((await world.call("GET", "/v1/sandboxes/nosuchsandboxanywhere1/usage")).status).toBe(404);
  });
});

describe("usage", () => {
  test("costs what the intervals cost, to the cent and beyond", async () => {
    const { id } = await world.sandbox({ template: "base", tenant: "sum", cpu: 2, memory_mb: 2048 });
    await world.call("POST", `/v1/sandboxes/${id}/hibernate`);
    await world.call("DELETE", `/v1/sandboxes/${id}`);
    const cost = (await intervalsOf(id)).reduce((sum, { from, to, state, ...allotment }) => {
      const seconds = (Date.parse(to ?? "") - Date.parse(from)) / 1_000;
      return (
        sum +
        costOf(quantitiesIn(state === "snapshot" ? "hibernated" : state, allotment, seconds), DEFAULT_PRICES)
      );
    }, 0);
    const usage = await usageOf("tenant=sum&group_by=sandbox");
    expect(usage.items).toHaveLength(1);
    expect(usage.items[0]?.cost).toBeCloseTo(cost, 6);
    expect(usage.total.cost).toBeCloseTo(cost, 6);
  });

  test("is added up by tenant, template, sandbox, day and state, and adds up to the same", async () => {
    await world.sandbox({ template: "base", tenant: "grouped" });
    const total = (await usageOf("tenant=grouped&group_by=tenant")).items[0];
    for (const group of ["template", "sandbox", "day", "state", "tenant,day,state"]) {
      const { items } = await usageOf(`tenant=grouped&group_by=${group}`);
      const vcpu = items.reduce((sum, item) => sum + item.vcpu_seconds, 0);
      expect(vcpu, group).toBeGreaterThanOrEqual(total?.vcpu_seconds ?? Number.POSITIVE_INFINITY);
      expect(vcpu, group).toBeLessThan((total?.vcpu_seconds ?? 0) + 10);
    }
    const [day] = (await usageOf("tenant=grouped&group_by=day")).items;
    expect(day?.day).toBe(new Date().toISOString().slice(0, 10));
  });

  test("counts what lies partly within the time asked for in part, open or over", async () => {
    const { id } = await world.sandbox({ template: "base", tenant: "partly", cpu: 1 });
    await new Promise((resolve) => setTimeout(resolve, 60));
    const [first] = (await intervalsOf(id)).filter(({ state }) => state === "running");
    const from = Date.parse(first?.from ?? "");
    const query = `tenant=partly&from=${new Date(from + 10).toISOString()}&to=${new Date(from + 40).toISOString()}`;
    expect((await usageOf(query)).total.vcpu_seconds).toBeCloseTo(0.03, 6);
    await world.call("DELETE", `/v1/sandboxes/${id}`);
    expect((await usageOf(query)).total.vcpu_seconds).toBeCloseTo(0.03, 6);
    expect((await usageOf("tenant=partly&to=2020-01-01&from=2019-01-01")).items).toEqual([]);
  });

  test("shows a key of a tenant that tenant alone, and all accounts to the operator who asks for them", async () => {
    await world.sandbox({ template: "base", tenant: "left" });
    await world.sandbox({ template: "base", tenant: "right" });
    const key = await world.newKey(["sandbox:read"], "left");
    expect((await usageOf("", key)).items.map(({ tenant }) => tenant)).toEqual(["left"]);
    expect((await usageOf("tenant=right", key)).items).toEqual([]);
    const operator = await world.newKey(["operator"]);
    const { items } = await usageOf("group_by=account", operator);
    expect(items.map(({ account }) => account)).toEqual(["default"]);
  });

  test("is a table of commas for who asks for one", async () => {
    const reply = await world.call("GET", "/v1/usage?format=csv&group_by=tenant,day&tenant=sum");
    expect(reply.headers.get("content-type")).toContain("text/csv");
    const [head, line] = reply.text.split("\r\n");
    expect(head).toMatch(
      /^tenant,day,running_seconds,.*,currency,cost,saved_by_sleeping,wasted_by_idling,uncertain_seconds$/,
    );
    expect(line?.split(",").length).toBe(head?.split(",").length);
    expect(line).toMatch(/^sum,\d{4}-\d\d-\d\d,/);
  });

  test.each([
    ["group_by=colour", /some of account, tenant/],
    ["from=yesterday", /must be a time/],
    ["from=2026-02-01&to=2026-01-01", /before `from`/],
    ["group_by=day&from=2020-01-01", /too long/],
    ["unknown=1", /unknown/i],
  ])("refuses %s, saying why", async (query, message) => {
    const reply = await world.call("GET", `/v1/usage?${query}`);
    expect(reply.status).toBe(400);
    expect(reply.text).toMatch(message);
  });

  test("says what sleeping saved and what idling awake wasted", async () => {
    const { id } = await world.sandbox({ template: "base", tenant: "idle", cpu: 1, memory_mb: 1024 });
    used(id, 0);
    await world.call("POST", `/v1/sandboxes/${id}/hibernate`);
    await new Promise((resolve) => setTimeout(resolve, 30));
    const { total } = await usageOf("tenant=idle");
    const perSecond = (DEFAULT_PRICES.vcpu_hour + DEFAULT_PRICES.memory_gib_hour) / 3600;
    expect(total.wasted_by_idling).toBeCloseTo(0.02 * perSecond, 6);
    expect(total.idle_seconds).toBeCloseTo(0.02, 6);
    expect(total.seconds.hibernated).toBeGreaterThan(0.02);
    expect(total.saved_by_sleeping).toBeGreaterThan(0);
  });

  test("counts a snapshot for as long as it is kept, and after", async () => {
    const { id } = await world.sandbox({ template: "base", tenant: "photo" });
    const made = await world.call("POST", `/v1/sandboxes/${id}/snapshots`, { json: {} });
    await new Promise((resolve) => setTimeout(resolve, 10));
    const during = (await usageOf("tenant=photo&group_by=state")).items.find(
      ({ state }) => state === "snapshot",
    );
    expect(during).toBeDefined();
    await world.call("DELETE", `/v1/snapshots/${String(made.body["id"])}`);
    const items = await intervalsOf(String(made.body["id"]));
    expect(items).toMatchObject([{ state: "snapshot", image_bytes: 8192 }]);
  });
});

describe("prices", () => {
  test("are the defaults, the operator's, or the account's own, and sums follow them", async () => {
    const operator = await world.newKey(["operator"]);
    expect((await world.call("GET", "/v1/prices")).body).toEqual(DEFAULT_PRICES);
    const dear = {
      currency: "EUR",
      vcpu_hour: 3600,
      memory_gib_hour: 0,
      disk_gib_month: 0,
      image_gib_month: 0,
    };
    expect((await world.call("PUT", "/v1/prices", { key: operator, json: dear })).status).toBe(200);
    const { total, prices } = await usageOf("tenant=sum");
    expect(prices).toEqual(dear);
    expect(total.cost).toBeCloseTo(total.vcpu_seconds, 5);
    const own = { ...dear, vcpu_hour: 7200 };
    await world.call("PUT", "/v1/accounts/default/prices", { key: operator, json: own });
    expect((await world.call("GET", "/v1/prices")).body).toEqual(own);
    await world.call("DELETE", "/v1/accounts/default/prices", { key: operator });
    await world.call("DELETE", "/v1/prices", { key: operator });
    expect((await world.call("GET", "/v1/prices")).body).toEqual(DEFAULT_PRICES);
    expect((await world.call("PUT", "/v1/accounts/nobody/prices", { key: operator, json: own })).status).toBe(
      404,
    );
    expect(
      (await world.call("PUT", "/v1/prices", { key: operator, json: { ...own, vcpu_hour: -1 } })).status,
    ).toBe(400);
  });
});

describe("a budget", () => {
  beforeAll(async () => {
    const key = await world.newKey(["operator"]);
    const dear = { ...DEFAULT_PRICES, vcpu_hour: 1_000_000 };
    await world.call("PUT", "/v1/accounts/default/prices", { key, json: dear });
  });

  const eventsOf = async (tenant: string): Promise<string[]> => {
    const reply = await world.call("GET", `/v1/events?after=oldest&follow=false&tenant=${tenant}`, {
      headers: { accept: "application/x-ndjson" },
    });
    return reply.text
      .split("\n")
      .filter((line) => line.includes('"budget.'))
      .map((line) => (JSON.parse(line) as { type: string }).type);
  };

  test("tells at 80%, and at 100% puts to sleep what is awake, refuses creates and wakes, and destroys nothing", async () => {
    const { id } = await world.sandbox({ template: "base", tenant: "spender" });
    const ephemeral = await world.sandbox({ template: "base", tenant: "spender" });
    const spent = (await usageOf("tenant=spender")).total.cost;
    const put = await world.call("PUT", "/v1/tenants/spender/budget", {
      json: { amount: spent / 2, period: "day" },
    });
    expect(put.body).toMatchObject({ tenant: "spender", period: "day", state: "exhausted" });
    await eventually(async () => {
      for (const one of [id, ephemeral.id])
        expect((await world.call("GET", `/v1/sandboxes/${one}`)).body["state"]).toBe("hibernated");
    });
    for (const one of [id, ephemeral.id]) {
      const running = (await intervalsOf(one)).filter(({ state }) => state === "running");
      expect(running.map(({ to }) => to)).toEqual([expect.any(String)]); // counted no further
    }
    const refused = await world.call("POST", "/v1/sandboxes", {
      json: { template: "base", tenant: "spender" },
    });
    expect([refused.status, refused.text]).toEqual([
      402,
      expect.stringMatching(/budget_exhausted.*begins anew/s),
    ]);
    expect((await world.call("POST", `/v1/sandboxes/${id}/wake`)).status).toBe(402);
    expect((await world.exec(id, { cmd: "true" })).status).toBe(402);
    await world.sandbox({ template: "base", tenant: "thrifty" });
    // What its host wakes by itself sleeps again.
    await world.host.move(id, "wake");
    await eventually(async () => {
      expect(world.host.machines.get(id)?.machine.state).toBe("hibernated");
      expect((await states(id)).filter((state) => state === "hibernated").length).toBeGreaterThan(1);
    });
    expect(await eventsOf("spender")).toEqual(["budget.exhausted"]);
    // Raised, all goes on.
    await world.call("PUT", "/v1/tenants/spender/budget", { json: { amount: 1_000_000 } });
    expect((await world.call("POST", `/v1/sandboxes/${id}/wake`)).status).toBe(200);
  });

  test("warns once when most of it is spent", async () => {
    await world.sandbox({ template: "base", tenant: "warned" });
    await world.call(
      "DELETE",
      `/v1/sandboxes/${(await world.sandbox({ template: "base", tenant: "warned" })).id}`,
    );
    const { items } = (await world.call("GET", "/v1/sandboxes?tenant=warned&state=running")).body as {
      items: { id: string }[];
    };
    for (const { id } of items) await world.call("DELETE", `/v1/sandboxes/${id}`);
    const spent = (await usageOf("tenant=warned")).total.cost;
    const put = await world.call("PUT", "/v1/tenants/warned/budget", { json: { amount: spent / 0.9 } });
    expect(put.body, put.text).toMatchObject({ tenant: "warned", state: "warned" });
    await eventually(async () => expect(await eventsOf("warned")).toEqual(["budget.warning"]));
    const listed = await world.call("GET", "/v1/budgets");
    expect(listed.body["items"]).toContainEqual(
      expect.objectContaining({ tenant: "warned", state: "warned" }),
    );
    await new Promise((resolve) => setTimeout(resolve, 150)); // several looks
    expect(await eventsOf("warned")).toEqual(["budget.warning"]);
    expect((await world.call("DELETE", "/v1/tenants/warned/budget")).status).toBe(204);
    expect((await world.call("DELETE", "/v1/tenants/warned/budget")).status).toBe(204);
  });

  test("of the account stops all its tenants", async () => {
    await world.call("PUT", "/v1/account/budget", { json: { amount: 0 } });
    expect(
      (await world.call("POST", "/v1/sandboxes", { json: { template: "base", tenant: "any" } })).status,
    ).toBe(402);
    await world.call("DELETE", "/v1/account/budget");
    expect(
      (await world.call("POST", "/v1/sandboxes", { json: { template: "base", tenant: "any" } })).status,
    ).toBe(201);
  });
});
