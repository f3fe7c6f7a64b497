import { eventually } from "./eventually.ts";
import type { Instance } from "./instance.ts";

export interface PoolFullOptions {
  /** Copies that are to wait at least. Default: as many as the pool keeps. */
  ready?: number;
  /** Empty processes that are to wait beside them. Default 0. */
  empty?: number;
  /** Default 60,000. */
  timeoutMs?: number;
}

/** Waits until a template's pool is full. @throws Error after the time is up, with what waits then */
export async function poolFull(
  instance: Instance,
  template: string,
  { ready, empty = 0, timeoutMs = 60_000 }: PoolFullOptions = {},
): Promise<void> {
  let seen: unknown;
  await eventually(
    () => `the pool of ${template} to be full; it is ${JSON.stringify(seen)}`,
    async () => {
      const mine = (await instance.host.health()).pool.find((pool) => pool.template === template);
      seen = mine;
      return mine !== undefined && mine.ready >= (ready ?? mine.target) && mine.empty >= empty;
    },
    timeoutMs,
  );
}
