import {
  CodedError,
  type EndReason,
  type HostEvent,
  type Machine,
  type MachineSnapshot,
  type MachineUpdate,
} from "@torpor/protocol";
import type { MachineHandle } from "../driver/driver.ts";
import type { ImageManifest } from "../image/image-store.ts";
import type { MachineEntry } from "../journal.ts";
import { Activity } from "./activity.ts";
import { boundConsole } from "./console-log.ts";
import { crashReason } from "./crash-reason.ts";
import { checkCapacity } from "./capacity.ts";
import { GuestClient } from "./guest-client.ts";
import { type ClockedMachine, MachineClocks } from "./machine-clocks.ts";
import type { MachineParts } from "./machine-parts.ts";
import { endedError, toMachine } from "./machine-record.ts";
import { originOf } from "./origin.ts";
import type { Destination, Live, Phase, Standing } from "./phase.ts";
import { newImageId } from "./sleep.ts";
import { toSnapshot } from "./snapshots.ts";
import { unlock, unlockAgain } from "./unlock.ts";

/** A guest that stands answers at once; a hung one must not hold up the others. */
const ANSWER_TIMEOUT_MS = 5000;
/** One that an earlier host was photographing is stopped until the runtime has written its memory, large as it may be. */
const PHOTOGRAPHED_TIMEOUT_MS = 60_000;
/** After a sleep by the clock that failed. */
const SLEEP_RETRY_MS = 30_000;

/**
 * One machine of this host, from its creation to its end: the only place that moves its phase and its journal entry.
 * Whoever comes while something is under way waits for it, or joins it; a destroy pre-empts it.
 */
export class HeldMachine implements ClockedMachine {
  readonly entry: MachineEntry;
  readonly activity: Activity;
  readonly #parts: MachineParts;
  readonly #clocks: MachineClocks;
  /** Called once, when the machine is no more. */
  readonly #onGone: () => void;
  #phase: Phase = { name: "hibernated", uncleared: null };

  constructor(entry: MachineEntry, parts: MachineParts, onGone: () => void) {
    this.entry = entry;
    this.#parts = parts;
    this.#onGone = onGone;
    this.activity = new Activity(parts.clock, entry.lastActivityAt);
    this.#clocks = new MachineClocks(this, parts.clock);
  }

  get phase(): Phase {
    return this.#phase;
  }

  show(): Machine {
    if (this.#phase.name === "running") this.#noteOom(this.#phase.live);
    return toMachine(this.entry, {
      activity: this.activity,
      lastOomAt: "live" in this.#phase ? (this.#phase.live?.lastOomAt ?? null) : null,
    });
  }

  /** Makes the machine of a fresh journal entry. @throws CodedError when it cannot be made; nothing stays then */
  create(): Promise<Machine> {
    const abort = new AbortController();
    const done = this.#create(abort);
    this.#phase = { name: "creating", abort, done };
    return done;
  }

  async #create(abort: AbortController): Promise<Machine> {
    const { clock, log, driver } = this.#parts;
    const { entry } = this;
    const startedAt = clock.monotonic();
    let made: Standing | undefined;
    try {
      const { machine, identity } = await originOf(entry, this.#parts, abort.signal);
      made = machine;
      await unlock(entry, machine, { ...identity, generation: entry.generation }, this.#parts, abort.signal);
      this.#settle(
        "running",
        { ...machine, oomKills: driver.stats(machine.handle).oomKills, lastOomAt: null },
        "started",
      );
      log.info({
        op: "machine.create",
        outcome: "created",
        sandboxId: entry.id,
        tenant: entry.spec.tenant,
        template: entry.spec.template,
        source: entry.source,
        slot: entry.slot,
        durationMs: round(clock.monotonic() - startedAt),
      });
      return this.show();
    } catch (error) {
      const aborted = abort.signal.aborted;
      const reason: EndReason = aborted ? (abort.signal.reason as EndReason) : "create_failed";
      await this.#undoCreate(made, reason, error instanceof Error ? error.message : String(error));
      log.error({
        op: "machine.create",
        outcome: reason,
        sandboxId: entry.id,
        tenant: entry.spec.tenant,
        durationMs: round(clock.monotonic() - startedAt),
        err: error,
      });
      if (aborted) throw endedError(toMachine(entry));
      throw error;
    }
  }

  /** Takes down what a failed creation had made. When that fails too, the machine stays, `ending`, for the watch. */
  async #undoCreate(made: Standing | undefined, reason: EndReason, message: string): Promise<void> {
    if (made !== undefined) {
      made.guest.close();
      try {
        await this.#parts.slots.clear(made.handle.place.slot);
      } catch (error) {
        this.#parts.log.error({
          op: "machine.create",
          outcome: "left",
          sandboxId: this.entry.id,
          slot: made.handle.place.slot,
          err: error,
        });
        Object.assign(this.entry, { state: "ending", reason, message });
        this.#phase = { name: "unended", slot: made.handle.place.slot };
        this.#parts.journal.note(this.entry);
        return;
      }
    }
    this.#finish(reason, message);
  }

  /** Commits that the machine runs or is paused, and arms its clocks. @throws when it cannot be written; nothing is changed then */
  #settle(state: "running" | "paused", live: Live, event: HostEvent["type"]): void {
    const before = this.entry.state;
    Object.assign(this.entry, { state, lastActivityAt: this.activity.lastAt });
    try {
      this.#parts.journal.commit(this.entry);
    } catch (error) {
      this.entry.state = before;
      throw error;
    }
    this.#phase = { name: state, live };
    this.#clocks.arm();
    this.#tell(event);
  }

  /** What has happened has happened: an event that cannot be kept is made up for by whoever lists machines. */
  #tell(event: HostEvent["type"]): void {
    const { feed, clock, log } = this.#parts;
    try {
      feed.add(event, this.show(), clock.now());
    } catch (error) {
      log.error({ op: "event.write", outcome: "lost", type: event, sandboxId: this.entry.id, err: error });
    }
  }

  /** @throws CodedError `wrong_state`, `guest_unavailable`, or 410 `sandbox_ended` with the reason */
  requireRunning(): Live {
    const { id, state } = this.entry;
    switch (this.#phase.name) {
      case "running":
        return this.#phase.live;
      case "creating":
        throw new CodedError("guest_unavailable", `machine ${id} is still being created; try again shortly`);
      case "ending":
      case "unended":
        throw endedError(toMachine(this.entry));
      default:
        throw new CodedError("wrong_state", `sandbox ${id} is ${state}; wake or resume it first`, {
          details: { state },
        });
    }
  }

  /**
   * Makes sure that it runs: waits for what is under way, resumes it, wakes it.
   *
   * @throws CodedError as {@link HeldMachine.requireRunning}; `wrong_state` too when it sleeps and `auto_wake` is off
   */
  async awaken(): Promise<void> {
    while (this.#isBusy) await this.#join("running");
    const asleep = this.#phase.name === "paused" || this.#phase.name === "hibernated";
    if (asleep && this.entry.spec.auto_wake) await this.wake();
    this.requireRunning();
  }

  /** Changes clocks and what they do; in the journal when this returns. @throws CodedError 410 when it has ended */
  update({ deadline_unix_ms: deadline, ...changes }: MachineUpdate): Machine {
    const { journal } = this.#parts;
    if (this.#phase.name !== "paused" && this.#phase.name !== "hibernated" && this.#phase.name !== "moving")
      this.requireRunning();
    const before = { deadline: this.entry.deadlineUnixMs, spec: { ...this.entry.spec } };
    if (deadline !== undefined) this.entry.deadlineUnixMs = deadline;
    Object.assign(
      this.entry.spec,
      Object.fromEntries(Object.entries(changes).filter(([, value]) => value !== undefined)),
    );
    try {
      journal.commit(this.entry);
    } catch (error) {
      this.entry.deadlineUnixMs = before.deadline;
      Object.assign(this.entry.spec, before.spec);
      throw error;
    }
    this.#clocks.arm();
    this.#tell("deadline_changed");
    return this.show();
  }

  /** Whether something is under way. To be asked again after each wait: another waiter may have been first. */
  get #isBusy(): boolean {
    return this.#phase.name === "moving" || this.#phase.name === "creating";
  }

  /**
   * Waits for what is under way.
   *
   * @returns whether it was a way to `to`, and has arrived. @throws what made a way to `to` fail; other failures are not ours
   */
  async #join(to: Destination): Promise<boolean> {
    const phase = this.#phase;
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
  #move<T>(
    to: Destination,
    live: Live | undefined,
    act: (signal: AbortSignal) => Promise<T> | T,
  ): Promise<T> {
    this.#clocks.disarm();
    const abort = new AbortController();
    // Begun a moment later: an act that fails at its first step must find the phase that it is to leave.
    const done = Promise.resolve().then(() => act(abort.signal));
    this.#phase = { name: "moving", to, live, abort, done };
    return done;
  }

  /** Stops it in RAM. Idempotent. */
  async pause(): Promise<Machine> {
    while (this.#isBusy) if (await this.#join("paused")) return this.show();
    if (this.#phase.name === "paused") return this.show();
    const live = this.requireRunning();
    await this.#move("paused", live, () => this.#pause(live));
    return this.show();
  }

  async #pause(live: Live): Promise<void> {
    const { driver } = this.#parts;
    try {
      await driver.pause(live.handle);
      this.#settle("paused", live, "paused");
    } catch (error) {
      driver.resume(live.handle);
      this.#phase = { name: "running", live };
      this.#clocks.arm();
      throw error;
    }
  }

  /** Lets it go on. Idempotent. */
  async resume(): Promise<Machine> {
    while (this.#isBusy) await this.#join("running");
    if (this.#phase.name === "paused") this.#resume(this.#phase.live);
    this.requireRunning();
    return this.show();
  }

  #resume(live: Live): void {
    this.#parts.driver.resume(live.handle);
    this.activity.touch("resume");
    this.#settle("running", live, "resumed");
  }

  /** Puts it to storage. Idempotent, callers share one sleep; a failure leaves it running. */
  async hibernate(): Promise<Machine> {
    while (this.#isBusy) if (await this.#join("hibernated")) return this.show();
    if (this.#phase.name === "hibernated") return this.show();
    if (this.#phase.name === "paused") this.#resume(this.#phase.live);
    const live = this.requireRunning();
    await this.#move("hibernated", live, (signal) => this.#hibernate(live, signal));
    return this.show();
  }

  async #hibernate(live: Live, signal: AbortSignal): Promise<void> {
    const { sleep, images, journal, clock, log } = this.#parts;
    const { entry } = this;
    const startedAt = clock.monotonic();
    const deadline = entry.deadlineUnixMs;
    const id = newImageId();
    let image: ImageManifest;
    try {
      entry.state = "hibernating";
      journal.commit(entry);
      image = await sleep.write(entry, live, { id, kind: "hibernation", name: null }, signal);
      entry.state = "hibernated";
      entry.image = { id, sizeBytes: image.size_bytes, createdAt: clock.now() };
      if (this.#ttlIsDone()) entry.deadlineUnixMs = null;
      entry.lastActivityAt = this.activity.lastAt;
      journal.commit(entry);
    } catch (error) {
      Object.assign(entry, { image: null, deadlineUnixMs: deadline });
      await this.#backToRunning(live, signal);
      await images
        .remove(id)
        .catch((cause: unknown) => log.error({ op: "image.remove", image: id, err: cause }));
      throw error;
    }
    live.guest.close();
    await this.#asleep(live.handle.place.slot);
    this.#tell("hibernated");
    log.info({
      op: "machine.hibernate",
      outcome: "hibernated",
      sandboxId: entry.id,
      tenant: entry.spec.tenant,
      bytes: image.size_bytes,
      durationMs: round(clock.monotonic() - startedAt),
    });
  }

  /** A ttl that put it to sleep, or would have, has done its work: it must not put it to sleep again as it wakes. */
  #ttlIsDone(): boolean {
    const { deadlineUnixMs: deadline, spec } = this.entry;
    return spec.on_expire === "hibernate" && deadline !== null && deadline <= this.#parts.clock.now();
  }

  /** It sleeps in its image; what of it stands in `slot` goes, now or by the watch. The journal must not name the slot any more: it will be another's. */
  async #asleep(slot: number | null): Promise<void> {
    const { slots, journal, log } = this.#parts;
    const { entry } = this;
    let uncleared = slot;
    try {
      if (slot !== null) await slots.clear(slot);
      uncleared = null;
    } catch (error) {
      log.error(
        { op: "machine.clear", outcome: "left", sandboxId: entry.id, slot, err: error },
        "will be tried again by the watch",
      );
    }
    Object.assign(entry, { state: "hibernated", slot: null, pid: null, startTime: null, address: null });
    journal.note(entry);
    this.#phase = { name: "hibernated", uncleared };
    this.#clocks.arm();
  }

  /** After a freeze that led to nothing, or a snapshot: the same machine, the same generation, unlocked again. */
  async #backToRunning(live: Live, signal: AbortSignal): Promise<void> {
    const { driver, log, journal } = this.#parts;
    const { entry } = this;
    let failure: string | undefined;
    try {
      driver.resume(live.handle);
      if (!signal.aborted) {
        const { locked } = await live.guest.waitUntilUp(ANSWER_TIMEOUT_MS, signal);
        if (locked) await unlockAgain(entry, live, this.#parts, signal);
      }
    } catch (error) {
      failure = `it could not be unlocked after a snapshot: ${String(error)}`;
      log.error({ op: "machine.unlock", outcome: "failed", sandboxId: entry.id, err: error });
    }
    entry.state = "running";
    this.#phase = { name: "running", live };
    journal.note(entry);
    if (failure !== undefined && !signal.aborted) this.endInBackground("runtime_crashed", failure);
    else this.#clocks.arm();
  }

  /** Wakes it: next generation, same id. Idempotent, callers share one wake; a failure leaves it asleep. */
  async wake(): Promise<Machine> {
    while (this.#isBusy) if (await this.#join("running")) return this.show();
    if (this.#phase.name === "paused") this.#resume(this.#phase.live);
    if (this.#phase.name === "hibernated") {
      const { uncleared } = this.#phase;
      await this.#move("running", undefined, (signal) => this.#wake(signal, uncleared));
      return this.show();
    }
    this.requireRunning();
    return this.show();
  }

  async #wake(signal: AbortSignal, uncleared: number | null): Promise<void> {
    const { sleep, images, journal, slots, clock, log, capacity, headroom } = this.#parts;
    const { entry } = this;
    const { image, deadlineUnixMs: deadline } = entry;
    const startedAt = clock.monotonic();
    let slot = uncleared;
    let restored: Standing | undefined;
    try {
      if (slot !== null) await slots.clear(slot); // never two incarnations at once
      slot = null;
      checkCapacity(entry.spec, capacity, headroom());
      const manifest = await images.find(image?.id ?? "");
      if (manifest === undefined)
        throw new CodedError("image_corrupt", `the image that sandbox ${entry.id} sleeps in is gone`);
      entry.state = "waking";
      journal.commit(entry);
      restored = await sleep.restore(manifest, signal);
      slot = restored.handle.place.slot;
      const incarnation = {
        generation: entry.generation + 1,
        machine_id: entry.machineId,
        previous_host_key: manifest.host_key,
      };
      await unlock(entry, restored, incarnation, this.#parts, signal);
      if (this.#ttlIsDone()) entry.deadlineUnixMs = null;
      entry.image = null;
      this.activity.touch("wake");
      this.#settle("running", { ...restored, oomKills: 0, lastOomAt: null }, "woken");
    } catch (error) {
      restored?.guest.close();
      Object.assign(entry, { image, deadlineUnixMs: deadline });
      await this.#asleep(slot);
      log.error({ op: "machine.wake", outcome: "failed", sandboxId: entry.id, err: error });
      throw error;
    }
    // Consumed: committed above, so a crash here leaves a file for the sweep, never a second waking.
    await images
      .remove(image?.id ?? "")
      .catch((error: unknown) => log.error({ op: "image.remove", image: image?.id, err: error }));
    log.info({
      op: "machine.wake",
      outcome: "woken",
      sandboxId: entry.id,
      tenant: entry.spec.tenant,
      generation: entry.generation,
      durationMs: round(clock.monotonic() - startedAt),
    });
  }

  /** Writes a snapshot, waking it first; it then goes on. The same snapshot id again answers the one that exists. */
  async snapshot(snapshotId: string, name: string | null): Promise<MachineSnapshot> {
    const { sleep, journal, images } = this.#parts;
    while (this.#phase.name !== "running") await this.awaken();
    const { live } = this.#phase;
    return this.#move("snapshot", live, async (signal) => {
      try {
        const known = await images.find(snapshotId);
        if (known !== undefined) return toSnapshot(known);
        this.entry.state = "snapshotting";
        journal.commit(this.entry);
        const image = { id: snapshotId, kind: "snapshot", name } as const;
        return toSnapshot(await sleep.write(this.entry, live, image, signal));
      } finally {
        this.activity.touch("snapshot");
        await this.#backToRunning(live, signal);
      }
    });
  }

  /** Ends it and removes every trace of it. Legal in every phase: pre-empts what is under way, joins an ending. */
  async end(reason: EndReason, message: string | null = null): Promise<Machine> {
    while (this.#phase.name === "creating" || this.#phase.name === "moving") {
      this.#phase.abort.abort(reason);
      await this.#phase.done.catch(() => {});
      // A creation that was aborted has ended it; one that came through just before it saw the signal has not.
      if (this.entry.state === "ended") return toMachine(this.entry);
    }
    if (this.#phase.name === "ending") return this.#phase.done;
    const done = this.#end(reason, message);
    this.#phase = { name: "ending", done };
    return done;
  }

  async #end(reason: EndReason, message: string | null): Promise<Machine> {
    const { slots, images, log, clock, journal } = this.#parts;
    const phase = this.#phase;
    const live = "live" in phase ? phase.live : undefined;
    const left = phase.name === "hibernated" ? phase.uncleared : phase.name === "unended" ? phase.slot : null;
    const slot = live?.handle.place.slot ?? left;
    const { entry } = this;
    const startedAt = clock.monotonic();
    this.#clocks.disarm();
    Object.assign(entry, { state: "ending", reason, message, lastActivityAt: this.activity.lastAt });
    journal.note(entry);
    live?.guest.close();
    try {
      if (slot !== null) await slots.clear(slot);
      if (entry.image !== null) await images.remove(entry.image.id);
    } catch (error) {
      // The journal says `ending`: the watch, or the next host, tries again. The machine stays visible, not half forgotten.
      log.error({ op: "machine.end", outcome: "failed", sandboxId: entry.id, reason, err: error });
      this.#phase = { name: "unended", slot };
      throw new CodedError("internal", `machine ${entry.id} could not be ended: ${String(error)}`, {
        cause: error,
      });
    }
    this.#finish(reason, message);
    log.info({
      op: "machine.end",
      outcome: reason,
      sandboxId: entry.id,
      tenant: entry.spec.tenant,
      durationMs: round(clock.monotonic() - startedAt),
    });
    return toMachine(entry);
  }

  #finish(reason: EndReason, message: string | null): void {
    Object.assign(this.entry, { state: "ended", reason, message, endedAt: this.#parts.clock.now() });
    this.#onGone();
    this.#parts.journal.end(this.entry);
  }

  endInBackground(reason: EndReason, message: string): void {
    this.end(reason, message).catch((error: unknown) => {
      this.#parts.log.error(
        { op: "machine.end", sandboxId: this.entry.id, reason, err: error },
        "will be tried again by the watch",
      );
    });
  }

  /** Takes up a machine that an earlier host process left asleep, its processes perhaps still in `slot`. */
  adoptAsleep(slot: number | null): Promise<void> {
    return this.#asleep(slot);
  }

  /** Takes up a machine that an earlier host process left standing. @throws when its guest does not answer */
  async adoptStanding(handle: MachineHandle): Promise<void> {
    const { driver } = this.#parts;
    const { entry } = this;
    const guest = new GuestClient(entry.address ?? "");
    const live: Live = { handle, guest, oomKills: driver.stats(handle).oomKills, lastOomAt: null };
    try {
      if (entry.state === "paused") {
        await driver.pause(handle); // it may have been let go on just before the commit of that
        this.#settle("paused", live, "paused");
        return;
      }
      driver.resume(handle); // it may have been stopped between a checkpoint and its commit
      const photographed = entry.state === "hibernating" || entry.state === "snapshotting";
      const { locked } = await guest.waitUntilUp(photographed ? PHOTOGRAPHED_TIMEOUT_MS : ANSWER_TIMEOUT_MS);
      if (locked) await unlockAgain(entry, live, this.#parts, new AbortController().signal);
      entry.image = null; // of a hibernation that did not come to its commit
      this.activity.touch("adoption by a restarted host");
      this.#settle("running", live, "started");
    } catch (error) {
      guest.close();
      throw error;
    }
  }

  /** Gives up a machine of an earlier host process: what is left of it goes. */
  async abandon(reason: EndReason, message: string): Promise<void> {
    const { slots, images } = this.#parts;
    this.#clocks.disarm();
    if (this.entry.slot !== null) await slots.clear(this.entry.slot);
    if (this.entry.image !== null) await images.remove(this.entry.image.id);
    this.#finish(reason, message);
  }

  /** Looks after its processes: a machine whose sandbox has ended by itself is ended. */
  lookAfter(): void {
    const phase = this.#phase;
    if (phase.name === "unended") {
      this.endInBackground(this.entry.reason ?? "user", this.entry.message ?? "ended again after a failure");
    } else if (phase.name === "hibernated" && phase.uncleared !== null) {
      const { uncleared } = phase;
      void this.#move("hibernated", undefined, () => this.#asleep(uncleared));
    } else if (phase.name === "running" || phase.name === "paused") {
      this.#noteOom(phase.live); // close to when it happened, so that a later KILL is not taken for it
      if (this.#parts.driver.adopt(phase.live.handle)) void boundConsole(phase.live.handle.place.directory);
      else void this.#endCrashed(phase.live);
    }
  }

  /** Stops its clocks: this process ends, the machine goes on. */
  letGo(): void {
    this.#clocks.disarm();
  }

  async #endCrashed({ handle, lastOomAt }: Live): Promise<void> {
    const [reason, message] = await crashReason(
      handle.place.directory,
      this.entry.spec.memory_mb,
      lastOomAt,
      this.#parts.clock.now(),
    );
    this.endInBackground(reason, message);
  }

  #noteOom(live: Live): void {
    const { oomKills } = this.#parts.driver.stats(live.handle);
    if (oomKills > live.oomKills) Object.assign(live, { oomKills, lastOomAt: this.#parts.clock.now() });
  }

  runningExecs(): Promise<string[]> {
    return this.requireRunning().guest.runningExecs(this.entry.accessToken);
  }

  onExpired(): void {
    if (this.entry.spec.on_expire === "hibernate") this.#sleepInBackground("ttl");
    else
      this.endInBackground(
        "ttl_expired",
        `its ttl ended at ${new Date(this.entry.deadlineUnixMs ?? 0).toISOString()}`,
      );
  }

  onIdle(): void {
    const { on_idle: onIdle, idle_timeout_seconds: seconds } = this.entry.spec;
    if (onIdle === "destroy") this.endInBackground("idle", `nobody asked anything of it for ${seconds} s`);
    else if (onIdle === "pause") this.pause().catch((error: unknown) => this.#sleepFailed("idle", error));
    else this.#sleepInBackground("idle");
  }

  onRetained(): void {
    this.endInBackground("retention", `its image was kept for ${this.entry.spec.retention_seconds} s`);
  }

  #sleepInBackground(cause: "idle" | "ttl"): void {
    this.hibernate().catch((error: unknown) => this.#sleepFailed(cause, error));
  }

  /** It runs on; what sent it to sleep is tried again after a while. */
  #sleepFailed(cause: "idle" | "ttl", error: unknown): void {
    this.#parts.log.error({ op: "machine.hibernate", cause, sandboxId: this.entry.id, err: error });
    if (this.#phase.name === "running") this.#clocks.armLater(SLEEP_RETRY_MS);
  }
}

function round(ms: number): number {
  return Math.round(ms * 10) / 10;
}
