import { CodedError } from "@torpor/protocol";
import type { Clock } from "@torpor/base";
import type { TenantScope } from "../auth/tenant-scope.ts";
import type { Sandboxes } from "../sandbox/sandboxes.ts";
import type { SandboxRecord } from "../store/sandbox-record.ts";
import { isPaused } from "./shown-e2b-sandbox.ts";

export interface LifecycleParts {
  sandboxes: Pick<Sandboxes, "require" | "requireLiving" | "follow" | "setLifecycle" | "move">;
  clock: Clock;
}

/** Puts the end off to `seconds` from now, if that is later than it is: never earlier. */
export async function extend(
  { sandboxes, clock }: LifecycleParts,
  scope: TenantScope,
  record: SandboxRecord,
  seconds: number,
): Promise<SandboxRecord> {
  // One without an end keeps having none.
  if (record.expiresAt === null && record.persistent) return record;
  if (record.expiresAt !== null && record.expiresAt >= clock.now() + seconds * 1_000) return record;
  return await sandboxes.setLifecycle(scope, record.id, { ttl_seconds: seconds });
}

/**
 * Makes sure that it runs, for `seconds` from now at least. What it is set to do at its timeout stays.
 *
 * @param options.withMemory false: one that is paused boots from its files. One that runs is left alone
 * @returns whether it had to be resumed
 * @throws CodedError sandbox_not_found, sandbox_ended, and what the host refused: it sleeps on then, or again
 */
export async function connect(
  parts: LifecycleParts,
  scope: TenantScope,
  id: string,
  { seconds, withMemory = true }: { seconds: number; withMemory?: boolean },
): Promise<{ record: SandboxRecord; isResumed: boolean }> {
  const { record } = await parts.sandboxes.requireLiving(scope, id);
  if (isPaused(record)) {
    let resumed = await resume(parts, scope, record, seconds);
    // Its image holds both in one: it is let go on for the moment that it takes to save the files alone.
    if (!withMemory && record.image?.memory !== false) {
      try {
        await parts.sandboxes.move(scope, id, "hibernate", false);
      } catch (error) {
        // Nobody is told that it runs: it would do so unseen, and be paid for.
        await parts.sandboxes.move(scope, id, "hibernate", true).catch(() => {}); // the first failure tells more
        throw error;
      }
      resumed = await parts.sandboxes.move(scope, id, "wake");
    }
    return { record: resumed, isResumed: true };
  }
  // It may be falling asleep, or have done so unseen: asked to wake, its host waits for that, and leaves one that runs alone.
  const awake = await parts.sandboxes.move(scope, id, "wake");
  return {
    record: await extend(parts, scope, awake, seconds),
    isResumed: awake.generation > record.generation,
  };
}

/** Wakes a sleeping one, for `seconds` from now. */
export async function resume(
  { sandboxes }: LifecycleParts,
  scope: TenantScope,
  record: SandboxRecord,
  seconds: number,
): Promise<SandboxRecord> {
  // Before the wake: its clock stands still until then, and what wakes must not find its time over.
  if (!record.persistent) await sandboxes.setLifecycle(scope, record.id, { ttl_seconds: seconds });
  return await sandboxes.move(scope, record.id, "wake");
}

/** @throws CodedError conflict for one that sleeps */
export function requireAwake(record: SandboxRecord): void {
  if (isPaused(record))
    throw new CodedError("conflict", `Sandbox "${record.id}" is paused; connect to it to resume it first`);
}
