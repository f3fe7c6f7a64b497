import type { Clock } from "@torpor/base";
import type { MachineEntry } from "../journal.ts";
import type { Activity } from "./activity.ts";
import { leftUntil } from "./boot-moment.ts";
import type { Phase } from "./phase.ts";

/** What the clocks need of their machine. */
export interface ClockedMachine {
  readonly entry: MachineEntry;
  readonly phase: Phase;
  readonly activity: Activity;
  /** Commands that run inside with nobody attached. */
  runningExecs(): Promise<string[]>;
  onExpired(): void;
  onIdle(): void;
  onRetained(): void;
  onLifetimeOver(): void;
}

/** Whether its ttl stands still while it sleeps, and is counted anew from a wake. */
export function hasTtlOnWake({ ttl_on_wake_seconds: seconds }: MachineEntry["spec"]): boolean {
  return (seconds ?? null) !== null; // journals of before there was one have none
}

/** While a command runs that nobody is attached to, it is asked after this often at least. */
const EXEC_CHECK_MS = 5000;
/** What is left of a failed machine is kept this long for a look at it, unless its ttl ends sooner. */
const FAILED_KEPT_MS = 24 * 3600 * 1000;
/** Phases in which nothing is under way: in all others what is due waits. */
const RESTING: ReadonlySet<Phase["name"]> = new Set(["running", "paused", "hibernated", "failed"]);
/** Shortest wait before idleness is looked at again. */
const SOON_MS = 10;

/**
 * Deadline, idleness and retention of one machine. All count on the monotonic clock, however often they are armed, so that
 * a jump of the wall clock moves nothing.
 */
export class MachineClocks {
  readonly #machine: ClockedMachine;
  readonly #clock: Clock;
  /** Cancels what is armed; replaced with every arming, so that what began under an earlier one knows it is over. */
  #timers = new Set<() => void>();
  /** On the monotonic clock: not before this is it sent to sleep (again). */
  #sleepNotBefore = 0;

  constructor(machine: ClockedMachine, clock: Clock) {
    this.#machine = machine;
    this.#clock = clock;
  }

  disarm(): void {
    for (const cancel of this.#timers) cancel();
    this.#timers = new Set();
  }

  /** Arms what is due in the machine's phase, and nothing else. */
  arm(): void {
    this.disarm();
    const { entry, phase, activity } = this.#machine;
    const { spec } = entry;
    if (!RESTING.has(phase.name)) return;
    const restMs = this.#sleepNotBefore - this.#clock.monotonic();
    const { deadlineMoment, image } = entry;
    const isHeld = spec.on_expire === "hibernate" || hasTtlOnWake(spec);
    if (deadlineMoment != null && !(phase.name === "hibernated" && isHeld)) {
      const left = leftUntil(deadlineMoment, this.#clock);
      this.#after(spec.on_expire === "hibernate" ? Math.max(left, restMs) : left, () =>
        this.#machine.onExpired(),
      );
    }
    if (entry.maxLifetimeMoment != null)
      this.#after(leftUntil(entry.maxLifetimeMoment, this.#clock), () => this.#machine.onLifetimeOver());
    if (phase.name === "running" && spec.idle_timeout_seconds !== null && spec.on_idle !== "none") {
      const timeoutMs = spec.idle_timeout_seconds * 1000;
      this.#after(Math.max(timeoutMs - activity.idleForMs, restMs), () => void this.#considerIdle(timeoutMs));
    }
    if (phase.name === "failed" && entry.failedMoment !== undefined) {
      this.#after(leftUntil(entry.failedMoment, this.#clock, FAILED_KEPT_MS), () =>
        this.#machine.onExpired(),
      );
    }
    if (
      phase.name === "hibernated" &&
      spec.retention_seconds !== null &&
      image?.createdMoment !== undefined
    ) {
      this.#after(leftUntil(image.createdMoment, this.#clock, spec.retention_seconds * 1000), () =>
        this.#machine.onRetained(),
      );
    }
  }

  /** What sent it to sleep has failed, and is not tried again before `delayMs` have passed; an end is not put off. */
  armLater(delayMs: number): void {
    this.#sleepNotBefore = this.#clock.monotonic() + delayMs;
    this.arm();
  }

  #after(delayMs: number, action: () => void): void {
    const timers = this.#timers;
    const cancel = this.#clock.after(delayMs, () => {
      timers.delete(cancel);
      action();
    });
    timers.add(cancel);
  }

  /**
   * The idle time may be over: unless something holds it, or came meanwhile, the machine is told.
   *
   * @param watching whether a command ran at the last look: it is looked at again until it has ended, so that idleness
   *   counts from its end
   */
  async #considerIdle(timeoutMs: number, watching = false): Promise<void> {
    const armed = this.#timers;
    const { activity } = this.#machine;
    const again = (delayMs: number, watch = false): void =>
      this.#after(Math.max(delayMs, SOON_MS), () => void this.#considerIdle(timeoutMs, watch));
    if (!watching && activity.idleForMs < timeoutMs) return again(timeoutMs - activity.idleForMs);
    const running = await this.#machine.runningExecs().catch(() => undefined);
    if (this.#timers !== armed) return; // moved or changed meanwhile: the clocks were armed anew
    if (running === undefined) return again(EXEC_CHECK_MS, watching);
    if (running[0] !== undefined) {
      activity.touch("exec", running[0]);
      return again(Math.min(timeoutMs, EXEC_CHECK_MS), true);
    }
    if (activity.idleForMs < timeoutMs) return again(timeoutMs - activity.idleForMs);
    this.#machine.onIdle();
  }
}
