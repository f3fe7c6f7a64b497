import type { MeteredState, UsageGroup, UsageItem } from "@torpor/protocol";
import type { UsageIntervalTable } from "../store/schema.ts";

/** Of everything in one state for one combination of what is grouped by; amounts are each times the seconds. */
export interface UsagePart {
  account: string;
  tenant: string;
  template: string;
  sandbox_id: string;
  day?: string;
  state: MeteredState;
  seconds: number;
  cpu: number;
  memory_mb: number;
  disk_mb: number;
  image_bytes: number;
  cpu_seconds: number;
  memory_peak_bytes: number;
  network_in_bytes: number;
  network_out_bytes: number;
  idle_seconds: number;
  idle_cpu: number;
  idle_memory_mb: number;
  idle_disk_mb: number;
  uncertain_ms: number;
}

/** What an interval holds while it lasts. */
export type HeldInterval = Omit<UsageIntervalTable, "number" | "uncertain_ms">;

export const DAY_MS = 86_400_000;

/** Name of a day, given in days since 1970, UTC. */
export const dayName = (day: number): string => new Date(day * DAY_MS).toISOString().slice(0, 10);

/** The part of an interval that lies within a time, if there is one. As the database does it for those that are over. */
export function clipped(interval: HeldInterval, from: number, to: number): UsagePart[] {
  const wholeMs = interval.to_at - interval.from_at;
  const partMs = Math.min(interval.to_at, to) - Math.max(interval.from_at, from);
  if (partMs <= 0) return [];
  const { account, tenant, template, sandbox_id: sandboxId, state, cpu, memory_mb: memoryMb } = interval;
  const [seconds, share] = [partMs / 1_000, partMs / wholeMs];
  const idle = interval.idle_seconds * share;
  const part: UsagePart = {
    account,
    tenant,
    template,
    sandbox_id: sandboxId,
    state,
    seconds,
    cpu: cpu * seconds,
    memory_mb: memoryMb * seconds,
    disk_mb: interval.disk_mb * seconds,
    image_bytes: interval.image_bytes * seconds,
    cpu_seconds: interval.cpu_seconds * share,
    memory_peak_bytes: interval.memory_peak_bytes,
    network_in_bytes: interval.network_in_bytes * share,
    network_out_bytes: interval.network_out_bytes * share,
    idle_seconds: idle,
    idle_cpu: cpu * idle,
    idle_memory_mb: memoryMb * idle,
    idle_disk_mb: interval.disk_mb * idle,
    uncertain_ms: 0,
  };
  return [part];
}

/** The parts of an interval that lie within a time, one for each day. */
export function clippedByDay(interval: HeldInterval, from: number, to: number): UsagePart[] {
  const parts: UsagePart[] = [];
  const end = Math.min(interval.to_at, to);
  for (let day = Math.floor(Math.max(interval.from_at, from) / DAY_MS); day * DAY_MS < end; day += 1) {
    for (const part of clipped(interval, Math.max(day * DAY_MS, from), Math.min((day + 1) * DAY_MS, to)))
      parts.push({ ...part, day: dayName(day) });
  }
  return parts;
}

/** What tells the group of a part. */
export function keysOf(part: UsagePart, groupBy: readonly UsageGroup[]): Partial<UsageItem> {
  const keys: Partial<UsageItem> = {};
  for (const group of groupBy) {
    if (group === "account") keys.account = part.account;
    else if (group === "tenant") keys.tenant = part.tenant;
    else if (group === "template") keys.template = part.template;
    else if (group === "sandbox") keys.sandbox_id = part.sandbox_id;
    else if (group === "day") keys.day = part.day ?? "";
    else keys.state = part.state;
  }
  return keys;
}
