import { eventually } from "./eventually.ts";
import type { Instance } from "./instance.ts";

export interface PoolFullOptions {
  /** Copies that are to wait at least, whatever else does. Default: as many as the pool keeps, and as many empty processes. */
  ready?: number;
  /** Default 60,000. */
  timeoutMs?: number;
}

/** Waits until a template's pool is full. @throws Error after the time is up, with what waits then */
export async function poolFull(
  instance: Instance,
  template: string,
  { ready, timeoutMs = 60_000 }: PoolFullOptions = {},
): Promise<void> {
  let seen: unknown;
  await eventually(
    () => `the pool of ${template} to be full; it is ${JSON.stringify(seen)}`,
    async () => {
      const mine = (await instance.host.health()).pool.find((pool) => pool.template === template);
      seen = mine;
      if (mine === undefined) return false;
      if (ready !== undefined) return mine.ready >= ready;
      return mine.ready >= mine.target && mine.empty === mine.empty_target;
    },
    timeoutMs,
  );
}
