import {
  CodedError,
  type EndReason,
  type Machine,
  type MachineSample,
  type MachineSnapshot,
  type MachineUpdate,
  type NetworkPolicy,
} from "@torpor/protocol";
import type { MachineHandle } from "../driver/driver.ts";
import type { MachineEntry } from "../journal.ts";
import type { Activity } from "./activity.ts";
import { AgentWatch } from "./agent-watch.ts";
import { followJump, setDeadline, takeOverClocks } from "./boot-moment.ts";
import { boundConsole } from "./console-log.ts";
import { crashReason } from "./crash-reason.ts";
import { isDoomed } from "../process-identity.ts";
import { HeldState } from "./held-state.ts";
import type { MachineParts } from "./machine-parts.ts";
import { keepsMemory } from "./machine-record.ts";
import { MetricHistory } from "./metric-history.ts";
import type { Live, Phase } from "./phase.ts";
import type { SnapshotOptions } from "./snapshots.ts";
import { adoptAsleep, adoptStanding, findImage } from "./transition/adopt.ts";
import { create } from "./transition/create.ts";
import { end, endInBackground, endLeftover } from "./transition/end.ts";
import { failInBackground, failLeftover, stopProcesses } from "./transition/fail.ts";
import { hibernate, rest, snapshot } from "./transition/hibernate.ts";
import { setNetwork } from "./transition/network.ts";
import { pause, resume } from "./transition/pause.ts";
import { wake } from "./transition/wake.ts";

/** After a sleep by the clock that failed; twice as long after each further one, since each try stops all that runs inside. */
const SLEEP_RETRY_MS = 30_000;
const SLEEP_RETRY_MAX_MS = 15 * 60_000;
/** Between two counts of what it used. */
const METER_EVERY_MS = 30_000;

/**
 * One machine of this host, from its creation to its end. Whoever comes while something is under way waits for it, or
 * joins it; a destroy pre-empts it.
 */
export class HeldMachine {
  readonly #state: HeldState;
  #sleepRetryMs = SLEEP_RETRY_MS;
  /** While it runs. */
  #agentWatch: AgentWatch | undefined;
  readonly #metrics = new MetricHistory();

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
   * @throws CodedError as {@link HeldMachine.requireRunning}; `wrong_state` too when it sleeps and `auto_wake` is off, or
   *   its memory is gone
   */
  async awaken(): Promise<void> {
    while (this.#state.isBusy) await this.#state.join("running");
    const asleep = this.phase.name === "paused" || this.phase.name === "hibernated";
    // One without memory has lost its processes, which whoever asks for work may not know: that takes a word.
    const isWhole = this.phase.name !== "hibernated" || this.entry.image?.memory !== false;
    if (asleep && isWhole && this.entry.spec.auto_wake) await this.wake();
    this.requireRunning();
  }

  /**
   * Changes clocks and what they do; in the journal when this returns.
   *
   * @throws CodedError 410 when it has ended; `wrong_state` for a deadline that comes when the earlier one has just run out
   *   and put it to sleep: a renewal wins or loses, never both
   */
  update({ deadline_unix_ms: deadline, ...changes }: Omit<MachineUpdate, "network">): Machine {
    const { entry } = this;
    if (this.phase.name !== "paused" && this.phase.name !== "hibernated" && this.phase.name !== "moving")
      this.requireRunning();
    if (deadline !== undefined && this.phase.name === "moving" && this.phase.cause === "ttl") {
      throw new CodedError(
        "wrong_state",
        `sandbox ${entry.id} is going to sleep since its ttl has run out, so it cannot be renewed now; try again shortly, or wake it`,
        { details: { state: entry.state } },
      );
    }
    const { deadlineUnixMs, deadlineMoment } = entry;
    const before = { deadlineUnixMs, deadlineMoment, spec: { ...entry.spec } };
    if (deadline !== undefined) setDeadline(entry, deadline, this.#state.parts.clock);
    Object.assign(
      entry.spec,
      Object.fromEntries(Object.entries(changes).filter(([, value]) => value !== undefined)),
    );
    try {
      this.#state.parts.journal.commit(entry);
    } catch (error) {
      Object.assign(entry, { deadlineUnixMs: before.deadlineUnixMs, deadlineMoment: before.deadlineMoment });
      Object.assign(entry.spec, before.spec);
      throw error;
    }
    this.#state.clocks.arm();
    this.#state.tell("deadline_changed");
    return this.show();
  }

  /**
   * Changes what it may reach: in the journal, and in force wherever it runs, when this resolves. A sleeping one wakes under
   * it. On an error all stays as it was.
   *
   * @throws CodedError 410 when it has ended
   */
  setNetwork(network: NetworkPolicy): Promise<Machine> {
    return setNetwork(this.#state, network);
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

  /**
   * Puts it to storage. Idempotent, callers share one sleep; a failure leaves it running. One that sleeps already stays as
   * it is: its image tells what it keeps.
   *
   * @param options.memory whether memory and processes are kept; default: as its spec says
   * @throws CodedError `conflict` when another sleep than the one asked for is under way, or its memory is kept already
   */
  async hibernate({ memory, cause }: { memory?: boolean | undefined; cause?: "ttl" } = {}): Promise<Machine> {
    while (this.#state.isBusy) {
      this.#requireSameSleep(memory);
      if (await this.#state.join("hibernated")) return this.show();
    }
    if (this.phase.name === "hibernated") {
      if (memory === false && this.entry.image?.memory !== false)
        throw new CodedError(
          "conflict",
          `sandbox ${this.entry.id} sleeps already, with its memory; to keep its files alone, wake it and hibernate it with memory: false`,
          { details: { state: this.entry.state, memory: true } },
        );
      return this.show();
    }
    this.#resumeIfPaused();
    await hibernate(this.#state, this.requireRunning(), memory ?? keepsMemory(this.entry), cause);
    this.#sleepRetryMs = SLEEP_RETRY_MS;
    return this.show();
  }

  #requireSameSleep(asked: boolean | undefined): void {
    const { phase, entry } = this;
    if (phase.name !== "moving" || phase.memory === undefined || asked === undefined) return;
    if (phase.memory === asked) return;
    throw new CodedError(
      "conflict",
      `sandbox ${entry.id} is being hibernated ${phase.memory ? "with" : "without"} its memory, not ${asked ? "with" : "without"} it; wait until it sleeps, wake it and hibernate it anew`,
      { details: { state: entry.state, memory: phase.memory } },
    );
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
  async snapshot(snapshotId: string, options: SnapshotOptions = {}): Promise<MachineSnapshot> {
    while (this.phase.name !== "running") await this.awaken();
    return snapshot(this.#state, this.phase.live, snapshotId, options);
  }

  /** Ends it and removes every trace of it. Legal in every phase: pre-empts what is under way, joins an ending. */
  end(reason: EndReason, message: string | null = null): Promise<Machine> {
    return end(this.#state, reason, message);
  }

  /**
   * Takes up a machine that an earlier host process left. None waits for its guest, or for what is left of it to go.
   *
   * @param handle its process, when that lives. @returns what it is from now on. @throws what kept it from being taken up
   */
  async adopt(handle: MachineHandle | undefined): Promise<"standing" | "asleep" | "failed" | "ended"> {
    const { entry } = this;
    takeOverClocks(entry, this.#state.parts.clock);
    const { state, reason, message } = entry;
    if (state === "failed") {
      void failLeftover(this.#state, reason ?? "runtime_crashed", message ?? "");
      return "failed";
    }
    // Whatever has become of its image: one that cannot be read now may be put back, and a wake says what is wrong.
    if ((state === "hibernated" || state === "waking") && entry.image !== null) {
      this.#restInBackground(entry.slot);
      return "asleep";
    }
    if (state === "creating") {
      endLeftover(this.#state, "create_failed", "the host was restarted while it was being created");
      return "ended";
    }
    if (state === "ending") {
      endLeftover(
        this.#state,
        reason ?? "user",
        message ?? "its ending was finished after a restart of the host",
      );
      return "ended";
    }
    if (handle !== undefined) {
      await adoptStanding(this.#state, handle);
      return "standing";
    }
    const image = state === "hibernating" ? await findImage(this.#state) : undefined;
    if (image !== undefined) {
      void this.#state.move("hibernated", undefined, () => adoptAsleep(this.#state, image));
      return "asleep";
    }
    void failLeftover(
      this.#state,
      "runtime_crashed",
      "its runtime process had ended while the host was away",
    );
    return "failed";
  }

  /** Gives up what could not be taken up. */
  giveUp(message: string): void {
    void failLeftover(this.#state, "runtime_crashed", message);
  }

  #restInBackground(slot: number | null): void {
    void this.#state.move("hibernated", undefined, () => rest(this.#state, slot));
  }

  /** Looks after its processes: a machine whose sandbox has ended by itself has failed, and so has one that hangs. */
  lookAfter(): void {
    const { phase, entry } = this;
    const { driver } = this.#state.parts;
    if (phase.name === "unended") {
      endInBackground(this.#state, entry.reason ?? "user", entry.message ?? "ended again after a failure");
    } else if (phase.name === "hibernated" && phase.uncleared !== null) {
      this.#restInBackground(phase.uncleared);
    } else if (phase.name === "failed" && phase.standing) {
      this.#state.phase = { name: "failing", done: stopProcesses(this.#state, phase.slot) };
    } else if (phase.name === "running" || phase.name === "paused") {
      this.#state.noteOom(phase.live);
      this.#meterAtTimes(phase.live);
      if (phase.name === "running") this.#metrics.look(phase.live, this.#metricSources);
      const { handle } = phase.live;
      const hasDied = !driver.adopt(handle) || (phase.name === "paused" && isDoomed(handle.process));
      if (hasDied) void this.#failCrashed(phase.live);
      else void boundConsole(phase.live.handle.place.directory);
    } else if (phase.name === "moving" && phase.live !== undefined && entry.state !== "hibernated") {
      // Once its sleep is committed its processes are ended on purpose.
      if (!driver.adopt(phase.live.handle)) void this.#failCrashed(phase.live);
    }
    this.#watchAgent();
  }

  /** What it used in that time, by samples. @param from to Unix milliseconds */
  samples(from: number, to: number): MachineSample[] {
    const live = this.phase.name === "running" ? this.phase.live : undefined;
    return this.#metrics.between(live, this.#metricSources, from, to);
  }

  get #metricSources() {
    const { driver, clock } = this.#state.parts;
    return { driver, clock, limits: this.entry.spec };
  }

  /** So that of what it used a `kill -9` of the host loses no more than half a minute. */
  #meterAtTimes(live: Live): void {
    const { clock, journal } = this.#state.parts;
    if (Math.abs(clock.now() - (this.entry.meter?.at ?? 0)) < METER_EVERY_MS) return;
    this.#state.meter(live);
    journal.note(this.entry);
  }

  #watchAgent(): void {
    if (this.phase.name !== "running") {
      this.#agentWatch = undefined;
      return;
    }
    const { live } = this.phase;
    const { driver, clock, agentPatienceMs } = this.#state.parts;
    if (this.#agentWatch?.live !== live) {
      this.#agentWatch = new AgentWatch({
        live,
        cpu: this.entry.spec.cpu,
        driver,
        clock,
        patienceMs: agentPatienceMs,
        onHung: (silentForMs) => {
          const isCurrent = this.phase.name === "running" && this.phase.live === live;
          const message = `its agent has not answered for ${Math.round(silentForMs / 1000)} s`;
          if (isCurrent) failInBackground(this.#state, "agent_unresponsive", message);
        },
      });
    }
    this.#agentWatch.look();
  }

  async #failCrashed({ handle, lastOomAt }: Live): Promise<void> {
    const [reason, message] = await crashReason(
      handle.place.directory,
      this.entry.spec.memory_mb,
      lastOomAt,
      this.#state.parts.clock.now(),
    );
    failInBackground(this.#state, reason, message);
  }

  /** The wall clock was set by `deltaMs`: nothing falls due by that. */
  followClock(deltaMs: number): void {
    const { parts, clocks } = this.#state;
    if (followJump(this.entry, deltaMs, parts.clock)) {
      parts.journal.note(this.entry);
      this.#state.tell("deadline_changed");
    } else clocks.arm(); // what was read anew from the wall clock falls due at another moment
  }

  /** Stops its clocks: this process ends, the machine goes on. */
  letGo(): void {
    this.#state.clocks.disarm();
  }

  onExpired(): void {
    if (this.phase.name === "failed")
      endInBackground(this.#state, "ttl_expired", "what was left of it was removed");
    else if (this.entry.spec.on_expire === "hibernate") this.#sleepInBackground("ttl");
    else {
      const due = new Date(this.entry.deadlineUnixMs ?? 0).toISOString();
      endInBackground(this.#state, "ttl_expired", `its ttl ended at ${due}`);
    }
  }

  onLifetimeOver(): void {
    endInBackground(this.#state, "max_lifetime", "it has lived for as long as any sandbox here may");
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
    this.hibernate(cause === "ttl" ? { cause } : {}).catch((error: unknown) =>
      this.#sleepFailed(cause, error),
    );
  }

  /** It runs on; what sent it to sleep is tried again after a while. */
  #sleepFailed(cause: "idle" | "ttl", error: unknown): void {
    this.#state.parts.log.error({ op: "machine.hibernate", cause, sandboxId: this.entry.id, err: error });
    if (this.phase.name === "running") this.#state.clocks.armLater(this.#sleepRetryMs);
    this.#sleepRetryMs = Math.min(2 * this.#sleepRetryMs, SLEEP_RETRY_MAX_MS);
  }
}
