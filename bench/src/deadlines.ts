import { setTimeout as delay } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { run } from "@torpor/base";
import { Sandbox } from "@torpor/sdk";
import type { Instance } from "@torpor/test";
import { type Figure, summarize } from "./figures.ts";

const SANDBOXES = 20;
const LEAST_TTL_SECONDS = 12;
/** Their deadlines are spread over this time, at random. */
const SPREAD_SECONDS = 10;
const MAX_P99_MS = 250;
const MAX_MS = 1000;

/** By how much sandboxes outlive their ttl, until the last process of each is gone, while others compute; with the server dead too. */
export async function deadlineOvershoot(instance: Instance, serverLives: boolean): Promise<Figure[]> {
  const connection = { url: instance.url, apiKey: instance.apiKey };
  const busy = await Promise.all(
    [1, 2].map(() => Sandbox.create({ ...connection, template: "base", cpu: 0.5, ttlSeconds: 300 })),
  );
  for (const sandbox of busy) await sandbox.start("while :; do :; done", { timeoutSeconds: 300 });
  const ids: string[] = [];
  for (let made = 0; made < SANDBOXES; made++) {
    const ttlSeconds = LEAST_TTL_SECONDS + Math.round(Math.random() * SPREAD_SECONDS);
    const sandbox = await Sandbox.create({ ...connection, template: "base", ttlSeconds, memoryMb: 256 });
    ids.push(sandbox.id);
  }
  if (!serverLives) await instance.killServer("SIGKILL");
  const overshoots: number[] = [];
  for (const id of ids) {
    for (;;) {
      const machine = await instance.host.get(id);
      if (machine.state === "ended") {
        if (machine.reason !== "ttl_expired") throw new Error(`sandbox ${id} ended by ${machine.reason}`);
        overshoots.push(Date.parse(machine.ended_at ?? "") - (machine.deadline_unix_ms ?? Number.NaN));
        break;
      }
      await delay(100);
    }
  }
  const { p50, p99, max } = summarize(overshoots);
  const name = `ttl overshoot, ${SANDBOXES} sandboxes under load, server ${serverLives ? "alive" : "dead"}`;
  const ends = endsIn(instance.log("host"), new Set(ids));
  const part = (of: keyof End): number => summarize(ends.map((end) => end[of])).max;
  return [
    { name: `${name}: p50`, value: p50, unit: "ms" },
    {
      name: `${name}: p99`,
      value: p99,
      unit: "ms",
      most: MAX_P99_MS,
      against: "until its last process is gone",
    },
    { name: `${name}: max`, value: max, unit: "ms", most: MAX_MS },
    { name: `${name}: of that the end was begun late by at most`, value: part("dueForMs"), unit: "ms" },
    { name: `${name}: and its processes took to die at most`, value: part("deadAfterMs"), unit: "ms" },
    { name: `${name}: all traces were gone after at most`, value: part("durationMs"), unit: "ms" },
  ];
}

interface End {
  dueForMs: number;
  deadAfterMs: number;
  durationMs: number;
}

/** What the host wrote down of these ends. */
function endsIn(log: string, ids: ReadonlySet<string>): End[] {
  return log
    .split("\n")
    .filter((line) => line.includes('"machine.end"'))
    .map((line) => JSON.parse(line) as End & { sandboxId: string })
    .filter(({ sandboxId }) => ids.has(sandboxId));
}

const FAKE_LINE = /fake driver: overshoot p50 (\d+) ms, p99 (\d+) ms, max (\d+) ms/;

/** The same of 200 on a driver that runs nothing: what the host's own clocks and books make of it. */
export async function deadlineOvershootOf200(): Promise<Figure[]> {
  const root = fileURLToPath(new URL("../..", import.meta.url));
  const vitest = fileURLToPath(new URL("../../node_modules/vitest/vitest.mjs", import.meta.url));
  const suite = "host/test/machines-deadlines.test.ts";
  const { stdout } = await run(
    [process.execPath, vitest, "run", "--project", "unit", suite, "-t", "200 machines"],
    { cwd: root, env: { ...process.env, NO_COLOR: "1" }, timeoutMs: 120_000 },
  );
  const found = FAKE_LINE.exec(stdout);
  if (found === null) throw new Error(`${suite} printed no overshoot:\n${stdout}`);
  const [p50 = Number.NaN, p99 = Number.NaN, max = Number.NaN] = found.slice(1).map(Number);
  const name = "ttl overshoot, 200 sandboxes of a fake driver under load";
  return [
    { name: `${name}: p50`, value: p50, unit: "ms" },
    { name: `${name}: p99`, value: p99, unit: "ms", most: MAX_P99_MS },
    { name: `${name}: max`, value: max, unit: "ms", most: MAX_MS },
  ];
}
