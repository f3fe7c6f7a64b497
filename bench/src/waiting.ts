import { setTimeout as delay } from "node:timers/promises";
import type { Instance } from "@torpor/test";

/** Waits until the template's pool is full again, empty processes included, so that nothing else runs. */
export async function poolFull(instance: Instance, template: string, emptyTarget = 2): Promise<void> {
  for (let tries = 0; tries < 600; tries++) {
    const { pool } = await instance.host.health();
    const mine = pool.find((candidate) => candidate.template === template);
    if (mine !== undefined && mine.ready >= mine.target && mine.empty >= emptyTarget) {
      await delay(300);
      return;
    }
    await delay(100);
  }
  throw new Error(`the pool of ${template} did not fill up within a minute`);
}
