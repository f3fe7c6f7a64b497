import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { advise, DEFAULT_PRICES, type Measured, type Workload } from "@torpor/protocol";
import { usesFromEvents } from "../src/advise/recorded-uses.ts";
import { capturedCli } from "./captured-cli.ts";
import { FakeApi } from "./fake-api.ts";

let api: FakeApi;
let directory: string;
beforeEach(async () => {
  api = await FakeApi.start();
  directory = mkdtempSync(join(tmpdir(), "torpor-advise-"));
});
afterEach(async () => {
  await api[Symbol.asyncDispose]();
  rmSync(directory, { recursive: true, force: true });
});

const cli = (...args: string[]) => capturedCli(["advise", ...args], api.env);
const seen = (value: number): Measured => ({ value, measured: true, samples: 3, source: "template" });
const answer = (workload: Workload) => {
  const advice = advise(workload, {
    template: "base",
    cpu: 1,
    memory_mb: 1024,
    disk_mb: 4096,
    prices: DEFAULT_PRICES,
    times: {
      create_seconds: seen(0.03),
      hibernate_seconds: seen(0.4),
      wake_seconds: { value: 0.5, measured: false, samples: 0, source: "documented" },
      image_bytes: seen(150_000_000),
    },
  });
  api.scripted.set("POST /v1/advise", advice);
  return advice;
};
const trace = (text: string): string => {
  const file = join(directory, "trace.csv");
  writeFileSync(file, text);
  return file;
};

describe("torpor advise", () => {
  it("sends what is said and leaves out what is not", async () => {
    answer({});
    await cli(
      "--survives",
      "files,memory",
      "--no-untrusted",
      "--interactive",
      "--gap",
      "20m",
      "--setup",
      "45",
    );
    expect(api.sent.get("POST /v1/advise")).toEqual({
      survives: ["files", "memory"],
      untrusted: false,
      interactive: true,
      idle_gap_seconds: 1200,
      setup_seconds: 45,
    });
    await cli("--no-survives", "--no-single-tenant");
    expect(api.sent.get("POST /v1/advise")).toEqual({ survives: false, single_tenant: false });
    await cli();
    expect(api.sent.get("POST /v1/advise")).toEqual({});
  });

  it("tells the shape, each step, the settings, costs and where they cross, and what was not measured", async () => {
    const advice = answer({ interactive: true, survives: true, setup_seconds: 45, idle_gap_seconds: 1200 });
    const { stdout } = await cli();
    expect(stdout).toMatch(/^STATEFUL: Somebody waits for each answer/);
    expect(stdout).toMatch(/> Is warmth the experience\? yes/);
    expect(stdout).toMatch(/settings +persistent=true ttl_seconds=null/);
    expect(stdout).toMatch(/lost +connections: each sleep/);
    expect(stdout).toMatch(/> +hibernated 1 min after its last use +0\.\d{4} USD/);
    expect(stdout).toMatch(/sleeping costs less than staying awake +from a gap of 0\.9 s on/);
    expect(stdout).toMatch(/wake 500 ms \(documented, not measured here\)/);
    expect(JSON.parse((await cli("--json")).stdout)).toEqual(advice);
  });

  it("refuses kinds that there are none of, and options of a replay without one", async () => {
    expect(await cli("--survives", "dreams")).toMatchObject({ exitCode: 2 });
    expect((await cli("--chart", "x.html")).stderr).toContain("--chart is for --replay");
  });
});

it("create --auto sends what is said of the workload, and tells what was advised", async () => {
  const create = (...args: string[]) => capturedCli(["create", ...args], api.env);
  await create("--auto", "--no-survives", "--setup", "2m", "--accept-risk", "--untrusted");
  expect(api.sent.get("POST /v1/sandboxes")).toEqual({
    lifecycle: "auto",
    workload: { survives: false, untrusted: true, setup_seconds: 120 },
    accept_risk: true,
  });
  await create();
  expect(api.sent.get("POST /v1/sandboxes")).toEqual({});
});

describe("torpor advise --replay", () => {
  it("plays a trace through every policy: cost, cold starts and waits, and a chart to look at", async () => {
    answer({ setup_seconds: 20 });
    const chart = join(directory, "chart.html");
    const file = trace("time,duration,tenant\n7200,60,<b>\n0,60,<b>\n100,60,a\n");
    const { stdout, stderr } = await cli("--replay", file, "--chart", chart);
    expect(stdout).toContain("3 uses of 2 tenants in 2 h 1 min");
    expect(stdout).toMatch(/ephemeral: a sandbox for each use +0\.\d{4} USD +3 +0 +20 s +20 s/);
    expect(stdout).toMatch(/hibernated 1 min after its last use +0\.\d{4} USD +2 +1 +20 s +20 s/);
    expect(stdout).toMatch(/always awake +0\.\d{4} USD +2 +0/);
    expect(stderr).toContain(`chart written to ${chart}`);
    const html = readFileSync(chart, "utf8");
    expect(html).toMatch(/<svg[\s\S]*always awake[\s\S]*<rect[\s\S]*<\/svg>/);
    expect(html).not.toContain("<b>");
    const played = JSON.parse((await cli("--replay", file, "--json")).stdout) as { policies: object[] };
    expect(played).toMatchObject({ uses: 3, tenants: 2, currency: "USD", cheapest: "ephemeral" });
    expect(played.policies).toHaveLength(7);
  });

  it("names the lines that cannot be read, and says when there is no use or no file", async () => {
    answer({});
    const bad = await cli("--replay", trace("time,duration\n1,2\nsoon,2\n"));
    expect(bad).toMatchObject({ exitCode: 1, stdout: "" });
    expect(bad.stderr).toMatch(/line 3 has the time "soon"/);
    expect((await cli("--replay", trace(""))).stderr).toMatch(/has no uses/);
    expect((await cli("--replay", join(directory, "none.csv"))).stderr).toMatch(/cannot be read: .*ENOENT/);
    expect((await cli("--replay")).stderr).toMatch(/needs a trace .*or --tenant/);
  });

  it("takes what a tenant did from its events: awake, less the idle timeout before a sleep", () => {
    const event = (sandboxId: string, state: string, seconds: number, reason: string | null = null) => ({
      type: `sandbox.${state}` as "sandbox.running",
      sandboxId,
      at: new Date(seconds * 1_000),
      reason,
      tenant: "acme",
    });
    const events = [
      event("a", "creating", 0),
      event("a", "running", 1),
      event("b", "running", 10),
      event("a", "hibernating", 400),
      event("a", "hibernated", 401),
      event("a", "waking", 1000),
      event("a", "running", 1001),
      event("b", "destroying", 1010, "user"),
      event("a", "hibernated", 1051),
      event("c", "running", 1060),
    ];
    const use = (at: number, seconds: number) => ({
      at_ms: at * 1_000,
      duration_ms: seconds * 1_000,
      tenant: "acme",
    });
    expect(usesFromEvents(events, new Map([["a", 300_000]]), 1_100_000)).toEqual([
      use(1, 100),
      use(10, 1_000),
      use(1_001, 50),
      use(1_060, 40),
    ]);
  });

  it("takes a million rows", async () => {
    answer({});
    const rows = Array.from({ length: 1_000_000 }, (_, row) => `${(row * 37) % 900_001},5,t${row % 50}`);
    const { stdout, stderr } = await cli("--replay", trace(rows.join("\n")), "--json");
    expect(stderr).toBe("");
    expect(JSON.parse(stdout)).toMatchObject({ uses: 1_000_000, tenants: 50 });
  }, 60_000);
});
