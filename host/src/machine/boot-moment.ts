import type { Clock } from "@torpor/base";
import type { BootMoment, MachineEntry } from "../journal.ts";

/** After the machine was restarted its wall clock may be wrong until the network sets it, and owners could not renew. */
const BOOT_GRACE_MS = 60_000;
/** Smaller steps are the clock being kept right: what is shown is then off by less than this, what happens is not. */
export const CLOCK_JUMP_MS = 1000;

/** The moment of a wall-clock time, as the wall clock stands now. */
export function momentOf(unixMs: number, clock: Clock): BootMoment {
  return { bootId: clock.bootId, ms: clock.monotonic() + (unixMs - clock.now()) };
}

/** Milliseconds until `afterMs` after the moment; negative when that has passed. */
export function leftUntil({ ms, notBeforeMs }: BootMoment, clock: Clock, afterMs = 0): number {
  return Math.max(ms + afterMs, notBeforeMs ?? Number.NEGATIVE_INFINITY) - clock.monotonic();
}

/** Changes a deadline on both clocks; durable with the next commit. */
export function setDeadline(entry: MachineEntry, unixMs: number | null, clock: Clock): void {
  entry.deadlineUnixMs = unixMs;
  entry.deadlineMoment = unixMs === null ? null : momentOf(unixMs, clock);
}

/**
 * Takes over the clocks of an entry that an earlier host process wrote. Within one boot the monotonic clock has gone on, so
 * a jump of the wall clock meanwhile changes what is shown, not what happens. After a boot there is the wall clock alone.
 */
export function takeOverClocks(entry: MachineEntry, clock: Clock): void {
  const carriedOver = (unixMs: number): BootMoment => ({
    ...momentOf(unixMs, clock),
    notBeforeMs: clock.monotonic() + BOOT_GRACE_MS,
  });
  const { deadlineUnixMs, deadlineMoment, failedMoment, endedAt, image } = entry;
  if (failedMoment !== undefined && failedMoment.bootId !== clock.bootId)
    entry.failedMoment = carriedOver(endedAt ?? clock.now());
  const { max_lifetime_unix_ms: lifetimeEnd } = entry.spec;
  // Absent from what an earlier version wrote.
  if (lifetimeEnd != null && entry.maxLifetimeMoment?.bootId !== clock.bootId)
    entry.maxLifetimeMoment = carriedOver(lifetimeEnd);
  if (deadlineUnixMs !== null) {
    if (deadlineMoment?.bootId !== clock.bootId) entry.deadlineMoment = carriedOver(deadlineUnixMs);
    else {
      const shown = wallTime(deadlineMoment, clock);
      if (Math.abs(shown - deadlineUnixMs) > CLOCK_JUMP_MS) entry.deadlineUnixMs = shown;
    }
  }
  if (image !== null && image.createdMoment?.bootId !== clock.bootId)
    image.createdMoment = carriedOver(image.createdAt);
}

/**
 * The wall clock was set, by `deltaMs`: what the host counts stays, and what is shown follows. But what was taken over from
 * the wall clock after a boot, and is still in its grace, is read anew: this may be the network setting the clock right.
 *
 * @returns whether a time that is shown has changed
 */
export function followJump(entry: MachineEntry, deltaMs: number, clock: Clock): boolean {
  const { deadlineUnixMs, deadlineMoment, image } = entry;
  const inGrace = ({ notBeforeMs }: BootMoment): boolean =>
    notBeforeMs !== undefined && clock.monotonic() < notBeforeMs;
  let changed = false;
  if (deadlineUnixMs !== null && deadlineMoment != null) {
    if (inGrace(deadlineMoment)) deadlineMoment.ms = momentOf(deadlineUnixMs, clock).ms;
    else {
      entry.deadlineUnixMs = deadlineUnixMs + deltaMs;
      changed = true;
    }
  }
  if (image?.createdMoment !== undefined) {
    if (inGrace(image.createdMoment)) image.createdMoment.ms = momentOf(image.createdAt, clock).ms;
    else {
      image.createdAt += deltaMs;
      changed = true;
    }
  }
  return changed;
}

function wallTime(moment: BootMoment, clock: Clock): number {
  return Math.round(clock.now() + (moment.ms - clock.monotonic()));
}
