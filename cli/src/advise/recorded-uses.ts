import type { SandboxEvent, Torpor } from "@torpor/sdk";
import type { Use } from "@torpor/protocol";

/** What a tenant did, from the events that are kept (7 days), as {@link usesFromEvents} reads them. */
export async function recordedUses(client: Torpor, tenant: string): Promise<Use[]> {
  const idleMs = new Map<string, number>();
  for (const state of [undefined, "destroyed"] as const)
    for await (const { id, info } of client.sandboxes.list({ tenant, state }))
      idleMs.set(id, (info.idleTimeoutSeconds ?? 0) * 1_000);
  const events: SandboxEvent[] = [];
  for await (const event of client.events({ tenant, after: "oldest", follow: false })) events.push(event);
  return usesFromEvents(events, idleMs, Date.now());
}

/**
 * A use for each time that a sandbox was awake. One that fell asleep by its idle timeout was not used for as long; gaps
 * shorter than that are not in the events, and count as use.
 *
 * @param idleMs the idle timeout of each sandbox
 * @param now until when one counts that is awake still
 */
export function usesFromEvents(
  events: readonly Pick<SandboxEvent, "type" | "sandboxId" | "at" | "reason" | "tenant">[],
  idleMs: ReadonlyMap<string, number>,
  now: number,
): Use[] {
  const uses: Use[] = [];
  const awake = new Map<string, { since: number; tenant: string }>();
  for (const { type, sandboxId, at, reason, tenant } of events) {
    if (sandboxId === null || tenant === null) continue; // not of a sandbox
    const when = at.getTime();
    const was = awake.get(sandboxId);
    if (type === "sandbox.running" && was === undefined) awake.set(sandboxId, { since: when, tenant });
    const sleeps = type === "sandbox.hibernated" || type === "sandbox.paused";
    if (was === undefined || !(sleeps || type === "sandbox.destroying" || type === "sandbox.failed"))
      continue;
    awake.delete(sandboxId);
    const idle = idleMs.get(sandboxId) ?? 0;
    const spanMs = when - was.since;
    // Awake for less than its timeout, it was put to sleep by somebody.
    const isIdle = (sleeps || reason === "idle") && spanMs > idle;
    uses.push({
      at_ms: was.since,
      duration_ms: Math.max(0, isIdle ? spanMs - idle : spanMs),
      tenant: was.tenant,
    });
  }
  for (const { since, tenant } of awake.values())
    uses.push({ at_ms: since, duration_ms: Math.max(0, now - since), tenant });
  return uses;
}
