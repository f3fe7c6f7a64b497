import { randomBytes } from "node:crypto";
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
import { GuestClient, type GuestIdentity } from "./guest-client.ts";
import { type ClockedMachine, MachineClocks } from "./machine-clocks.ts";
import type { MachineParts } from "./machine-parts.ts";
import { endedError, toMachine } from "./machine-record.ts";
import { originOf } from "./origin.ts";
import type { Live, Phase } from "./phase.ts";
import { newImageId } from "./sleep.ts";
import { toSnapshot } from "./snapshots.ts";

type Standing = Pick<Live, "handle" | "guest">;

/** Processes of the user inside: a fork bomb ends here, far below what would hurt the agent. */
export const GUEST_PIDS_LIMIT = 1024;
/** A guest that stands answers at once; a hung one must not hold up the others. */
const ANSWER_TIMEOUT_MS = 5000;
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
  #phase: Phase = { name: "hibernated" };

  constructor(entry: MachineEntry, parts: MachineParts, onGone: () => void) {
    this.entry = entry;
    this.#parts = parts;
    this.#onGone = onGone;
    this.activity = new Activity(parts.clock);
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
      await this.#unlock(machine, { ...identity, generation: entry.generation }, abort.signal);
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
        this.#phase = { name: "unended", live: { ...made, oomKills: 0, lastOomAt: null } };
        this.#parts.journal.note(this.entry);
        return;
      }
    }
    this.#finish(reason, message);
  }

  /** Limits, egress, identity: after this the guest serves. */
  async #unlock(
    { handle, guest }: Standing,
    identity: Pick<GuestIdentity, "machine_id" | "previous_host_key" | "generation">,
    signal: AbortSignal,
  ): Promise<void> {
    const { driver, router, resolvConf, clock } = this.#parts;
    const { entry } = this;
    const { spec, settings } = entry;
    // A guest that hangs in init must not hold up a destroy.
    signal.addEventListener("abort", () => guest.close(), { once: true });
    Object.assign(entry, {
      slot: handle.place.slot,
      address: handle.place.address,
      pid: handle.process.pid,
      startTime: handle.process.startTime,
    });
    driver.limit(handle, { cpu: spec.cpu, memoryMib: spec.memory_mb });
    if (spec.network === "none") await router.setEgress(handle.place.slot, "none");
    signal.throwIfAborted();
    const hostKey = randomBytes(24).toString("hex");
    entry.attestation = await guest.init({
      ...identity,
      sandbox_id: entry.id,
      template: spec.template,
      hostname: entry.id,
      env: settings.env,
      access_token: entry.accessToken,
      host_key: hostKey,
      entropy_base64: randomBytes(64).toString("base64"),
      resolv_conf: spec.network === "none" ? "" : resolvConf,
      default_user: settings.user,
      default_workdir: settings.workdir,
      pids_limit: GUEST_PIDS_LIMIT,
      ...(entry.deadlineUnixMs === null ? {} : { deadline_unix_ms: entry.deadlineUnixMs }),
      tenant: spec.tenant,
    });
    signal.throwIfAborted();
    Object.assign(entry, { hostKey, generation: identity.generation });
    entry.startedAt ??= clock.now();
  }

  /** The identity it has, to unlock it again after a freeze. */
  get #sameIdentity(): Pick<GuestIdentity, "machine_id" | "previous_host_key" | "generation"> {
    return {
      generation: this.entry.generation,
      machine_id: this.entry.machineId,
      previous_host_key: this.entry.hostKey,
    };
  }

  /** Commits that the machine runs or is paused, and arms its clocks. */
  #settle(state: "running" | "paused", live: Live, event: HostEvent["type"]): void {
    const { journal, feed, clock } = this.#parts;
    this.entry.state = state;
    this.entry.lastActivityAt = this.activity.lastAt;
    journal.commit(this.entry);
    this.#phase = { name: state, live };
    this.#clocks.arm();
    feed.add(event, this.show(), clock.now());
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
    await this.#still();
    const asleep = this.#phase.name === "paused" || this.#phase.name === "hibernated";
    if (asleep && this.entry.spec.auto_wake) await this.wake();
    this.requireRunning();
  }

  /** Changes clocks and what they do; in the journal when this returns. @throws CodedError 410 when it has ended */
  update({ deadline_unix_ms: deadline, ...changes }: MachineUpdate): Machine {
    const { journal, feed, clock } = this.#parts;
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
    const machine = this.show();
    feed.add("deadline_changed", machine, clock.now());
    return machine;
  }

  /** Resolves when nothing is under way. */
  async #still(): Promise<void> {
    while (this.#phase.name === "moving" || this.#phase.name === "creating")
      await this.#phase.done.catch(() => {});
  }

  /** Runs a transition. Whoever comes meanwhile waits for it, but for a destroy, which aborts it. */
  async #move<T>(
    to: "hibernated" | "running" | "snapshot",
    live: Live | undefined,
    act: (signal: AbortSignal) => Promise<T>,
  ): Promise<T> {
    this.#clocks.disarm();
    const abort = new AbortController();
    const acting = act(abort.signal);
    this.#phase = { name: "moving", to, live, abort, done: acting };
    return acting;
  }

  /** Stops it in RAM. Idempotent. */
  async pause(): Promise<Machine> {
    await this.#still();
    if (this.#phase.name === "paused") return this.show();
    const live = this.requireRunning();
    await this.#parts.driver.pause(live.handle);
    this.#settle("paused", live, "paused");
    return this.show();
  }

  /** Lets it go on. Idempotent. */
  async resume(): Promise<Machine> {
    await this.#still();
    if (this.#phase.name === "paused") {
      this.#parts.driver.resume(this.#phase.live.handle);
      this.activity.touch("resume");
      this.#settle("running", this.#phase.live, "resumed");
    }
    this.requireRunning();
    return this.show();
  }

  /** Puts it to storage. Idempotent, callers share one sleep; a failure leaves it running. */
  async hibernate(): Promise<Machine> {
    if (this.#phase.name === "moving" && this.#phase.to === "hibernated") await this.#phase.done;
    await this.#still();
    if (this.#phase.name === "hibernated") return this.show();
    if (this.#phase.name === "paused") await this.resume();
    const live = this.requireRunning();
    await this.#move("hibernated", live, (signal) => this.#hibernate(live, signal));
    return this.show();
  }

  async #hibernate(live: Live, signal: AbortSignal): Promise<void> {
    const { sleep, journal, slots, feed, clock, log } = this.#parts;
    const { entry } = this;
    const startedAt = clock.monotonic();
    const id = newImageId();
    let image: ImageManifest;
    try {
      entry.state = "hibernating";
      journal.commit(entry);
      image = await sleep.write(entry, live, { id, kind: "hibernation", name: null }, signal);
      entry.state = "hibernated";
      entry.image = { id, sizeBytes: image.size_bytes, createdAt: clock.now() };
      if (entry.spec.on_expire === "hibernate") entry.deadlineUnixMs = null;
      entry.lastActivityAt = this.activity.lastAt;
      journal.commit(entry);
    } catch (error) {
      entry.image = null;
      await this.#backToRunning(live, signal);
      await this.#parts.images.remove(id);
      throw error;
    }
    live.guest.close();
    await slots.clear(live.handle.place.slot);
    this.#asleep();
    feed.add("hibernated", this.show(), clock.now());
    log.info({
      op: "machine.hibernate",
      outcome: "hibernated",
      sandboxId: entry.id,
      tenant: entry.spec.tenant,
      bytes: image.size_bytes,
      durationMs: round(clock.monotonic() - startedAt),
    });
  }

  /** It stands no more, and sleeps in its image. */
  #asleep(): void {
    Object.assign(this.entry, { state: "hibernated", slot: null, pid: null, startTime: null, address: null });
    this.#phase = { name: "hibernated" };
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
        if (locked) await this.#unlock(live, this.#sameIdentity, signal);
      }
    } catch (error) {
      failure = `it could not be unlocked after a snapshot: ${String(error)}`;
      log.error({ op: "machine.unlock", outcome: "failed", sandboxId: entry.id, err: error });
    }
    this.activity.touch("snapshot");
    entry.state = "running";
    this.#phase = { name: "running", live };
    journal.note(entry);
    if (failure !== undefined && !signal.aborted) this.endInBackground("runtime_crashed", failure);
    else this.#clocks.arm();
  }

  /** Wakes it: next generation, same id. Idempotent, callers share one wake; a failure leaves it asleep. */
  async wake(): Promise<Machine> {
    if (this.#phase.name === "moving" && this.#phase.to === "running") await this.#phase.done;
    await this.#still();
    if (this.#phase.name === "paused") return this.resume();
    if (this.#phase.name === "hibernated")
      await this.#move("running", undefined, (signal) => this.#wake(signal));
    this.requireRunning();
    return this.show();
  }

  async #wake(signal: AbortSignal): Promise<void> {
    const { sleep, images, journal, slots, clock, log, capacity, headroom } = this.#parts;
    const { entry } = this;
    const startedAt = clock.monotonic();
    const imageId = entry.image?.id ?? "";
    let restored: Standing | undefined;
    try {
      checkCapacity(entry.spec, capacity, headroom());
      const manifest = await images.find(imageId);
      if (manifest === undefined)
        throw new CodedError("image_corrupt", `the image that sandbox ${entry.id} sleeps in is gone`);
      entry.state = "waking";
      journal.commit(entry);
      restored = await sleep.restore(manifest, signal);
      await this.#unlock(
        restored,
        {
          generation: entry.generation + 1,
          machine_id: entry.machineId,
          previous_host_key: manifest.host_key,
        },
        signal,
      );
    } catch (error) {
      restored?.guest.close();
      if (restored !== undefined) await slots.clear(restored.handle.place.slot);
      this.#asleep();
      journal.note(entry);
      log.error({ op: "machine.wake", outcome: "failed", sandboxId: entry.id, err: error });
      throw error;
    }
    entry.image = null;
    this.activity.touch("wake");
    this.#settle("running", { ...restored, oomKills: 0, lastOomAt: null }, "woken");
    // Consumed: committed above, so a crash here leaves a file for the sweep, never a second waking.
    await images
      .remove(imageId)
      .catch((error: unknown) => log.error({ op: "image.remove", image: imageId, err: error }));
    log.info({
      op: "machine.wake",
      outcome: "woken",
      sandboxId: entry.id,
      tenant: entry.spec.tenant,
      generation: entry.generation,
      durationMs: round(clock.monotonic() - startedAt),
    });
  }

  /** Writes a snapshot, waking it first; it then goes on. */
  async snapshot(snapshotId: string, name: string | null): Promise<MachineSnapshot> {
    const { sleep, journal } = this.#parts;
    await this.awaken();
    const live = this.requireRunning();
    return this.#move("snapshot", live, async (signal) => {
      try {
        this.entry.state = "snapshotting";
        journal.commit(this.entry);
        return toSnapshot(
          await sleep.write(this.entry, live, { id: snapshotId, kind: "snapshot", name }, signal),
        );
      } finally {
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
    const live = this.#phase.name === "hibernated" ? undefined : this.#phase.live;
    const done = this.#end(live, reason, message);
    this.#phase = { name: "ending", done };
    return done;
  }

  async #end(live: Live | undefined, reason: EndReason, message: string | null): Promise<Machine> {
    const { slots, images, log, clock, journal } = this.#parts;
    const { entry } = this;
    const startedAt = clock.monotonic();
    this.#clocks.disarm();
    Object.assign(entry, { state: "ending", reason, message, lastActivityAt: this.activity.lastAt });
    journal.note(entry);
    live?.guest.close();
    try {
      if (live !== undefined) await slots.clear(live.handle.place.slot);
      if (entry.image !== null) await images.remove(entry.image.id);
    } catch (error) {
      // The journal says `ending`: the watch, or the next host, tries again. The machine stays visible, not half forgotten.
      log.error({ op: "machine.end", outcome: "failed", sandboxId: entry.id, reason, err: error });
      this.#phase = { name: "unended", live };
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

  /** Takes up a machine that an earlier host process left asleep. */
  adoptAsleep(): void {
    this.#asleep();
    this.#parts.journal.note(this.entry);
  }

  /** Takes up a machine that an earlier host process left standing. @throws when its guest does not answer */
  async adoptStanding(handle: MachineHandle): Promise<void> {
    const { driver } = this.#parts;
    const guest = new GuestClient(this.entry.address ?? "");
    const live: Live = { handle, guest, oomKills: driver.stats(handle).oomKills, lastOomAt: null };
    try {
      if (this.entry.state === "paused") return this.#settle("paused", live, "paused");
      driver.resume(handle); // it may have been stopped between a checkpoint and its commit
      const { locked } = await guest.waitUntilUp(ANSWER_TIMEOUT_MS);
      if (locked) await this.#unlock(live, this.#sameIdentity, new AbortController().signal);
      this.entry.image = null; // of a hibernation that did not come to its commit
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
