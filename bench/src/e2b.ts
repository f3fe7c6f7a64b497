import { setTimeout as delay } from "node:timers/promises";
import { Sandbox as E2bSandbox } from "e2b";
import { Sandbox } from "@torpor/sdk";
import { e2bOptions, type Instance } from "@torpor/test";
import { type Figure, summarize } from "./figures.ts";

const TURNS = 8;

/** `true` in one sandbox through E2B's published client and through our own SDK, in turns. */
export async function e2bExec(instance: Instance, rounds: number): Promise<Figure[]> {
  const theirs = await E2bSandbox.create("code-interpreter-v1", {
    ...e2bOptions(instance),
    timeoutMs: 3_600_000,
  });
  try {
    const options = { url: instance.url, apiKey: instance.apiKey };
    const ours = await Sandbox.get(theirs.sandboxId, options);
    const readings = { ours: [] as number[], theirs: [] as number[] };
    const took = async (run: () => Promise<unknown>): Promise<number> => {
      await delay(150); // as an agent does, which thinks between commands
      const startedAt = performance.now();
      await run();
      return performance.now() - startedAt;
    };
    for (let turn = 0; turn < rounds * TURNS; turn++) {
      // Each goes first as often as the other.
      const order = turn % 2 === 0 ? (["ours", "theirs"] as const) : (["theirs", "ours"] as const);
      for (const who of order)
        readings[who].push(
          await took(() => (who === "ours" ? ours.exec("true") : theirs.commands.run("true"))),
        );
    }
    const [own, e2b] = [summarize(readings.ours), summarize(readings.theirs)];
    return [
      { name: "exec of `true` through our SDK, p50", value: own.p50, unit: "ms" },
      { name: "exec of `true` through E2B's SDK, p50", value: e2b.p50, unit: "ms" },
      { name: "exec of `true` through E2B's SDK, p99", value: e2b.p99, unit: "ms" },
      {
        name: "  ratio of E2B's SDK to ours",
        value: e2b.p50 / own.p50,
        unit: "x",
        most: 1.2,
        against: `our SDK in turns, n=${own.count}`,
      },
    ];
  } finally {
    await theirs.kill();
  }
}
