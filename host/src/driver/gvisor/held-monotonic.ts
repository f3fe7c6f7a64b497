import { open } from "node:fs/promises";

/**
 * gVisor moves the monotonic clock of what it restores on by the time that has passed since the checkpoint: a `sleep 30`
 * ends at once after a night on disk, and every overdue tick comes in a burst. It does so by the real time that is in the
 * image, and when that lies in the future, by nothing: monotonic time then stands still while a machine sleeps, as on a
 * laptop under Linux. So that number is set to one far ahead. Timers on the real-time clock are due as ever.
 *
 * The state is a sequence of frames, a length of four bytes and as many bytes; its numbers are zigzag varints, each byte
 * of which is a frame. (pkg/compressio without compression, pkg/state/wire, and kernel.Timekeeper of gVisor 20240729.)
 */

/** How the image describes the structure that is looked for: only a runtime that has these very fields is known to. */
const TIMEKEEPER = Buffer.concat([
  ...text("pkg/sentry/kernel.Timekeeper"),
  frame(5),
  ...["realtimeClock", "monotonicClock", "bootTime", "saveMonotonic", "saveRealtime"].flatMap(text),
]);

/** In the year 2115: as many bytes as a time of this century. Nanoseconds since 1970. */
const FAR_AHEAD_NS = 4_600_000_000_000_000_000n;
const VARINT_BYTES = 9;
const FRAME_BYTES = 5;
/** Type of a signed number in the image. */
const INT = 1;
/** States are a few megabytes; memory is in other files. */
const MAX_STATE_BYTES = 256 * 1024 * 1024;
const NS_PER_MS = 1_000_000n;

/**
 * Makes monotonic time stand still between a checkpoint and what is restored from it.
 *
 * @param statePath the image's state file, uncompressed
 * @param between when the checkpoint was made: Unix milliseconds before and after
 * @returns false when the number is not found for certain, exactly once; the file is as it was then
 */
export async function holdMonotonic(
  statePath: string,
  between: { fromMs: number; toMs: number },
): Promise<boolean> {
  const file = await open(statePath, "r+");
  try {
    const { size } = await file.stat();
    if (size > MAX_STATE_BYTES) return false;
    const state = Buffer.allocUnsafe(size);
    const { bytesRead } = await file.read(state, 0, size, 0);
    const position = savedRealtimeAt(state.subarray(0, bytesRead), between);
    if (position === undefined) return false;
    await file.write(framedVarint(FAR_AHEAD_NS), 0, VARINT_BYTES * FRAME_BYTES, position);
    return true;
  } finally {
    await file.close();
  }
}

/** Where the frames of the saved real time begin. */
function savedRealtimeAt(
  state: Buffer,
  { fromMs, toMs }: { fromMs: number; toMs: number },
): number | undefined {
  if (state.indexOf(TIMEKEEPER) === -1) return undefined;
  const from = BigInt(Math.floor(fromMs)) * NS_PER_MS;
  const to = BigInt(Math.ceil(toMs)) * NS_PER_MS;
  const found = new Set<number>();
  for (const ending of new Set([from, to].map(lastFrames))) {
    for (
      let at = state.indexOf(ending, 0, "latin1");
      at !== -1;
      at = state.indexOf(ending, at + 1, "latin1")
    ) {
      const end = at + ending.length;
      const realtime = intEndingAt(state, end);
      const monotonic = realtime && intEndingAt(state, realtime.start);
      const boot = monotonic && intEndingAt(state, monotonic.start);
      if (boot === undefined || monotonic === undefined || realtime === undefined) continue;
      const isNow = realtime.value >= from && realtime.value <= to;
      // The machine has run for that long at most since then; it may have slept too.
      const isPlausible = boot.value > 0n && monotonic.value > 0n && boot.value <= realtime.value;
      if (isNow && isPlausible && monotonic.value <= realtime.value - boot.value + 1_000_000_000n)
        found.add(end - VARINT_BYTES * FRAME_BYTES);
    }
  }
  const [position, another] = found;
  return another === undefined ? position : undefined;
}

/** The frames that the varint of a time ends with: the same for all times within half an hour or so. */
function lastFrames(ns: bigint): string {
  return framedVarint(ns)
    .subarray(-3 * FRAME_BYTES)
    .toString("latin1");
}

/** The number whose last frame ends there, its type before it. */
function intEndingAt(state: Buffer, end: number): { value: bigint; start: number } | undefined {
  const byteAt = (at: number): number =>
    at >= FRAME_BYTES && state.readUInt32BE(at - FRAME_BYTES) === 1 ? (state[at - 1] ?? -1) : -1;
  let at = end;
  const last = byteAt(at);
  if (last < 0 || last >= 0x80) return undefined;
  let encoded = BigInt(last);
  let bytes = 1;
  for (at -= FRAME_BYTES; byteAt(at) >= 0x80; at -= FRAME_BYTES, bytes += 1) {
    if (bytes === VARINT_BYTES) return undefined;
    encoded = (encoded << 7n) | BigInt(byteAt(at) & 0x7f);
  }
  if (byteAt(at) !== INT) return undefined;
  return { value: (encoded >> 1n) ^ -(encoded & 1n), start: at - FRAME_BYTES };
}

function framedVarint(value: bigint): Buffer {
  const frames: Buffer[] = [];
  let rest = value << 1n;
  for (; rest >= 0x80n; rest >>= 7n) frames.push(frame(Number(rest & 0x7fn) | 0x80));
  return Buffer.concat([...frames, frame(Number(rest))]);
}

function frame(byte: number): Buffer {
  return Buffer.from([0, 0, 0, 1, byte]);
}

function text(value: string): Buffer[] {
  const length = Buffer.alloc(4);
  length.writeUInt32BE(value.length);
  return [frame(value.length), length, Buffer.from(value, "latin1")];
}
