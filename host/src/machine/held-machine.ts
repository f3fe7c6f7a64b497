import type { EndReason, Machine, MachineSnapshot, MachineUpdate } from "@torpor/protocol";
import type { MachineHandle } from "../driver/driver.ts";
import type { MachineEntry } from "../journal.ts";
import type { Activity } from "./activity.ts";
import { boundConsole } from "./console-log.ts";
import { crashReason } from "./crash-reason.ts";
import { HeldState } from "./held-state.ts";
import type { MachineParts } from "./machine-parts.ts";
import type { Live, Phase } from "./phase.ts";
import { abandon, adoptStanding } from "./transition/adopt.ts";
import { create } from "./transition/create.ts";
import { end, endInBackground } from "./transition/end.ts";
import { hibernate, rest, snapshot } from "./transition/hibernate.ts";
import { pause, resume } from "./transition/pause.ts";
import { wake } from "./transition/wake.ts";

/** After a sleep by the clock that failed. */
const SLEEP_RETRY_MS = 30_000;

/**
 * One machine of this host, from its creation to its end. Whoever comes while something is under way waits for it, or
 * joins it; a destroy pre-empts it.
 */
export class HeldMachine {
  readonly #state: HeldState;

  constructor(entry: MachineEntry, parts: MachineParts, onGone: () => void) {
    this.#state = new HeldState(entry, parts, this, onGone);
  }

  get entry(): MachineEntry {
    return this.#state.entry;
  }

  get activity(): Activity {
    return this.#state.activity;
  }

  get phase(): Phase {
    return this.#state.phase;
  }

  show(): Machine {
    return this.#state.show();
  }

  /** @throws CodedError `wrong_state`, `guest_unavailable`, or 410 `sandbox_ended` with the reason */
  requireRunning(): Live {
    return this.#state.requireRunning();
  }

  /** Makes the machine of a fresh journal entry. @throws CodedError when it cannot be made; nothing stays then */
  create(): Promise<Machine> {
    return create(this.#state);
  }

  /**
   * Makes sure that it runs: waits for what is under way, resumes it, wakes it.
   *
   * @throws CodedError as {@link HeldMachine.requireRunning}; `wrong_state` too when it sleeps and `auto_wake` is off
   */
  async awaken(): Promise<void> {
    while (this.#state.isBusy) await this.#state.join("running");
    const asleep = this.phase.name === "paused" || this.phase.name === "hibernated";
    if (asleep && this.entry.spec.auto_wake) await this.wake();
    this.requireRunning();
  }

  /** Changes clocks and what they do; in the journal when this returns. @throws CodedError 410 when it has ended */
  update({ deadline_unix_ms: deadline, ...changes }: MachineUpdate): Machine {
    const { entry } = this;
    if (this.phase.name !== "paused" && this.phase.name !== "hibernated" && this.phase.name !== "moving")
      this.requireRunning();
    const before = { deadline: entry.deadlineUnixMs, spec: { ...entry.spec } };
    if (deadline !== undefined) entry.deadlineUnixMs = deadline;
    Object.assign(
      entry.spec,
      Object.fromEntries(Object.entries(changes).filter(([, value]) => value !== undefined)),
    );
    try {
      this.#state.parts.journal.commit(entry);
    } catch (error) {
      entry.deadlineUnixMs = before.deadline;
      Object.assign(entry.spec, before.spec);
      throw error;
    }
    this.#state.clocks.arm();
    this.#state.tell("deadline_changed");
    return this.show();
  }

  /** Stops it in RAM. Idempotent. */
  async pause(): Promise<Machine> {
    while (this.#state.isBusy) if (await this.#state.join("paused")) return this.show();
    if (this.phase.name === "paused") return this.show();
    await pause(this.#state, this.requireRunning());
    return this.show();
  }

  /** Lets it go on. Idempotent. */
  async resume(): Promise<Machine> {
    while (this.#state.isBusy) await this.#state.join("running");
    this.#resumeIfPaused();
    this.requireRunning();
    return this.show();
  }

  #resumeIfPaused(): void {
    if (this.phase.name === "paused") resume(this.#state, this.phase.live);
  }

  /** Puts it to storage. Idempotent, callers share one sleep; a failure leaves it running. */
  async hibernate(): Promise<Machine> {
    while (this.#state.isBusy) if (await this.#state.join("hibernated")) return this.show();
    if (this.phase.name === "hibernated") return this.show();
    this.#resumeIfPaused();
    await hibernate(this.#state, this.requireRunning());
    return this.show();
  }

  /** Wakes it: next generation, same id. Idempotent, callers share one wake; a failure leaves it asleep. */
  async wake(): Promise<Machine> {
    while (this.#state.isBusy) if (await this.#state.join("running")) return this.show();
    this.#resumeIfPaused();
    if (this.phase.name === "hibernated") {
      await wake(this.#state, this.phase.uncleared);
      return this.show();
    }
    this.requireRunning();
    return this.show();
  }

  /** Writes a snapshot, waking it first; it then goes on. The same snapshot id again answers the one that exists. */
  async snapshot(snapshotId: string, name: string | null): Promise<MachineSnapshot> {
    while (this.phase.name !== "running") await this.awaken();
    return snapshot(this.#state, this.phase.live, snapshotId, name);
  }

  /** Ends it and removes every trace of it. Legal in every phase: pre-empts what is under way, joins an ending. */
  end(reason: EndReason, message: string | null = null): Promise<Machine> {
    return end(this.#state, reason, message);
  }

  /** Takes up a machine that an earlier host process left asleep, its processes perhaps still in `slot`. */
  adoptAsleep(slot: number | null): Promise<void> {
    return rest(this.#state, slot);
  }

  /** Takes up a machine that an earlier host process left standing. @throws when its guest does not answer */
  adoptStanding(handle: MachineHandle): Promise<void> {
    return adoptStanding(this.#state, handle);
  }

  /** Gives up a machine of an earlier host process: what is left of it goes. */
  abandon(reason: EndReason, message: string): Promise<void> {
    return abandon(this.#state, reason, message);
  }

  /** Looks after its processes: a machine whose sandbox has ended by itself is ended. */
  lookAfter(): void {
    const { phase, entry } = this;
    if (phase.name === "unended") {
      endInBackground(this.#state, entry.reason ?? "user", entry.message ?? "ended again after a failure");
    } else if (phase.name === "hibernated" && phase.uncleared !== null) {
      const { uncleared } = phase;
      void this.#state.move("hibernated", undefined, () => rest(this.#state, uncleared));
    } else if (phase.name === "running" || phase.name === "paused") {
      this.#state.noteOom(phase.live);
      if (this.#state.parts.driver.adopt(phase.live.handle))
        void boundConsole(phase.live.handle.place.directory);
      else void this.#endCrashed(phase.live);
    }
  }

  async #endCrashed({ handle, lastOomAt }: Live): Promise<void> {
    const [reason, message] = await crashReason(
      handle.place.directory,
      this.entry.spec.memory_mb,
      lastOomAt,
      this.#state.parts.clock.now(),
    );
    endInBackground(this.#state, reason, message);
  }

  /** Stops its clocks: this process ends, the machine goes on. */
  letGo(): void {
    this.#state.clocks.disarm();
  }

  onExpired(): void {
    if (this.entry.spec.on_expire === "hibernate") this.#sleepInBackground("ttl");
    else {
      const due = new Date(this.entry.deadlineUnixMs ?? 0).toISOString();
      endInBackground(this.#state, "ttl_expired", `its ttl ended at ${due}`);
    }
  }

  onIdle(): void {
    const { on_idle: onIdle, idle_timeout_seconds: seconds } = this.entry.spec;
    if (onIdle === "destroy")
      endInBackground(this.#state, "idle", `nobody asked anything of it for ${seconds} s`);
    else if (onIdle === "pause") this.pause().catch((error: unknown) => this.#sleepFailed("idle", error));
    else this.#sleepInBackground("idle");
  }

  onRetained(): void {
    const { retention_seconds: seconds } = this.entry.spec;
    endInBackground(this.#state, "retention", `its image was kept for ${seconds} s`);
  }

  #sleepInBackground(cause: "idle" | "ttl"): void {
    this.hibernate().catch((error: unknown) => this.#sleepFailed(cause, error));
  }

  /** It runs on; what sent it to sleep is tried again after a while. */
  #sleepFailed(cause: "idle" | "ttl", error: unknown): void {
    this.#state.parts.log.error({ op: "machine.hibernate", cause, sandboxId: this.entry.id, err: error });
    if (this.phase.name === "running") this.#state.clocks.armLater(SLEEP_RETRY_MS);
  }
}
