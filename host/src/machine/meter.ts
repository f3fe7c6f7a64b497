import { type MachineMove, type MachineState, type MachineUse, NO_USE } from "@torpor/protocol";
import type { Driver, MachineHandle } from "../driver/driver.ts";
import type { MachineEntry } from "../journal.ts";
import type { Activity } from "./activity.ts";

/** The server reads them at every move, so it is never this far behind. */
const KEPT = 32;

/** Counters of one incarnation, as they stood when they were last read. */
interface Reading {
  cpuMs: number;
  inBytes: number;
  outBytes: number;
}

/** What the journal keeps of what a machine held and used. */
export interface MachineMeter {
  moves: MachineMove[];
  used: MachineUse;
  /** Null while it has no processes. */
  last: Reading | null;
  /** When it was last read or moved, Unix milliseconds. */
  at: number;
}

/** What a state means for what is metered; null for one that changes nothing. */
const METERED: Readonly<Record<MachineState, MachineMove["to"] | null>> = {
  creating: null,
  running: "running",
  paused: "paused",
  hibernating: "hibernating",
  hibernated: "hibernated",
  waking: null,
  snapshotting: null,
  failed: "failed",
  ending: "ending",
  ended: "ending",
};

/** A machine of an earlier version of the journal is metered from when it is first looked at. */
function meterOf(entry: MachineEntry, nowUnixMs: number): MachineMeter {
  entry.meter ??= { moves: [], used: { ...NO_USE }, last: null, at: nowUnixMs };
  return entry.meter;
}

/** Below this share of a core nothing is computed that anybody waits for; a runtime at rest takes a part of it. */
const IDLE_CORES = 0.1;

/**
 * Reads what a standing machine has used since; the first reading of an incarnation is where it begins.
 *
 * @param activity of its owner
 */
export function readMeter(
  entry: MachineEntry,
  handle: MachineHandle,
  driver: Pick<Driver, "stats" | "traffic">,
  activity: Pick<Activity, "lastAt" | "holds">,
  nowUnixMs: number,
): void {
  const meter = meterOf(entry, nowUnixMs);
  const { cpuMs, memoryPeakBytes } = driver.stats(handle);
  const reading = { cpuMs, ...driver.traffic(handle) };
  const { last, used } = meter;
  // A counter that cannot be read any more, since what it counts is gone, shows less than it did.
  const more = (name: keyof Reading): number => (last === null ? 0 : Math.max(0, reading[name] - last[name]));
  const seconds = Math.max(0, nowUnixMs - meter.at) / 1_000;
  const isIdle =
    last !== null &&
    meter.moves.at(-1)?.to === "running" &&
    activity.lastAt <= meter.at &&
    activity.holds.length === 0 &&
    more("cpuMs") / 1_000 <= seconds * IDLE_CORES;
  meter.used = {
    cpu_seconds: round(used.cpu_seconds + more("cpuMs") / 1_000),
    memory_peak_bytes: memoryPeakBytes > 0 ? memoryPeakBytes : used.memory_peak_bytes,
    network_in_bytes: used.network_in_bytes + more("inBytes"),
    network_out_bytes: used.network_out_bytes + more("outBytes"),
    idle_seconds: round(used.idle_seconds + (isIdle ? seconds : 0)),
  };
  meter.last = reading;
  meter.at = nowUnixMs;
}

/** Microseconds: sums of readings do not grow digits without end. */
const round = (seconds: number): number => Math.round(seconds * 1e6) / 1e6;

/**
 * Notes in a machine's entry that it holds something else from now on, if its state says so; called with every write of it.
 *
 * @param happenedAt Unix milliseconds, when that was before it was noticed
 */
export function noteMove(entry: MachineEntry, nowUnixMs: number, happenedAt = nowUnixMs): void {
  const to = METERED[entry.state];
  const meter = meterOf(entry, nowUnixMs);
  const before = meter.moves.at(-1);
  if (to === null || before?.to === to) return;
  const earliest = before === undefined ? entry.createdAt : Date.parse(before.at);
  const at = Math.max(earliest, Math.min(happenedAt, nowUnixMs)); // the wall clock may have been set back
  const move: MachineMove = {
    number: (before?.number ?? 0) + 1,
    to,
    at: new Date(at).toISOString(),
    image_bytes: to === "hibernated" ? (entry.image?.sizeBytes ?? 0) : 0,
    used: meter.used,
    noticed_after_ms: Math.max(0, nowUnixMs - at),
  };
  const stands = to === "running" || to === "paused";
  entry.meter = {
    ...meter,
    moves: [...meter.moves, move].slice(-KEPT),
    last: stands ? meter.last : null,
    at: nowUnixMs,
  };
}
