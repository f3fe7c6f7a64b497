import { type Inventory, inventorySchema, STATE_EVENTS, STATE_KINDS, type Survival } from "@torpor/protocol";
import { describe, expect, test } from "vitest";
import { forecastOf } from "../src/state/forecast.ts";

const socket = (local: string, remote?: string) => ({
  protocol: "tcp",
  local,
  ...(remote === undefined ? {} : { remote }),
});
const LISTENING = socket("0.0.0.0:80");
const LOOPBACK = socket("127.0.0.1:5000", "127.0.0.1:6379");
const EXTERNAL = socket("10.0.0.2:5000", "203.0.113.9:443");

function inventory(connections: Partial<Inventory["connections"]> = {}): Inventory {
  return inventorySchema.parse({
    taken_at: "2026-01-01T00:00:00Z",
    files: {
      changed_count: 3,
      changed_bytes: 9,
      sample: [{ path: "/a", size: 3, modified_at: "2026-01-01T00:00:00Z" }],
      truncated: true,
    },
    packages: { pip: [{ name: "wheel", version: "1" }], npm: [], apt: [] },
    caches: [{ path: "/c", size_bytes: 1 }],
    memory: {
      rss_bytes: 5,
      processes: [{ pid: 7, command: "redis", rss_bytes: 5, started_at: "2026-01-01T00:00:00Z" }],
      kernels: [{ pid: 9, language: "python" }],
    },
    connections: { listening: [], loopback: [], external: [], ...connections },
    browser: { profiles: [] },
  });
}

describe("the forecast", () => {
  const cases: [
    string,
    Partial<Inventory["connections"]>,
    Record<"pause" | "hibernate" | "fork", Survival["survives"]>,
  ][] = [
    ["no connections", {}, { pause: "all", hibernate: "all", fork: "all" }],
    [
      "inner ones",
      { listening: [LISTENING], loopback: [LOOPBACK] },
      { pause: "all", hibernate: "all", fork: "all" },
    ],
    ["an external one", { external: [EXTERNAL] }, { pause: "all", hibernate: "none", fork: "none" }],
    [
      "both",
      { listening: [LISTENING], external: [EXTERNAL] },
      { pause: "all", hibernate: "some", fork: "some" },
    ],
  ];
  test.each(cases)("of connections, with %s", (_what, connections, expected) => {
    const forecast = forecastOf(inventory(connections), true);
    for (const event of ["pause", "hibernate", "fork"] as const) {
      const { survives, lost, reason } = forecast[event].connections;
      expect([event, survives]).toEqual([event, expected[event]]);
      expect(lost).toEqual(survives === "all" ? [] : ["tcp 10.0.0.2:5000 -> 203.0.113.9:443"]);
      expect(reason).not.toBe("");
    }
  });

  test("of everything else: kept by all but the end, which keeps nothing", () => {
    const forecast = forecastOf(inventory(), true);
    for (const event of STATE_EVENTS) {
      for (const kind of STATE_KINDS) {
        const { survives, reason } = forecast[event][kind];
        expect([event, kind, survives]).toEqual([event, kind, event === "destroy" ? "none" : "all"]);
        expect(reason).not.toBe("");
      }
    }
    expect(forecast.destroy.files.lost).toEqual(["/a", "2 more"]);
    expect(forecast.destroy.packages.lost).toEqual(["pip wheel 1"]);
    expect(forecast.destroy.memory.lost).toEqual(["7 redis"]);
  });

  test("of a hibernation without memory: what is on the disk is kept, and nothing of what runs", () => {
    const { hibernate, pause } = forecastOf(
      inventory({ listening: [LISTENING], external: [EXTERNAL] }),
      false,
    );
    for (const kind of ["files", "packages", "caches", "browser"] as const)
      expect([kind, hibernate[kind].survives, hibernate[kind].lost]).toEqual([kind, "all", []]);
    expect(hibernate.memory).toMatchObject({ survives: "none", lost: ["7 redis"] });
    expect(hibernate.connections).toMatchObject({
      survives: "none",
      lost: ["tcp 0.0.0.0:80", "tcp 10.0.0.2:5000 -> 203.0.113.9:443"],
    });
    expect([pause.memory.survives, pause.connections.survives]).toEqual(["all", "all"]);
  });

  test("names at most twenty and counts the rest", () => {
    const external = Array.from({ length: 50 }, (_, index) => socket(`10.0.0.2:${index}`, "203.0.113.9:443"));
    const { lost } = forecastOf(inventory({ external }), true).hibernate.connections;
    expect(lost).toHaveLength(21);
    expect(lost.at(-1)).toBe("30 more");
  });
});
