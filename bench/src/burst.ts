import { Sandbox } from "@torpor/sdk";
import type { Instance } from "@torpor/test";
import { type Figure, summarize } from "./figures.ts";
import { poolAtRest } from "./waiting.ts";

const BURST = 32;

/** 32 creates asked for at once; each must then run a command. */
export async function burstOfCreates(instance: Instance, template: string): Promise<Figure[]> {
  await poolAtRest(instance, template);
  const readings: number[] = [];
  const outcomes = await Promise.allSettled(
    Array.from({ length: BURST }, async (_, index) => {
      const startedAt = performance.now();
      const sandbox = await Sandbox.create({ url: instance.url, apiKey: instance.apiKey, template });
      const { stdout } = await sandbox.exec(`echo ${index}`);
      readings.push(performance.now() - startedAt);
      await sandbox.destroy();
      if (stdout.trim() !== String(index))
        throw new Error(`sandbox ${index} printed ${JSON.stringify(stdout)}`);
    }),
  );
  const failed = outcomes.filter((outcome) => outcome.status === "rejected");
  for (const outcome of failed) process.stderr.write(`burst: ${String(outcome.reason)}\n`);
  const { p50, max } = summarize(readings);
  return [
    { name: `${BURST} creates at once: failed`, value: failed.length, unit: "", most: 0 },
    { name: `${BURST} creates at once: create to first output, p50`, value: p50, unit: "ms" },
    { name: `${BURST} creates at once: the last one`, value: max, unit: "ms" },
  ];
}
