import { setTimeout as delay } from "node:timers/promises";
import type { Instance } from "@torpor/test";

/** Waits until the template's pool is full again, so that the next create is a hit and nothing else runs. */
export async function poolFull(instance: Instance, template: string): Promise<void> {
  for (let tries = 0; tries < 600; tries++) {
    const { pool } = await instance.host.health();
    const mine = pool.find((candidate) => candidate.template === template);
    if (mine !== undefined && mine.ready >= Math.min(mine.target, 3)) {
      await delay(900); // the empty processes behind it are made next
      return;
    }
    await delay(100);
  }
  throw new Error(`the pool of ${template} did not fill up within a minute`);
}
