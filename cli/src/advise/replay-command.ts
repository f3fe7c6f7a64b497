import { createReadStream } from "node:fs";
import { writeFile } from "node:fs/promises";
import { createInterface } from "node:readline";
import type { Advice } from "@torpor/sdk";
import {
  CodedError,
  estimate,
  type Machinery,
  POLICIES,
  TraceReader,
  type Use,
  usesByTenant,
  windowOf,
} from "@torpor/protocol";
import { clientFor } from "../api/client.ts";
import type { Invocation } from "../context.ts";
import { UsageError } from "../failure.ts";
import { formatDuration } from "../output/quantities.ts";
import { renderTable } from "../output/table.ts";
import { recordedUses } from "./recorded-uses.ts";
import { formatMoney, formatWait } from "./render-advice.ts";
import { replayChart } from "./replay-chart.ts";

/** What a trace came to under one policy. */
interface ReplayedPolicy {
  policy: string;
  label: string;
  cost: number;
  cold_starts: number;
  wakes: number;
  wait_p50_ms: number;
  wait_p95_ms: number;
}

/** A trace played through every policy. */
export interface Replay {
  /** For a person: a file, or whose use it was. */
  source: string;
  uses: number;
  tenants: number;
  from: string;
  to: string;
  currency: string;
  policies: ReplayedPolicy[];
  /** The policy that costs least. */
  cheapest: string;
}

/** Plays a trace, or what a tenant did, through every policy with the sizes, times and prices of `advice`. */
export async function replay(
  invocation: Invocation,
  flags: { replay?: string | true; tenant?: string; chart?: string },
  { facts }: Advice,
): Promise<void> {
  const { source, uses } = await usesOf(invocation, flags);
  const window = windowOf(uses);
  if (window === undefined) throw new CodedError("invalid_request", `${source} has no uses to replay`);
  const tenants = usesByTenant(uses);
  const { prices } = facts;
  const machinery: Machinery = {
    cpu: facts.cpu,
    memory_mb: facts.memoryMb,
    disk_mb: facts.diskMb,
    image_bytes: facts.imageBytes.value,
    create_seconds: facts.createSeconds.value,
    setup_seconds: facts.setupSeconds,
    hibernate_seconds: facts.hibernateSeconds.value,
    wake_seconds: facts.wakeSeconds.value,
  };
  const charged = {
    currency: prices.currency,
    vcpu_hour: prices.vcpuHour,
    memory_gib_hour: prices.memoryGibHour,
    disk_gib_month: prices.diskGibMonth,
    image_gib_month: prices.imageGibMonth,
  };
  // Long enough for the last use to end under every policy, however long it waited.
  const waitMs = (machinery.create_seconds + machinery.setup_seconds + machinery.wake_seconds) * 1_000 + 1;
  const counted = { from_ms: window.from_ms, to_ms: window.to_ms + waitMs };
  const policies = POLICIES.map((policy): ReplayedPolicy => {
    const found = estimate(tenants, policy, machinery, charged, counted);
    const { cost, cold_starts, wakes, wait_p50_ms, wait_p95_ms } = found;
    return { policy: policy.name, label: policy.label, cost, cold_starts, wakes, wait_p50_ms, wait_p95_ms };
  });
  const cheapest = policies.reduce((best, one) => (one.cost < best.cost ? one : best));
  const played: Replay = {
    source,
    uses: uses.length,
    tenants: tenants.size,
    from: new Date(window.from_ms).toISOString(),
    to: new Date(window.to_ms).toISOString(),
    currency: prices.currency,
    policies,
    cheapest: cheapest.policy,
  };
  if (flags.chart !== undefined) {
    await writeFile(flags.chart, replayChart(played)).catch((error: unknown) => {
      throw new CodedError(
        "invalid_request",
        `the chart cannot be written to ${flags.chart ?? ""}: ${String(error)}`,
      );
    });
    invocation.note(`chart written to ${flags.chart}`);
  }
  invocation.answer(played, () => renderReplay(played, window.to_ms - window.from_ms));
}

async function usesOf(
  invocation: Invocation,
  { replay: file, tenant }: { replay?: string | true; tenant?: string },
): Promise<{ source: string; uses: Use[] }> {
  if (typeof file === "string") {
    if (tenant !== undefined) throw new UsageError("--replay takes a trace or --tenant, not both");
    return { source: file, uses: await readTrace(file) };
  }
  if (tenant === undefined)
    throw new UsageError(
      "--replay needs a trace (time,duration,tenant), or --tenant to play what that one did",
    );
  return { source: `tenant ${tenant}`, uses: await recordedUses(clientFor(invocation), tenant) };
}

async function readTrace(file: string): Promise<Use[]> {
  const reader = new TraceReader(file);
  try {
    for await (const line of createInterface({ input: createReadStream(file), crlfDelay: Infinity }))
      reader.line(line);
  } catch (error) {
    throw new CodedError("invalid_request", `the trace ${file} cannot be read: ${String(error)}`);
  }
  return reader.finish();
}

function renderReplay(
  { source, uses, tenants, currency, policies, cheapest }: Replay,
  spanMs: number,
): string {
  const rows = policies.map((one) => [
    one.policy === cheapest ? ">" : "",
    one.label,
    formatMoney(one.cost, currency),
    String(one.cold_starts),
    String(one.wakes),
    formatWait(one.wait_p50_ms),
    formatWait(one.wait_p95_ms),
  ]);
  const people = `${tenants} tenant${tenants === 1 ? "" : "s"}`;
  return [
    `${source}: ${uses} uses of ${people} in ${formatDuration(spanMs)}`,
    "",
    renderTable(["", "POLICY", "COST", "COLD STARTS", "WAKES", "WAIT P50", "P95"], rows),
    "",
    "> costs least; what a wait is worth is yours to say",
  ].join("\n");
}
