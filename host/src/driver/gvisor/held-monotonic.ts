import { open } from "node:fs/promises";
import {
  byteCount,
  frames,
  int,
  type NumberAt,
  StateReader,
  TAG,
  TYPE_SPEC,
  type TypeTable,
  typeTable,
  uint,
} from "./state-frames.ts";

/**
 * gVisor moves the monotonic clock of what it restores on by the time that has passed since the checkpoint: what waits for
 * half a minute ends at once after a night on disk, and every overdue tick comes in a burst. It does so by the real time that
 * is in the image, and when that lies in the future, by nothing: monotonic time then stands still while a machine sleeps, as
 * on a laptop under Linux. So that number is set to one far ahead.
 *
 * A relative sleep on the real-time clock, as that of coreutils' `sleep` and of C's sleep(), Linux measures by monotonic time,
 * gVisor by real time. A checkpoint interrupts every sleep, and the image has what is to be done to go on with it: the clock,
 * the moment of its end, and where what is left is told. So clock and moment are set to the monotonic ones. A sleep until a
 * moment (TIMER_ABSTIME) is begun anew instead and is not among these; nor are timers (timer_create, timerfd), of
 * which the image does not say whether they were set for a moment or a while: they are due as ever.
 */

const TIMEKEEPER = "pkg/sentry/kernel.Timekeeper";
/** The structures as they must be described: only a runtime that has these very fields is known to. */
const KNOWN = {
  timekeeper: `${TIMEKEEPER}(realtimeClock, monotonicClock, bootTime, saveMonotonic, saveRealtime)`,
  clock: "pkg/sentry/kernel.timekeeperClock(tk, c)",
  time: "pkg/sentry/kernel/time.Time(ns)",
  sleep: "pkg/sentry/syscalls/linux.clockNanosleepRestartBlock(c, end, rem)",
} as const;

/** In the year 2115. Nanoseconds since 1970. */
const FAR_AHEAD_NS = 4_600_000_000_000_000_000n;
/** States are a few megabytes; memory is in other files. */
const MAX_STATE_BYTES = 256 * 1024 * 1024;
const NS_PER_MS = 1_000_000n;
/** How far the readings of two clocks at one moment may be apart. */
const TOLERANCE_NS = 1_000_000_000n;

/** Bytes to put over those at a position. */
interface Edit {
  position: number;
  bytes: Buffer;
}

/** The runtime's clocks as a checkpoint found them: how they are referred to, and what they showed. */
interface Timekeeper {
  realtimeRef: NumberAt;
  monotonicRef: NumberAt;
  monotonic: NumberAt;
  realtime: NumberAt;
}

/**
 * Makes monotonic time, and what is measured by it, stand still between a checkpoint and what is restored from it.
 *
 * @param statePath the image's state file, uncompressed
 * @param between when the checkpoint was made: Unix milliseconds before and after
 * @returns false when the clocks are not found for certain, exactly once; the file is as it was then
 */
export async function holdMonotonic(
  statePath: string,
  between: { fromMs: number; toMs: number },
): Promise<boolean> {
  const file = await open(statePath, "r+");
  try {
    const { size } = await file.stat();
    if (size > MAX_STATE_BYTES) return false;
    const buffer = Buffer.allocUnsafe(size);
    const { bytesRead } = await file.read(buffer, 0, size, 0);
    const state = buffer.subarray(0, bytesRead);
    const table = typeTable(state, TIMEKEEPER);
    const timekeeper = table && timekeeperIn(state, table, between);
    if (table === undefined || timekeeper === undefined) return false;
    const { realtime } = timekeeper;
    const hold = { position: realtime.start, bytes: int(FAR_AHEAD_NS, byteCount(realtime)) };
    for (const { position, bytes } of [hold, ...heldSleeps(state, table, timekeeper)])
      await file.write(bytes, 0, bytes.length, position);
    return true;
  } finally {
    await file.close();
  }
}

function timekeeperIn(
  state: Buffer,
  { types, end }: TypeTable,
  { fromMs, toMs }: { fromMs: number; toMs: number },
): Timekeeper | undefined {
  const type = types.get(KNOWN.timekeeper);
  const time = types.get(KNOWN.time);
  if (type === undefined || time === undefined) return undefined;
  const from = BigInt(Math.floor(fromMs)) * NS_PER_MS;
  const to = BigInt(Math.ceil(toMs)) * NS_PER_MS;
  const beginning = Buffer.concat([frames(TAG.struct), uint(type), frames(TAG.fields, 5)]);
  const found: Timekeeper[] = [];
  for (const start of positions(state, beginning, end)) {
    const read = new StateReader(state, start);
    const realtimeRef = read.past(frames(TAG.ref)).uint();
    const monotonicRef = read.past(frames(0, TAG.ref)).uint();
    const boot = read.past(Buffer.concat([frames(0, TAG.struct), uint(time), frames(TAG.int)])).int();
    const monotonic = read.past(frames(TAG.int)).int();
    const realtime = read.past(frames(TAG.int)).int();
    if (!realtimeRef || !monotonicRef || !boot || !monotonic || !realtime) continue;
    const isNow = realtime.value >= from && realtime.value <= to;
    // The machine has run for that long at most since then; it may have slept too.
    const isPlausible = boot.value > 0n && monotonic.value > 0n && boot.value <= realtime.value;
    if (isNow && isPlausible && monotonic.value <= realtime.value - boot.value + TOLERANCE_NS)
      found.push({ realtimeRef, monotonicRef, monotonic, realtime });
  }
  return found.length === 1 ? found[0] : undefined;
}

/** What makes each relative sleep on the real-time clock one on the monotonic clock. */
function* heldSleeps(
  state: Buffer,
  { types, end }: TypeTable,
  { realtimeRef, monotonicRef, monotonic, realtime }: Timekeeper,
): Iterable<Edit> {
  const type = types.get(KNOWN.sleep);
  const clock = types.get(KNOWN.clock);
  const time = types.get(KNOWN.time);
  if (type === undefined || clock === undefined || time === undefined) return; // nobody sleeps
  const clockIs = Buffer.concat([
    frames(TAG.struct),
    uint(type),
    frames(TAG.fields, 3, TAG.interface, TYPE_SPEC.pointer, TYPE_SPEC.id),
    uint(clock),
    frames(TAG.ref),
  ]);
  const endIs = Buffer.concat([frames(0, TAG.struct), uint(time), frames(TAG.int)]);
  const realtimeClock = uint(realtimeRef.value);
  const monotonicClock = uint(monotonicRef.value, byteCount(realtimeRef));
  for (const position of positions(state, Buffer.concat([clockIs, realtimeClock, endIs]), end)) {
    const read = new StateReader(state, position);
    const over = read.int();
    // What is left is told at an address, or to nobody.
    if (over === undefined || (!read.is(frames(TAG.zero)) && !read.is(frames(TAG.uint)))) continue;
    const bytes = Buffer.concat([
      monotonicClock,
      endIs,
      int(over.value - realtime.value + monotonic.value, byteCount(over)),
    ]);
    const edited = position - endIs.length - realtimeClock.length;
    // Monotonic times and references are never longer than the real ones but for a rare pair of references.
    if (edited + bytes.length === over.end) yield { position: edited, bytes };
  }
}

/** Where each of the places ends at which these bytes stand. */
function* positions(state: Buffer, bytes: Buffer, from: number): Iterable<number> {
  for (let at = state.indexOf(bytes, from); at !== -1; at = state.indexOf(bytes, at + 1))
    yield at + bytes.length;
}
