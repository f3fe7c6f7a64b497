import { type Machine, type MachineMove, type MachineUse, NO_USE, type SandboxState } from "@torpor/protocol";

/** Where the meter of a sandbox stands: the interval that is open. */
export interface Metered {
  readonly state: SandboxState;
  /** Where it begins, Unix milliseconds. */
  readonly from: number;
  /** Intervals closed before it. */
  readonly intervals: number;
  /** Number of its host's newest move that is in. */
  readonly move: number;
  readonly imageBytes: number;
  /** Where its end was accepted: nothing is counted after that, and what its host did before is still to be told. Null while it lives. */
  readonly until: number | null;
  /** Of an interval before it that had no length: time that is not counted. */
  readonly uncertainMs: number;
  /** What the sandbox had used where the interval begins, and as last heard. */
  readonly base: MachineUse;
  readonly used: MachineUse;
  /** When its host last told of it, Unix milliseconds. */
  readonly seenAt: number;
}

/** An interval that is over. */
export interface ClosedInterval {
  number: number;
  state: SandboxState;
  imageBytes: number;
  from: number;
  to: number;
  used: MachineUse;
  uncertainMs: number;
}

/** What its host tells of a sandbox: moves and use; or that it knows nothing of it any more. */
export type ToldUse = Pick<Machine, "moves" | "used"> | "lost";

export function toldUse({ moves, used }: Machine): ToldUse {
  return { moves, used };
}

/** The meter of a sandbox whose record is about to be made. */
export function newMetered(createdAt: number): Metered {
  return {
    state: "creating",
    from: createdAt,
    intervals: 0,
    move: 0,
    imageBytes: 0,
    until: null,
    uncertainMs: 0,
    base: NO_USE,
    used: NO_USE,
    seenAt: createdAt,
  };
}

/** Whether the host tells of a move that is not in. */
export function tellsMoves({ move }: Metered, { moves }: Pick<Machine, "moves">): boolean {
  return (moves.at(-1)?.number ?? 0) > move;
}

/**
 * What the meter says after its host has told what became of a sandbox, and the intervals that are over by that. The host's
 * times count, however late they are told; each interval begins where the one before ended, so that they tile its life.
 *
 * @param state of the record after the change: an end that is accepted ends what is counted, whatever its host says later
 * @param at Unix milliseconds of the change, or of its end where that is known
 */
export function meterChanges(
  before: Metered,
  told: ToldUse | undefined,
  state: SandboxState,
  at: number,
): { metered: Metered; closed: ClosedInterval[] } {
  const log = new MeterLog(before);
  if (told === "lost") log.lose(at);
  else if (told !== undefined) {
    for (const move of told.moves) log.follow(move);
    log.metered = { ...log.metered, used: told.used, seenAt: Math.max(log.metered.seenAt, at) };
  }
  if (state === "failed") log.close("failed", at);
  if (state === "destroying") log.acceptEnd(at);
  if (state === "destroyed") {
    log.close("destroying", log.metered.until ?? at);
    log.close("destroyed", at);
  }
  return { metered: log.metered, closed: log.closed };
}

/** In these it ends, and goes on to nothing else but the next of them. */
const ENDS: readonly SandboxState[] = ["failed", "destroying", "destroyed"];

class MeterLog {
  metered: Metered;
  readonly closed: ClosedInterval[] = [];

  constructor(before: Metered) {
    this.metered = before;
  }

  follow({ number, to, at, image_bytes: imageBytes, used, noticed_after_ms: late }: MachineMove): void {
    const { move, from } = this.metered;
    if (number <= move) return;
    const isMissed = number > move + 1;
    this.metered = { ...this.metered, move: number, used };
    const when = Math.max(from, Date.parse(at));
    const { until } = this.metered;
    if (until !== null && when >= until) return this.close("destroying", until);
    // Of moves that its host no longer tells of only the last is known: what lies before it may have been something else.
    this.close(to === "ending" ? "destroying" : to, when, imageBytes, isMissed ? when - from : late);
  }

  acceptEnd(at: number): void {
    const { state, from, until } = this.metered;
    if (until === null && !ENDS.includes(state))
      this.metered = { ...this.metered, until: Math.max(from, at) };
  }

  /** Nobody knows when it ended: it is counted until its host last told of it. */
  lose(at: number): void {
    const { from, seenAt, state, until } = this.metered;
    if (until !== null) return;
    if (ENDS.includes(state) || state === "creating") return;
    const when = Math.max(from, Math.min(seenAt, at));
    this.close("destroying", when, 0, Math.max(0, at - when));
  }

  close(state: SandboxState, at: number, imageBytes = 0, uncertainMs = 0): void {
    const { metered } = this;
    const [now, next] = [ENDS.indexOf(metered.state), ENDS.indexOf(state)];
    if (state === metered.state || (now >= 0 && next <= now)) return;
    const to = Math.max(metered.from, at);
    const hasLength = to > metered.from;
    if (hasLength)
      this.closed.push({
        number: metered.intervals + 1,
        state: metered.state,
        imageBytes: metered.imageBytes,
        from: metered.from,
        to,
        used: usedSince(metered.base, metered.used),
        uncertainMs: metered.uncertainMs + uncertainMs,
      });
    this.metered = {
      ...metered,
      state,
      from: to,
      intervals: metered.intervals + (hasLength ? 1 : 0),
      imageBytes,
      uncertainMs: hasLength ? 0 : metered.uncertainMs + uncertainMs,
      base: hasLength ? metered.used : metered.base,
    };
  }
}

/** What was used from one count to a later one. */
export function usedSince(base: MachineUse, used: MachineUse): MachineUse {
  return {
    cpu_seconds: Math.max(0, used.cpu_seconds - base.cpu_seconds),
    memory_peak_bytes: used.memory_peak_bytes,
    network_in_bytes: Math.max(0, used.network_in_bytes - base.network_in_bytes),
    network_out_bytes: Math.max(0, used.network_out_bytes - base.network_out_bytes),
    idle_seconds: Math.max(0, used.idle_seconds - base.idle_seconds),
  };
}
