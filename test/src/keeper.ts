/**
 * Ends the instances of a test process that dies: reads `watch` and `forget` lines on standard input, and when that
 * closes with instances still watched, removes them. Its own process group, so that ^C does not reach it.
 */
import { createInterface } from "node:readline";
import { type InstanceEnd, removeInstance } from "./end-instance.ts";

const watched = new Map<string, InstanceEnd>();
for await (const line of createInterface({ input: process.stdin })) {
  const { watch, forget } = JSON.parse(line) as { watch?: InstanceEnd; forget?: string };
  if (watch !== undefined) watched.set(watch.stateDir, watch);
  if (forget !== undefined) watched.delete(forget);
}
const outcomes = await Promise.allSettled([...watched.values()].map(removeInstance));
process.exit(outcomes.some((outcome) => outcome.status === "rejected") ? 1 : 0);
