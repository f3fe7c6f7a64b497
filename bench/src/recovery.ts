import { setTimeout as delay } from "node:timers/promises";
import type { Machine } from "@torpor/protocol";
import type { Instance } from "@torpor/test";
import type { Figure } from "./figures.ts";
import { cpuMs, processCpuMs } from "./idle.ts";

const MACHINES = 30;
const ASKED_EVERY_MS = 10_000;
const STRETCH_MS = 5000;
const QUESTIONS = 500;

/** From the start of a host's process, after kill -9, until it serves 30 machines, and until each has run a command. */
export async function hostRecovery(instance: Instance): Promise<Figure[]> {
  const machines: Machine[] = [];
  for (let made = 0; made < MACHINES; made += 5)
    machines.push(
      ...(await Promise.all(Array.from({ length: 5 }, () => instance.host.create({ memory_mb: 256 })))),
    );
  await instance.killHost("SIGKILL");
  const startedAt = performance.now();
  await instance.startHost();
  const servesMs = performance.now() - startedAt;
  const names = await Promise.all(machines.map(({ id }) => instance.host.output(id, "hostname")));
  const usableMs = performance.now() - startedAt;
  if (names.join() !== machines.map(({ id }) => id).join()) throw new Error("not all machines came back");
  const line = instance
    .log("host")
    .trim()
    .split("\n")
    .findLast((text) => text.includes('"op":"host.start"'));
  const { durationMs } = JSON.parse(line ?? "{}") as { durationMs: number };
  await instance.host.endAll();
  return [
    { name: `host back to ${MACHINES} machines: serves`, value: servesMs, unit: "ms", most: 5000 },
    { name: "  of which its own start-up, loading left out", value: durationMs, unit: "ms" },
    { name: "  all have run a command", value: usableMs, unit: "ms", most: 5000 },
  ];
}

/** What the watch on an idle sandbox's agent costs in all, sandbox and host: many questions at once, spread over the time between two. */
export async function agentQuestions(instance: Instance): Promise<Figure[]> {
  const { id } = await instance.host.create({ memory_mb: 256 });
  const ask = (): Promise<unknown> =>
    instance.host.call(`/v1/machines/${id}/ports/49983/health`, { headers: { "x-torpor-passive": "1" } });
  await ask();
  await delay(2000);
  const usage = (): number => cpuMs(instance, id) + processCpuMs(instance.hostPid);
  const idleBefore = usage();
  await delay(STRETCH_MS);
  const idleMsPerMs = (usage() - idleBefore) / STRETCH_MS;
  const [before, startedAt] = [usage(), performance.now()];
  for (let asked = 0; asked < QUESTIONS; asked++) await ask();
  const perQuestionMs = (usage() - before - idleMsPerMs * (performance.now() - startedAt)) / QUESTIONS;
  await instance.host.end(id);
  return [
    {
      name: "watch on a sandbox's agent: CPU of sandbox and host",
      value: (100 * perQuestionMs) / ASKED_EVERY_MS,
      unit: "% of a core",
      most: 0.1,
      against: `${perQuestionMs.toFixed(2)} ms a question, one every ${ASKED_EVERY_MS / 1000} s`,
    },
  ];
}
