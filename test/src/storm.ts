import { readdirSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { Journal, type MachineEntry } from "@torpor/host";
import type { HostFinding, Sandbox } from "@torpor/protocol";
import { eventually } from "./eventually.ts";
import type { Instance } from "./instance.ts";
import { runtimeProcesses } from "./sandbox-process.ts";

export interface StormOptions {
  /** Sandboxes made before it begins, in mixed states. */
  sandboxes: number;
  durationMs: number;
  /** The same seed kills the same things in the same order; what they were doing at that moment is up to the machine. */
  seed: number;
}

export interface StormOutcome {
  kills: { host: number; server: number; runtime: number };
  /** Sandboxes by what became of them: state and reason. */
  fates: Record<string, number>;
  /** That woke, or went on, with their files and processes. */
  unharmed: number;
  /** What must not be, one line each; empty when all is well. */
  wrongs: string[];
}

/** One of so many is not struck itself, only its host and server are. */
const SPARED_EACH = 3;
/** A runtime's death is in its sandbox's record by then. */
const TOLD_WITHIN_MS = 2000;
/** Where nothing is under way. */
const AT_REST = new Set<Sandbox["state"]>(["running", "paused", "hibernated", "failed", "destroyed"]);

/**
 * Makes sandboxes, uses them, and kills host, server and runtime processes with SIGKILL in random order meanwhile. Then looks
 * at what is left: every sandbox whose own runtime was not killed has its data, every one that has ended says why, and
 * nothing is in place that nobody owns. Ends all sandboxes.
 */
export async function storm(
  instance: Instance,
  { sandboxes, durationMs, seed }: StormOptions,
): Promise<StormOutcome> {
  const random = generator(seed);
  const ids = await makeAll(instance, sandboxes, random);
  const outcome: StormOutcome = {
    kills: { host: 0, server: 0, runtime: 0 },
    fates: {},
    unharmed: 0,
    wrongs: [],
  };
  const struckSlots = new Set<number>();
  // A storm that strikes all in the end would leave none whose data could be looked for.
  const spared = new Set(ids.filter((_, index) => index % SPARED_EACH === 0));
  const over = new AbortController();
  const work = Promise.all(Array.from({ length: 3 }, () => keepBusy(instance, ids, random, over.signal)));
  const endsAt = performance.now() + durationMs;
  while (performance.now() < endsAt) {
    await delay(300 + random() * 1500);
    // Looked up once a round, while the host lives: whoever opens the journal of a dead one sets it right in its place.
    const sparedSlots = slotsOf(instance, spared);
    const target = pick(["host", "server", "runtime", "runtime", "both"] as const, random);
    if (target === "runtime") {
      const slot = strikeRuntime(instance, random, sparedSlots);
      if (slot === undefined) continue;
      struckSlots.add(slot);
      outcome.kills.runtime += 1;
      continue;
    }
    const programs = target === "both" ? (["host", "server"] as const) : ([target] as const);
    for (const program of programs) {
      if (program === "host") await instance.killHost("SIGKILL");
      else await instance.killServer("SIGKILL");
      outcome.kills[program] += 1;
    }
    // A runtime may die while nobody looks after it.
    if (random() < 0.3) {
      const slot = strikeRuntime(instance, random, sparedSlots);
      if (slot !== undefined) {
        struckSlots.add(slot);
        outcome.kills.runtime += 1;
      }
    }
    await delay(random() * 800);
    for (const program of programs) {
      if (program === "host") await instance.startHost();
      else await instance.startServer();
    }
  }
  over.abort();
  await work;
  await delay(TOLD_WITHIN_MS);
  await judge(instance, ids, struckSlots, outcome);
  return outcome;
}

/** Of each ten: three asleep, two paused, three running and two that their ttl ends in the middle of it. */
async function makeAll(instance: Instance, count: number, random: () => number): Promise<string[]> {
  const ids: string[] = [];
  for (let index = 0; index < count; index += 1) {
    const kind = index % 10;
    const mortal = kind >= 8;
    const { id } = await instance.api.json<Sandbox>("/v1/sandboxes", {
      method: "POST",
      body: {
        template: "base",
        memory_mb: 256,
        ...(mortal
          ? { ttl_seconds: Math.ceil(5 + random() * 60) }
          : { persistent: true, tenant: "storm", idle_timeout_seconds: 3600 }),
      },
    });
    ids.push(id);
    await exec(instance, id, `echo ${id} > /workspace/mark; setsid sleep 1000000 > /dev/null 2>&1 &`);
    if (kind < 3) await move(instance, id, "hibernate");
    else if (kind < 5) await move(instance, id, "pause");
  }
  return ids;
}

/** Asks this and that of sandboxes. Whatever is refused or cut off is: the storm is about what is left. */
async function keepBusy(
  instance: Instance,
  ids: readonly string[],
  random: () => number,
  signal: AbortSignal,
): Promise<void> {
  while (!signal.aborted) {
    const id = pick(ids, random);
    const verb = pick(["exec", "hibernate", "wake", "pause", "resume", "list"] as const, random);
    try {
      if (verb === "exec") await exec(instance, id, "echo busy");
      else if (verb === "list") await instance.api.call("/v1/sandboxes?limit=100");
      else await move(instance, id, verb);
    } catch {
      // as said
    }
    await delay(50 + random() * 400);
  }
}

/** Kills a runtime process of the instance but in those slots; one that waits in a pool perhaps. @returns its slot */
function strikeRuntime(
  instance: Instance,
  random: () => number,
  sparedSlots: ReadonlySet<number>,
): number | undefined {
  const found = runtimeProcesses(instance).filter(({ slot }) => !sparedSlots.has(slot));
  if (found.length === 0) return undefined;
  const { pid, slot } = pick(found, random);
  try {
    process.kill(pid, "SIGKILL");
  } catch {
    return undefined; // it has just ended by itself
  }
  return slot;
}

async function judge(
  instance: Instance,
  ids: readonly string[],
  struckSlots: ReadonlySet<number>,
  outcome: StormOutcome,
): Promise<void> {
  const records = await eventually(
    "every sandbox to be at rest",
    async () => {
      const seen = await Promise.all(ids.map((id) => instance.api.json<Sandbox>(`/v1/sandboxes/${id}`)));
      return seen.every(({ state }) => AT_REST.has(state)) ? seen : undefined;
    },
    90_000,
  );
  const journalled = journal(instance);
  for (const record of records) {
    const fate = `${record.state}${record.reason === null ? "" : ` ${record.reason}`}`;
    outcome.fates[fate] = (outcome.fates[fate] ?? 0) + 1;
    const { id, state, reason } = record;
    if (state === "failed" || state === "destroyed") {
      const slot = journalled.get(id)?.slot;
      const isItsTime = reason === "ttl_expired" && record.expires_at !== null;
      const wasStruck =
        reason === "runtime_crashed" && (state === "destroyed" || (slot != null && struckSlots.has(slot)));
      if (!isItsTime && !wasStruck) outcome.wrongs.push(`${id} is ${fate}, though nothing was done to it`);
      continue;
    }
    try {
      if (state !== "running") await move(instance, id, "wake");
      const said = await exec(instance, id, "cat /workspace/mark; pgrep -c sleep");
      if (said !== `${id}\n1\n`)
        outcome.wrongs.push(`${id}, ${fate} after the storm, says ${JSON.stringify(said)}`);
      else outcome.unharmed += 1;
    } catch (error) {
      const { reason: since } = await instance.api.json<Sandbox>(`/v1/sandboxes/${id}`);
      if (since === "ttl_expired" && record.expires_at !== null) continue; // its time came just now
      outcome.wrongs.push(`${id}, ${fate} after the storm, cannot be used: ${String(error)}`);
    }
  }
  const known = new Set(ids);
  for (const { id, state } of await instance.host.list())
    if (!known.has(id)) outcome.wrongs.push(`machine ${id} is ${state} and nobody has a record of it`);
  for (const id of ids) await instance.api.call(`/v1/sandboxes/${id}`, { method: "DELETE" });
  let findings: HostFinding[] = [];
  await eventually(
    "nothing to be found amiss",
    async () => {
      findings = (await instance.host.http.json<{ findings: HostFinding[] }>("/v1/findings")).findings;
      return findings.length === 0;
    },
    70_000,
  ).catch(() => {});
  outcome.wrongs.push(...findings.map(({ kind, message }) => `${kind}: ${message}`));
  const images = (): string[] => readdirSync(join(instance.stateDir, "host", "images"));
  await eventually("the images to be freed", () => images().length === 0).catch(() => {});
  for (const image of images()) outcome.wrongs.push(`image ${image} is left`);
}

function slotsOf(instance: Instance, ids: ReadonlySet<string>): Set<number> {
  return new Set(
    [...journal(instance)].flatMap(([id, { slot }]) => (ids.has(id) && slot !== null ? [slot] : [])),
  );
}

function journal(instance: Instance): Map<string, MachineEntry> {
  const opened = new Journal(join(instance.stateDir, "host", "journal.sqlite"));
  try {
    return new Map(opened.living().entries.map((entry) => [entry.id, entry]));
  } finally {
    opened.close();
  }
}

async function exec(instance: Instance, id: string, cmd: string): Promise<string> {
  const { stdout } = await instance.api.json<{ stdout: string }>(`/v1/sandboxes/${id}/exec`, {
    method: "POST",
    body: { cmd, timeout_seconds: 30 },
  });
  return stdout;
}

async function move(
  instance: Instance,
  id: string,
  verb: "pause" | "resume" | "hibernate" | "wake",
): Promise<void> {
  await instance.api.json(`/v1/sandboxes/${id}/${verb}`, { method: "POST" });
}

function pick<T>(from: readonly T[], random: () => number): T {
  const picked = from[Math.floor(random() * from.length)];
  if (picked === undefined) throw new Error("there is nothing to pick from");
  return picked;
}

/** Numbers from 0 to 1 that a seed fixes (mulberry32). */
function generator(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296;
  };
}
