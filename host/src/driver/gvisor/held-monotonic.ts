import {
  byteCount,
  type Edit,
  frames,
  int,
  type NumberAt,
  positions,
  StateReader,
  TAG,
  TYPE_SPEC,
  type TypeTable,
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

/** Stands in the table of types that the clocks are in. */
export const TIMEKEEPER = "pkg/sentry/kernel.Timekeeper";
/** The structures as they must be described: only a runtime that has these very fields is known to. */
const KNOWN = {
  timekeeper: `${TIMEKEEPER}(realtimeClock, monotonicClock, bootTime, saveMonotonic, saveRealtime)`,
  clock: "pkg/sentry/kernel.timekeeperClock(tk, c)",
  time: "pkg/sentry/kernel/time.Time(ns)",
  sleep: "pkg/sentry/syscalls/linux.clockNanosleepRestartBlock(c, end, rem)",
} as const;

/** In the year 2115. Nanoseconds since 1970. */
const FAR_AHEAD_NS = 4_600_000_000_000_000_000n;
const NS_PER_MS = 1_000_000n;
/** How far the readings of two clocks at one moment may be apart. */
const TOLERANCE_NS = 1_000_000_000n;

/** The runtime's clocks as a checkpoint found them: how they are referred to, and what they showed. */
interface Timekeeper {
  realtimeRef: NumberAt;
  monotonicRef: NumberAt;
  monotonic: NumberAt;
  realtime: NumberAt;
}

/**
 * What makes monotonic time, and what is measured by it, stand still between a checkpoint and what is restored from it.
 *
 * @param between when the checkpoint was made: Unix milliseconds before and after
 * @returns undefined when the clocks are not found for certain, exactly once
 */
export function heldMonotonic(
  state: Buffer,
  table: TypeTable,
  between: { fromMs: number; toMs: number },
): Edit[] | undefined {
  const timekeeper = timekeeperIn(state, table, between);
  if (timekeeper === undefined) return undefined;
  const { realtime } = timekeeper;
  const hold = { position: realtime.start, bytes: int(FAR_AHEAD_NS, byteCount(realtime)) };
  return [hold, ...heldSleeps(state, table, timekeeper)];
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
