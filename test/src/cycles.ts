import type { Sandbox } from "@torpor/protocol";
import { eventually } from "./eventually.ts";
import { type Footprint, footprint } from "./footprint.ts";
import type { Instance } from "./instance.ts";

/** Before the first look: what is opened once and kept is open then, and the programs have their usual size. */
const WARM_UP = 15;
/** Asked for at once. */
const WIDTH = 3;

/** Makes, uses and destroys sandboxes through the API, every fifth one asleep in between. @returns the footprint before and after */
export async function cycles(
  instance: Instance,
  count: number,
): Promise<{ before: Footprint; after: Footprint }> {
  await turn(instance, WARM_UP);
  const before = await atRest(instance);
  await turn(instance, count);
  return { before, after: await atRest(instance) };
}

async function turn(instance: Instance, count: number): Promise<void> {
  let begun = 0;
  const worker = async (): Promise<void> => {
    while (begun < count) {
      const number = begun++;
      const { id } = await instance.api.json<Sandbox>("/v1/sandboxes", {
        method: "POST",
        body: { template: "base", persistent: true, tenant: "cycles", memory_mb: 256 },
      });
      const body = { cmd: `echo ${number}` };
      const { stdout } = await instance.api.json<{ stdout: string }>(`/v1/sandboxes/${id}/exec`, {
        method: "POST",
        body,
      });
      if (stdout !== `${number}\n`) throw new Error(`sandbox ${id} said ${JSON.stringify(stdout)}`);
      if (number % 5 === 0) await instance.api.json(`/v1/sandboxes/${id}/hibernate`, { method: "POST" });
      await instance.api.json(`/v1/sandboxes/${id}`, { method: "DELETE" });
    }
  };
  await Promise.all(Array.from({ length: WIDTH }, worker));
}

/** The footprint once nothing is being made or cleared away. For an instance without a pool. */
async function atRest(instance: Instance): Promise<Footprint> {
  let last: Footprint | undefined;
  return eventually(
    "the instance to be at rest",
    async () => {
      await new Promise((resolve) => setTimeout(resolve, 1500));
      const seen = await footprint(instance);
      const settled = last !== undefined && steady(last, seen);
      last = seen;
      return settled ? seen : undefined;
    },
    120_000,
  );
}

/** Whether all is the same but for memory, which breathes. */
function steady(one: Footprint, other: Footprint): boolean {
  return (Object.keys(one) as (keyof Footprint)[]).every(
    (kind) => kind.endsWith("Mib") || one[kind] === other[kind],
  );
}
