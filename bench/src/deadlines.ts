import { setTimeout as delay } from "node:timers/promises";
import { Sandbox } from "@torpor/sdk";
import type { Instance } from "@torpor/test";
import { type Figure, summarize } from "./figures.ts";

const SANDBOXES = 20;
const LEAST_TTL_SECONDS = 12;
/** Their deadlines are spread over this time, at random. */
const SPREAD_SECONDS = 10;

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
  return [
    { name: `${name}: p50`, value: p50, unit: "ms" },
    { name: `${name}: p99`, value: p99, unit: "ms", most: 250, against: "until its last process is gone" },
    { name: `${name}: max`, value: max, unit: "ms", most: 1000 },
  ];
}
