import type { Clock } from "@torpor/base";
import type { MachineEntry } from "../journal.ts";
import type { Activity } from "./activity.ts";
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
}

/** While a command runs that nobody is attached to, it is asked after this often at least. */
const EXEC_CHECK_MS = 5000;
/** Shortest wait before idleness is looked at again. */
const SOON_MS = 10;

/**
 * Deadline, idleness and retention of one machine. Delays count on the monotonic clock from the moment they are armed, so
 * that a jump of the wall clock moves nothing of a running machine.
 */
export class MachineClocks {
  readonly #machine: ClockedMachine;
  readonly #clock: Clock;
  #timers: (() => void)[] = [];

  constructor(machine: ClockedMachine, clock: Clock) {
    this.#machine = machine;
    this.#clock = clock;
  }

  disarm(): void {
    for (const cancel of this.#timers) cancel();
    this.#timers = [];
  }

  /** Arms what is due in the machine's phase, and nothing else. */
  arm(): void {
    this.disarm();
    const { entry, phase, activity } = this.#machine;
    const { spec } = entry;
    if (phase.name !== "running" && phase.name !== "paused" && phase.name !== "hibernated") return;
    if (entry.deadlineUnixMs !== null && !(phase.name === "hibernated" && spec.on_expire === "hibernate")) {
      this.#after(entry.deadlineUnixMs - this.#clock.now(), () => this.#machine.onExpired());
    }
    if (phase.name === "running" && spec.idle_timeout_seconds !== null && spec.on_idle !== "none") {
      this.#after(
        spec.idle_timeout_seconds * 1000 - activity.idleForMs,
        () => void this.#considerIdle(spec.idle_timeout_seconds ?? 0),
      );
    }
    if (phase.name === "hibernated" && spec.retention_seconds !== null && entry.image !== null) {
      this.#after(entry.image.createdAt + spec.retention_seconds * 1000 - this.#clock.now(), () =>
        this.#machine.onRetained(),
      );
    }
  }

  /** Arms everything again after a while: what sent it to sleep has failed. */
  armLater(delayMs: number): void {
    this.disarm();
    this.#after(delayMs, () => this.arm());
  }

  #after(delayMs: number, action: () => void): void {
    this.#timers.push(this.#clock.after(delayMs, action));
  }

  /** The idle time may be over: unless something holds it, or came meanwhile, the machine is told. */
  async #considerIdle(timeoutSeconds: number): Promise<void> {
    const { phase, activity } = this.#machine;
    const timeoutMs = timeoutSeconds * 1000;
    const again = (delayMs: number): void =>
      this.#after(Math.max(delayMs, SOON_MS), () => void this.#considerIdle(timeoutSeconds));
    const left = timeoutMs - activity.idleForMs;
    if (phase.name !== "running") return;
    if (left > 0) return again(left);
    const running = await this.#machine.runningExecs().catch(() => undefined);
    if (this.#machine.phase !== phase) return; // whoever moved it has armed the clocks anew
    if (running === undefined) return again(EXEC_CHECK_MS);
    if (running[0] !== undefined) {
      activity.touch(`exec ${running[0]}`);
      return again(Math.min(timeoutMs, EXEC_CHECK_MS));
    }
    if (activity.idleForMs < timeoutMs) return again(timeoutMs - activity.idleForMs);
    this.#machine.onIdle();
  }
}
