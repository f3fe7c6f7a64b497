import { CodedError, type EndReason, type HostEvent, type Machine } from "@torpor/protocol";
import type { MachineEntry } from "../journal.ts";
import { Activity } from "./activity.ts";
import { leftUntil, setDeadline } from "./boot-moment.ts";
import { type ClockedMachine, hasTtlOnWake, MachineClocks } from "./machine-clocks.ts";
import type { MachineParts } from "./machine-parts.ts";
import { releaseIncarnation } from "./incarnations.ts";
import { endedError, toMachine } from "./machine-record.ts";
import { readMeter } from "./meter.ts";
import type { Destination, Live, Phase } from "./phase.ts";

/**
 * What this process holds of one machine: its journal entry, its phase, its clocks. The transitions
 * (`transition/*.ts`) are functions over it; nothing else moves a phase or an entry.
 */
export class HeldState {
  readonly entry: MachineEntry;
  readonly activity: Activity;
  readonly parts: MachineParts;
  readonly clocks: MachineClocks;
  phase: Phase = { name: "hibernated", uncleared: null };
  /** Called once, when the machine is no more. */
  readonly #onGone: () => void;

  /** @param clocked told when a clock has run out */
  constructor(
    entry: MachineEntry,
    parts: MachineParts,
    clocked: Pick<ClockedMachine, "onExpired" | "onIdle" | "onRetained" | "onLifetimeOver">,
    onGone: () => void,
  ) {
    this.entry = entry;
    this.parts = parts;
    this.#onGone = onGone;
    this.activity = new Activity(parts.clock, entry.lastActivityAt);
    const phaseNow = (): Phase => this.phase;
    this.clocks = new MachineClocks(
      {
        entry,
        activity: this.activity,
        get phase() {
          return phaseNow();
        },
        runningExecs: () => this.requireRunning().guest.runningExecs(entry.accessToken),
        onExpired: () => clocked.onExpired(),
        onIdle: () => clocked.onIdle(),
        onRetained: () => clocked.onRetained(),
        onLifetimeOver: () => clocked.onLifetimeOver(),
      },
      parts.clock,
    );
  }

  show(): Machine {
    if (this.phase.name === "running") this.noteOom(this.phase.live);
    return toMachine(this.entry, {
      activity: this.activity,
      lastOomAt: "live" in this.phase ? (this.phase.live?.lastOomAt ?? null) : null,
    });
  }

  /** Commits that the machine runs or is paused, and arms its clocks. @throws when it cannot be written; nothing is changed then */
  settle(state: "running" | "paused", live: Live, event: HostEvent["type"]): void {
    const before = this.entry.state;
    this.meter(live);
    Object.assign(this.entry, { state, lastActivityAt: this.activity.lastAt });
    try {
      this.parts.journal.commit(this.entry);
    } catch (error) {
      this.entry.state = before;
      throw error;
    }
    this.phase = { name: state, live };
    this.clocks.arm();
    this.tell(event);
  }

  /** What has happened has happened: an event that cannot be kept is made up for by whoever lists machines. */
  tell(event: HostEvent["type"]): void {
    const { feed, clock, log } = this.parts;
    try {
      feed.add(event, this.show(), clock.now());
    } catch (error) {
      log.error({ op: "event.write", outcome: "lost", type: event, sandboxId: this.entry.id, err: error });
    }
  }

  /** It has ended, in the journal now or as soon as that can be written. */
  finish(reason: EndReason, message: string | null): void {
    const endedAt = this.entry.endedAt ?? this.parts.clock.now(); // known since its processes are gone
    releaseIncarnation(this.entry, this.parts);
    const { secrets: _secrets, ...settings } = this.entry.settings; // of no use to anybody any more
    Object.assign(this.entry, { state: "ended", reason, message, endedAt });
    this.entry.settings = { ...settings, env: {} };
    this.entry.spec = { ...this.entry.spec, env: {} };
    this.#onGone();
    this.parts.journal.end(this.entry);
  }

  /** @throws CodedError `wrong_state`, `guest_unavailable`, or 410 `sandbox_ended` with the reason */
  requireRunning(): Live {
    const { id, state } = this.entry;
    switch (this.phase.name) {
      case "running":
        return this.phase.live;
      case "creating":
        throw new CodedError("guest_unavailable", `machine ${id} is still being created; try again shortly`);
      case "ending":
      case "unended":
      case "failing":
      case "failed":
        throw endedError(toMachine(this.entry));
      case "moving":
        if (state !== "running") break;
        throw new CodedError("guest_unavailable", `machine ${id} is being taken over; try again shortly`);
    }
    throw new CodedError("wrong_state", `sandbox ${id} is ${state}; wake or resume it first`, {
      details: { state },
    });
  }

  /** Whether something is under way. To be asked again after each wait: another waiter may have been first. */
  get isBusy(): boolean {
    return this.phase.name === "moving" || this.phase.name === "creating";
  }

  /**
   * Waits for what is under way.
   *
   * @returns whether it was a way to `to`, and has arrived. @throws what made a way to `to` fail; other failures are not ours
   */
  async join(to: Destination): Promise<boolean> {
    const { phase } = this;
    if (phase.name === "moving" && phase.to === to) {
      await phase.done;
      return true;
    }
    if (phase.name === "moving" || phase.name === "creating") await phase.done.catch(() => {});
    return false;
  }

  /**
   * Runs a transition, which must set the phase it ends in, also when it fails. Whoever comes meanwhile waits for it, but
   * for a destroy, which aborts it.
   */
  move<T>(
    to: Destination,
    live: Live | undefined,
    act: (signal: AbortSignal) => Promise<T> | T,
    { cause, memory }: { cause?: "ttl" | undefined; memory?: boolean } = {},
  ): Promise<T> {
    this.clocks.disarm();
    const abort = new AbortController();
    // Begun a moment later: an act that fails at its first step must find the phase that it is to leave.
    const done = Promise.resolve().then(() => act(abort.signal));
    this.phase = { name: "moving", to, cause, memory, live, abort, done };
    return done;
  }

  /**
   * Takes off a ttl that put it to sleep, or would have: its work is done, and it must not put it to sleep again as it wakes.
   *
   * @returns puts it back on, for when that cannot be committed
   */
  takeOffDoneTtl(): () => void {
    const { deadlineUnixMs, deadlineMoment, spec } = this.entry;
    const done = deadlineMoment != null && leftUntil(deadlineMoment, this.parts.clock) <= 0;
    if (spec.on_expire !== "hibernate" || !done) return () => {};
    setDeadline(this.entry, null, this.parts.clock);
    return () => Object.assign(this.entry, { deadlineUnixMs, deadlineMoment });
  }

  /**
   * Puts the ttl in order for a wake: one whose work is done is taken off, and where a wake is to count it anew, that is done.
   *
   * @returns puts it back as it was
   */
  renewTtl(): () => void {
    const { entry } = this;
    const { deadlineUnixMs, deadlineMoment, spec } = entry;
    this.takeOffDoneTtl();
    const { clock } = this.parts;
    const isRunning = entry.deadlineMoment != null && leftUntil(entry.deadlineMoment, clock) > 0;
    if (hasTtlOnWake(spec) && !isRunning)
      setDeadline(entry, clock.now() + (spec.ttl_on_wake_seconds ?? 0) * 1000, clock);
    return () => Object.assign(entry, { deadlineUnixMs, deadlineMoment });
  }

  /** Notes memory kills close to when they happen, so that a later KILL is not taken for one. */
  noteOom(live: Live): void {
    const { oomKills } = this.parts.driver.stats(live.handle);
    if (oomKills > live.oomKills) Object.assign(live, { oomKills, lastOomAt: this.parts.clock.now() });
  }

  /** Counts what it has used since it was last counted. A reading that fails is made up for by the next, and holds nothing up. */
  meter({ handle }: Live): void {
    const { driver, clock, log } = this.parts;
    try {
      readMeter(this.entry, handle, driver, this.activity, clock.now());
    } catch (error) {
      log.warn({ op: "machine.meter", outcome: "not read", sandboxId: this.entry.id, err: error });
    }
  }

  /** Milliseconds since a moment on the monotonic clock, for the log. */
  elapsedMs(startedAt: number): number {
    return Math.round((this.parts.clock.monotonic() - startedAt) * 10) / 10;
  }
}
