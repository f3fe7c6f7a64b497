import { setTimeout as delay } from "node:timers/promises";
import { type Instance, poolFull } from "@torpor/test";

/** Waits until the template's pool is full, empty processes included, and a moment more, so that nothing else runs. */
export async function poolAtRest(instance: Instance, template: string): Promise<void> {
  await poolFull(instance, template);
  await delay(300);
}
