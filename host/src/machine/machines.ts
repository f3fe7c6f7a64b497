import { randomBytes } from "node:crypto";
import type { Clock, Log } from "@torpor/base";
import { CodedError, type EndReason, type HostEvent, type Machine, type MachineSnapshot, type MachineUpdate, type ResolvedMachineSpec } from "@torpor/protocol";
import type { Driver, MachineHandle } from "../driver/driver.ts";
import type { ImageManifest, ImageStore } from "../image/image-store.ts";
import type { Journal, MachineEntry } from "../journal.ts";
import type { Router } from "../network/router.ts";
import { processIdentity } from "../process-identity.ts";
import { Activity } from "./activity.ts";
import { type Capacity, checkCapacity, type Headroom } from "./capacity.ts";
import { boundConsole, readConsole } from "./console-log.ts";
import { crashReason } from "./crash-reason.ts";
import type { EventFeed } from "./event-feed.ts";
import { GuestClient, type GuestIdentity } from "./guest-client.ts";
import { endedError, lostReason, toMachine } from "./machine-record.ts";
import { newEntry } from "./new-entry.ts";
import type { PristineMachine } from "./pool.ts";
import { newImageId, type Sleep } from "./sleep.ts";
import type { Slots } from "./slots.ts";

/** A machine whose processes stand. */
interface Live {
  handle: MachineHandle;
  guest: GuestClient;
  oomKills: number;
  lastOomAt: number | null;
}

/** What this process holds of a machine. Variants own their resources; the journal's state is another matter. */
type Phase =
  | { name: "creating"; abort: AbortController; done: Promise<Machine> }
  | { name: "running" | "paused"; live: Live }
  | { name: "moving"; to: "hibernated" | "running" | "snapshot"; live: Live | undefined; abort: AbortController; done: Promise<unknown> }
  | { name: "hibernated" }
  | { name: "ending"; done: Promise<Machine> }
  /** Its end failed, e.g. since a process outlived KILL; the watch tries again. */
  | { name: "unended"; live: Live | undefined };

interface Held {
  readonly entry: MachineEntry;
  phase: Phase;
  readonly activity: Activity;
  /** Cancels the timers of deadline, idleness and retention. */
  timers: (() => void)[];
}

/** What a template says of the machines made from it. */
export interface SourceTemplate {
  hash: string;
  /** Environment beneath the sandbox's own, default user and working directory. */
  manifest: { env: Record<string, string>; user: string; workdir: string };
}

/** Supplies pristine machines by template name. */
export interface MachineSource {
  acquire(template: string, diskMib: number, signal: AbortSignal): Promise<PristineMachine & { template: SourceTemplate }>;
}

export interface MachinesOptions {
  journal: Journal;
  driver: Driver;
  slots: Pick<Slots, "placeOf" | "claim" | "clear">;
  router: Pick<Router, "setEgress">;
  source: MachineSource;
  images: ImageStore;
  sleep: Sleep;
  feed: EventFeed;
  clock: Clock;
  log: Log;
  /** Written to each guest's /etc/resolv.conf. */
  resolvConf: string;
  capacity: Capacity;
  headroom: () => Headroom;
}

const WATCH_INTERVAL_MS = 250;
/** Processes of the user inside: a fork bomb ends here, far below what would hurt the agent. */
export const GUEST_PIDS_LIMIT = 1024;
/** A guest that lived through the host's restart answers at once; a hung one must not hold up the others. */
const ADOPT_TIMEOUT_MS = 5000;
/** While a command runs that nobody is attached to, it is asked after this often at least. */
const EXEC_CHECK_MS = 5000;

/**
 * All machines of this host: makes, finds, changes, ends and adopts them, puts them to sleep and wakes them, and
 * enforces their clocks.
 */
export class Machines {
  readonly #options: MachinesOptions;
  readonly #held = new Map<string, Held>();
  /** Ended machines whose end the journal could not take, e.g. because the disk is full; written by the watch later. */
  readonly #unwritten = new Map<string, MachineEntry>();
  #closed = false;
  #stopWatch: (() => void) | undefined;

  constructor(options: MachinesOptions) {
    this.#options = options;
  }

  get counts(): { running: number; creating: number; hibernated: number } {
    const phases = [...this.#held.values()].map((held) => held.phase.name);
    const count = (name: Phase["name"]): number => phases.filter((phase) => phase === name).length;
    return { running: count("running"), creating: count("creating"), hibernated: count("hibernated") };
  }

  /** Hashes of templates that machines, awake or asleep, stand on. */
  get templatesInUse(): Set<string> {
    return new Set([...this.#held.values()].map((held) => held.entry.templateHash));
  }

  /**
   * Makes a machine. The same id again joins the creation under way or answers the machine that exists.
   *
   * @returns the machine and whether this call made it. @throws CodedError when it cannot be made; nothing stays then.
   */
  async create(id: string, spec: ResolvedMachineSpec): Promise<{ machine: Machine; created: boolean }> {
    const { capacity, headroom, driver, clock, journal } = this.#options;
    if (this.#closed) throw new CodedError("host_unavailable", `machine ${id} was not made: this host is being taken down`);
    const existing = this.#held.get(id);
    if (existing?.phase.name === "creating") return { machine: await existing.phase.done, created: false };
    const known = this.get(id);
    if (known !== undefined) {
      if (known.state === "ended" || known.state === "ending") throw endedError(known);
      return { machine: known, created: false };
    }
    checkCapacity(spec, capacity, headroom());
    const entry = newEntry(id, spec, driver.info.name, clock.now());
    journal.put(entry);
    const abort = new AbortController();
    const done = this.#create(entry, abort);
    this.#held.set(id, { entry, phase: { name: "creating", abort, done }, activity: new Activity(clock), timers: [] });
    return { machine: await done, created: true };
  }

  async #create(entry: MachineEntry, abort: AbortController): Promise<Machine> {
    const { clock, log } = this.#options;
    const startedAt = clock.monotonic();
    const { spec } = entry;
    let made: { handle: MachineHandle; guest: GuestClient } | undefined;
    try {
      const origin = await (spec.from_snapshot === null ? this.#fromTemplate(entry, abort.signal) : this.#fromSnapshot(entry, spec.from_snapshot, abort.signal));
      made = origin.machine;
      await this.#unlock(entry, made, { ...origin.identity, generation: entry.generation }, abort.signal);
      const held = this.#require(entry.id);
      this.#settle(held, "running", { ...made, oomKills: this.#options.driver.stats(made.handle).oomKills, lastOomAt: null }, "started");
      log.info({ op: "machine.create", outcome: "created", sandboxId: entry.id, tenant: spec.tenant, template: spec.template, source: entry.source, slot: entry.slot, durationMs: round(clock.monotonic() - startedAt) });
      return this.#show(held);
    } catch (error) {
      const aborted = abort.signal.aborted;
      const reason: EndReason = aborted ? (abort.signal.reason as EndReason) : "create_failed";
      await this.#undoCreate(entry, made, reason, error instanceof Error ? error.message : String(error));
      log.error({ op: "machine.create", outcome: reason, sandboxId: entry.id, tenant: spec.tenant, durationMs: round(clock.monotonic() - startedAt), err: error });
      if (aborted) throw endedError(toMachine(entry));
      throw error;
    }
  }

  async #fromTemplate(entry: MachineEntry, signal: AbortSignal): Promise<{ machine: { handle: MachineHandle; guest: GuestClient }; identity: { machine_id?: string } }> {
    const acquired = await this.#options.source.acquire(entry.spec.template, entry.spec.disk_mb, signal);
    entry.templateHash = acquired.template.hash;
    entry.source = acquired.source;
    const { env, user, workdir } = acquired.template.manifest;
    entry.settings = { env: { ...env, ...entry.spec.env }, user, workdir };
    if (acquired.machineId === undefined) return { machine: acquired, identity: { machine_id: entry.machineId } };
    entry.machineId = acquired.machineId;
    return { machine: acquired, identity: {} };
  }

  async #fromSnapshot(entry: MachineEntry, snapshotId: string, signal: AbortSignal): Promise<{ machine: { handle: MachineHandle; guest: GuestClient }; identity: { machine_id: string; previous_host_key: string } }> {
    const manifest = await this.#findSnapshot(snapshotId);
    // A snapshot restores only into its own tenant; another's is as good as none.
    if (manifest.tenant !== entry.spec.tenant) throw snapshotNotFound(snapshotId);
    if (entry.spec.disk_mb !== manifest.disk_mb) throw new CodedError("invalid_request", `disk_mb is ${entry.spec.disk_mb}, but snapshot ${snapshotId} has a disk of ${manifest.disk_mb}; leave it out`, { details: { field: "disk_mb" } });
    entry.templateHash = manifest.template_hash;
    entry.source = "cold";
    entry.settings = { ...manifest.settings, env: { ...manifest.settings.env, ...entry.spec.env } };
    return { machine: await this.#options.sleep.restore(manifest, signal), identity: { machine_id: entry.machineId, previous_host_key: manifest.host_key } };
  }

  /** Limits, egress, identity: after this the guest serves. */
  async #unlock(entry: MachineEntry, { handle, guest }: { handle: MachineHandle; guest: GuestClient }, identity: Pick<GuestIdentity, "machine_id" | "previous_host_key" | "generation">, signal: AbortSignal): Promise<void> {
    const { driver, router, resolvConf, sleep } = this.#options;
    const { spec } = entry;
    // A guest that hangs in init must not hold up a destroy.
    signal.addEventListener("abort", () => guest.close(), { once: true });
    entry.slot = handle.place.slot;
    entry.address = handle.place.address;
    entry.pid = handle.process.pid;
    entry.startTime = handle.process.startTime;
    driver.limit(handle, { cpu: spec.cpu, memoryMib: spec.memory_mb });
    if (spec.network === "none") await router.setEgress(handle.place.slot, "none");
    signal.throwIfAborted();
    const hostKey = randomBytes(24).toString("hex");
    entry.attestation = await sleep.unlock(guest, {
      ...identity,
      sandbox_id: entry.id,
      template: spec.template,
      hostname: entry.id,
      env: entry.settings.env,
      access_token: entry.accessToken,
      host_key: hostKey,
      resolv_conf: spec.network === "none" ? "" : resolvConf,
      default_user: entry.settings.user,
      default_workdir: entry.settings.workdir,
      pids_limit: GUEST_PIDS_LIMIT,
      ...(entry.deadlineUnixMs === null ? {} : { deadline_unix_ms: entry.deadlineUnixMs }),
      tenant: spec.tenant,
    });
    signal.throwIfAborted();
    entry.hostKey = hostKey;
    entry.generation = identity.generation;
    entry.startedAt ??= this.#options.clock.now();
  }

  /** Takes down what a failed creation had made. When that fails too, the machine stays, `ending`, for the watch. */
  async #undoCreate(entry: MachineEntry, made: { handle: MachineHandle; guest: GuestClient } | undefined, reason: EndReason, message: string): Promise<void> {
    if (made !== undefined) {
      made.guest.close();
      try {
        await this.#options.slots.clear(made.handle.place.slot);
      } catch (error) {
        this.#options.log.error({ op: "machine.create", outcome: "left", sandboxId: entry.id, slot: made.handle.place.slot, err: error });
        Object.assign(entry, { state: "ending", reason, message });
        const held = this.#held.get(entry.id);
        if (held !== undefined) held.phase = { name: "unended", live: { ...made, oomKills: 0, lastOomAt: null } };
        this.#write(entry);
        return;
      }
    }
    this.#finish(entry, reason, message);
  }

  /** Commits that a machine runs or is paused, and arms its clocks. */
  #settle(held: Held, state: "running" | "paused", live: Live, event: HostEvent["type"]): void {
    const { journal, feed, clock } = this.#options;
    held.entry.state = state;
    held.entry.lastActivityAt = held.activity.lastAt;
    journal.put(held.entry);
    held.phase = { name: state, live };
    this.#armClocks(held);
    feed.add(event, this.#show(held), clock.now());
  }

  /** A machine, living or ended within the last 7 days. */
  get(id: string): Machine | undefined {
    const held = this.#held.get(id);
    if (held !== undefined) {
      if (held.phase.name === "running") this.#noteOom(held.phase.live);
      return this.#show(held);
    }
    const entry = this.#unwritten.get(id) ?? this.#options.journal.get(id);
    return entry === undefined ? undefined : toMachine(entry);
  }

  list(): Machine[] {
    return [...this.#held.values()].map((held) => this.#show(held));
  }

  #show({ entry, phase, activity }: Held): Machine {
    return toMachine(entry, { activity, lastOomAt: "live" in phase ? (phase.live?.lastOomAt ?? null) : null });
  }

  #require(id: string): Held {
    const held = this.#held.get(id);
    if (held !== undefined) return held;
    const machine = this.get(id);
    throw machine === undefined ? notFound(id) : endedError(machine);
  }

  /** Whether it can be reached without waking it or waiting. */
  isRunning(id: string): boolean {
    return this.#held.get(id)?.phase.name === "running";
  }

  /** A running machine's way in. @throws CodedError `sandbox_not_found`, `wrong_state`, or 410 `sandbox_ended` with the reason. */
  reach(id: string): { entry: Readonly<MachineEntry>; guest: GuestClient; handle: MachineHandle; activity: Activity } {
    const held = this.#require(id);
    const { phase, entry, activity } = held;
    if (phase.name === "running") return { entry, guest: phase.live.guest, handle: phase.live.handle, activity };
    if (phase.name === "creating") throw new CodedError("guest_unavailable", `machine ${id} is still being created; try again shortly`);
    if (phase.name === "ending" || phase.name === "unended") throw endedError(this.#show(held));
    throw new CodedError("wrong_state", `sandbox ${id} is ${entry.state}; wake or resume it first`, { details: { state: entry.state } });
  }

  /**
   * Makes sure that a machine runs: waits for what is under way, resumes it, wakes it. Concurrent callers share one wake.
   *
   * @throws CodedError as {@link Machines.reach}; `wrong_state` too when it sleeps and `auto_wake` is off
   */
  async awaken(id: string): Promise<void> {
    for (;;) {
      const { phase, entry } = this.#require(id);
      if (phase.name === "moving") await phase.done.catch(() => {});
      else if (phase.name === "creating") await phase.done;
      else if (!entry.spec.auto_wake || (phase.name !== "paused" && phase.name !== "hibernated")) return void this.reach(id);
      else if (phase.name === "paused") await this.resume(id);
      else await this.wake(id);
    }
  }

  /** Changes clocks and what they do; in the journal when this returns. @throws CodedError `sandbox_not_found`, `sandbox_ended` */
  update(id: string, update: MachineUpdate): Machine {
    const { journal, feed, clock } = this.#options;
    const held = this.#require(id);
    if (held.phase.name === "ending" || held.phase.name === "unended" || held.phase.name === "creating") throw endedError(this.#show(held));
    const { deadline_unix_ms: deadline, ...changes } = update;
    if (deadline !== undefined) held.entry.deadlineUnixMs = deadline;
    Object.assign(held.entry.spec, Object.fromEntries(Object.entries(changes).filter(([, value]) => value !== undefined)));
    journal.put(held.entry);
    this.#armClocks(held);
    const machine = this.#show(held);
    feed.add("deadline_changed", machine, clock.now());
    return machine;
  }

  /**
   * Arms what is due in this phase. Delays count on the monotonic clock from now, so that a jump of the wall clock moves
   * nothing of a running machine.
   */
  #armClocks(held: Held): void {
    const { clock } = this.#options;
    for (const cancel of held.timers) cancel();
    held.timers = [];
    const { entry, phase, activity } = held;
    const { spec } = entry;
    if (phase.name !== "running" && phase.name !== "paused" && phase.name !== "hibernated") return;
    if (entry.deadlineUnixMs !== null && !(phase.name === "hibernated" && spec.on_expire === "hibernate")) {
      held.timers.push(clock.after(entry.deadlineUnixMs - clock.now(), () => this.#onExpired(held)));
    }
    if (phase.name === "running" && spec.idle_timeout_seconds !== null && spec.on_idle !== "none") {
      held.timers.push(clock.after(spec.idle_timeout_seconds * 1000 - activity.idleForMs, () => void this.#considerIdle(held)));
    }
    if (phase.name === "hibernated" && spec.retention_seconds !== null && entry.image !== null) {
      held.timers.push(clock.after(entry.image.createdAt + spec.retention_seconds * 1000 - clock.now(), () => this.#endInBackground(entry.id, "retention", `its image was kept for ${spec.retention_seconds} s`)));
    }
  }

  #onExpired({ entry }: Held): void {
    const at = new Date(entry.deadlineUnixMs ?? 0).toISOString();
    if (entry.spec.on_expire === "destroy") this.#endInBackground(entry.id, "ttl_expired", `its ttl ended at ${at}`);
    else this.#sleepInBackground(entry.id, "ttl");
  }

  /** The idle time may be over: unless something holds it or came meanwhile, `on_idle` is done. */
  async #considerIdle(held: Held): Promise<void> {
    const { entry, phase, activity } = held;
    const { clock, log } = this.#options;
    const timeoutMs = (entry.spec.idle_timeout_seconds ?? 0) * 1000;
    const again = (delayMs: number): void => {
      held.timers.push(clock.after(delayMs, () => void this.#considerIdle(held)));
    };
    if (phase.name !== "running" || this.#held.get(entry.id) !== held || entry.spec.idle_timeout_seconds === null) return;
    if (activity.idleForMs < timeoutMs) return again(Math.max(timeoutMs - activity.idleForMs, 10));
    let running: string[];
    try {
      running = await phase.live.guest.runningExecs(entry.accessToken);
    } catch (error) {
      log.warn({ op: "machine.idle", outcome: "unknown", sandboxId: entry.id, err: error });
      return again(EXEC_CHECK_MS);
    }
    if (running.length > 0) {
      activity.touch(`exec ${running[0]}`);
      return again(Math.min(timeoutMs, EXEC_CHECK_MS));
    }
    if (activity.idleForMs < timeoutMs || held.phase !== phase) return again(10);
    const { on_idle: onIdle } = entry.spec;
    if (onIdle === "destroy") this.#endInBackground(entry.id, "idle", `nobody asked anything of it for ${timeoutMs / 1000} s`);
    else if (onIdle === "pause") await this.pause(entry.id).catch((error: unknown) => log.error({ op: "machine.pause", sandboxId: entry.id, err: error }));
    else this.#sleepInBackground(entry.id, "idle");
  }

  #sleepInBackground(id: string, cause: "idle" | "ttl"): void {
    this.hibernate(id).catch((error: unknown) => {
      this.#options.log.error({ op: "machine.hibernate", cause, sandboxId: id, err: error });
      const held = this.#held.get(id);
      // It runs on; what sent it to sleep is tried again after a while.
      if (held?.phase.name === "running") held.timers.push(this.#options.clock.after(30_000, () => this.#armClocks(held)));
    });
  }

  /** Stops a machine in RAM. Idempotent. */
  async pause(id: string): Promise<Machine> {
    const held = await this.#still(id);
    if (held.phase.name === "paused") return this.#show(held);
    const { live } = this.#requireRunning(held);
    await this.#options.driver.pause(live.handle);
    this.#settle(held, "paused", live, "paused");
    return this.#show(held);
  }

  /** Lets a paused machine go on. Idempotent. */
  async resume(id: string): Promise<Machine> {
    const held = await this.#still(id);
    if (held.phase.name === "paused") {
      this.#options.driver.resume(held.phase.live.handle);
      held.activity.touch("resume");
      this.#settle(held, "running", held.phase.live, "resumed");
    } else {
      this.#requireRunning(held);
    }
    return this.#show(held);
  }

  /** The machine when nothing is under way with it. */
  async #still(id: string): Promise<Held> {
    for (;;) {
      const held = this.#require(id);
      if (held.phase.name !== "moving" && held.phase.name !== "creating") return held;
      await held.phase.done.catch(() => {});
    }
  }

  #requireRunning(held: Held): { live: Live } {
    this.reach(held.entry.id); // throws what a person needs to read
    if (held.phase.name !== "running") throw notFound(held.entry.id);
    return held.phase;
  }

  /** Puts a machine to storage. Idempotent; a failure leaves it running. */
  async hibernate(id: string): Promise<Machine> {
    const underWay = this.#held.get(id)?.phase;
    if (underWay?.name === "moving" && underWay.to === "hibernated") {
      await underWay.done;
      return this.hibernate(id);
    }
    const held = await this.#still(id);
    if (held.phase.name === "hibernated") return this.#show(held);
    if (held.phase.name === "paused") {
      this.#options.driver.resume(held.phase.live.handle);
      held.phase = { name: "running", live: held.phase.live };
    }
    const { live } = this.#requireRunning(held);
    await this.#move(held, "hibernated", live, (signal) => this.#hibernate(held, live, signal));
    return this.#show(held);
  }

  /** Runs a transition in the phase `moving`; whoever comes meanwhile waits for it, but a destroy, which aborts it. */
  async #move<T>(held: Held, to: "hibernated" | "running" | "snapshot", live: Live | undefined, act: (signal: AbortSignal) => Promise<T>): Promise<T> {
    for (const cancel of held.timers) cancel();
    held.timers = [];
    const abort = new AbortController();
    let settled = (): void => {};
    const done = new Promise<void>((resolve) => (settled = resolve));
    held.phase = { name: "moving", to, live, abort, done };
    try {
      return await act(abort.signal);
    } finally {
      settled();
    }
  }

  async #hibernate(held: Held, live: Live, signal: AbortSignal): Promise<void> {
    const { sleep, journal, slots, feed, clock, log } = this.#options;
    const { entry } = held;
    const startedAt = clock.monotonic();
    const id = newImageId();
    let image: ImageManifest;
    try {
      entry.state = "hibernating";
      journal.put(entry);
      image = await sleep.write(entry, live, { id, kind: "hibernation", name: null }, signal);
    } catch (error) {
      await this.#backToRunning(held, live, signal);
      throw error;
    }
    entry.state = "hibernated";
    entry.image = { id, sizeBytes: image.size_bytes, createdAt: clock.now() };
    entry.deadlineUnixMs = entry.spec.on_expire === "hibernate" ? null : entry.deadlineUnixMs;
    entry.lastActivityAt = held.activity.lastAt;
    journal.put(entry);
    live.guest.close();
    await slots.clear(live.handle.place.slot);
    Object.assign(entry, { slot: null, pid: null, startTime: null, address: null });
    held.phase = { name: "hibernated" };
    this.#armClocks(held);
    feed.add("hibernated", this.#show(held), clock.now());
    log.info({ op: "machine.hibernate", outcome: "hibernated", sandboxId: entry.id, tenant: entry.spec.tenant, bytes: image.size_bytes, durationMs: round(clock.monotonic() - startedAt) });
  }

  /** After a freeze that led to nothing, or a snapshot: the same machine, the same generation, unlocked again. */
  async #backToRunning(held: Held, live: Live, signal: AbortSignal): Promise<void> {
    const { driver, log } = this.#options;
    const { entry } = held;
    try {
      driver.resume(live.handle);
      if (!signal.aborted) {
        const { locked } = await live.guest.waitUntilUp(ADOPT_TIMEOUT_MS, signal);
        if (locked) await this.#unlock(entry, live, { generation: entry.generation, machine_id: entry.machineId, previous_host_key: entry.hostKey }, signal);
      }
    } catch (error) {
      log.error({ op: "machine.unlock", outcome: "failed", sandboxId: entry.id, err: error });
      held.phase = { name: "running", live };
      if (!signal.aborted) this.#endInBackground(entry.id, "runtime_crashed", `it could not be unlocked after a snapshot: ${String(error)}`);
      return;
    }
    held.activity.touch("snapshot");
    entry.state = "running";
    held.phase = { name: "running", live };
    this.#write(entry);
    this.#armClocks(held);
  }

  /** Wakes a hibernated machine: next generation, same id. Concurrent calls share one wake; a failure leaves it asleep. */
  async wake(id: string): Promise<Machine> {
    const underWay = this.#held.get(id)?.phase;
    if (underWay?.name === "moving" && underWay.to === "running") {
      await underWay.done;
      const held = this.#require(id);
      if (held.phase.name === "running") return this.#show(held);
    }
    const held = await this.#still(id);
    if (held.phase.name === "paused") return this.resume(id);
    if (held.phase.name === "running") return this.#show(held);
    if (held.phase.name !== "hibernated") throw endedError(this.#show(held));
    await this.#move(held, "running", undefined, (signal) => this.#wake(held, signal));
    return this.#show(held);
  }

  async #wake(held: Held, signal: AbortSignal): Promise<void> {
    const { sleep, images, journal, slots, clock, log, capacity, headroom } = this.#options;
    const { entry } = held;
    const startedAt = clock.monotonic();
    let restored: { handle: MachineHandle; guest: GuestClient } | undefined;
    try {
      checkCapacity(entry.spec, capacity, headroom());
      const manifest = entry.image === null ? undefined : await images.find(entry.image.id);
      if (manifest === undefined) throw new CodedError("image_corrupt", `the image that sandbox ${entry.id} sleeps in is gone`);
      entry.state = "waking";
      journal.put(entry);
      restored = await sleep.restore(manifest, signal);
      await this.#unlock(entry, restored, { generation: entry.generation + 1, machine_id: entry.machineId, previous_host_key: manifest.host_key }, signal);
    } catch (error) {
      restored?.guest.close();
      if (restored !== undefined) await slots.clear(restored.handle.place.slot);
      Object.assign(entry, { state: "hibernated", slot: null, pid: null, startTime: null, address: null });
      this.#write(entry);
      held.phase = { name: "hibernated" };
      this.#armClocks(held);
      log.error({ op: "machine.wake", outcome: "failed", sandboxId: entry.id, err: error });
      throw error;
    }
    const imageId = entry.image?.id ?? "";
    entry.image = null;
    held.activity.touch("wake");
    this.#settle(held, "running", { ...restored, oomKills: 0, lastOomAt: null }, "woken");
    // Consumed: committed above, so a crash here leaves a file for the sweep, never a second waking.
    await images.remove(imageId).catch((error: unknown) => log.error({ op: "image.remove", image: imageId, err: error }));
    log.info({ op: "machine.wake", outcome: "woken", sandboxId: entry.id, tenant: entry.spec.tenant, generation: entry.generation, durationMs: round(clock.monotonic() - startedAt) });
  }

  /** Writes a snapshot of a running machine, which then goes on. */
  async snapshot(id: string, snapshotId: string, name: string | null): Promise<MachineSnapshot> {
    const { sleep, journal, images } = this.#options;
    const known = await images.find(snapshotId);
    if (known !== undefined) return toSnapshot(known);
    await this.awaken(id);
    const held = await this.#still(id);
    const { live } = this.#requireRunning(held);
    return this.#move(held, "snapshot", live, async (signal) => {
      try {
        held.entry.state = "snapshotting";
        journal.put(held.entry);
        return toSnapshot(await sleep.write(held.entry, live, { id: snapshotId, kind: "snapshot", name }, signal));
      } finally {
        await this.#backToRunning(held, live, signal);
      }
    });
  }

  async snapshots(): Promise<MachineSnapshot[]> {
    const { images, log } = this.#options;
    const found = await images.list((id, error) => log.error({ op: "image.list", image: id, err: error }));
    return found.filter((manifest) => manifest.kind === "snapshot").map(toSnapshot);
  }

  async #findSnapshot(id: string): Promise<ImageManifest> {
    const manifest = await this.#options.images.find(id);
    if (manifest === undefined || manifest.kind !== "snapshot") throw snapshotNotFound(id);
    return manifest;
  }

  async findSnapshot(id: string): Promise<MachineSnapshot> {
    return toSnapshot(await this.#findSnapshot(id));
  }

  /** Idempotent. Machines made from it live on. */
  async removeSnapshot(id: string): Promise<void> {
    const manifest = await this.#options.images.find(id).catch(() => undefined);
    if (manifest?.kind !== "hibernation") await this.#options.images.remove(id);
  }

  /**
   * Ends a machine and removes every trace of it. Legal in every state: it pre-empts what is under way, joins an ending,
   * and answers the record of an ended one.
   */
  async end(id: string, reason: EndReason, message: string | null = null): Promise<Machine> {
    const held = this.#held.get(id);
    if (held === undefined) {
      const machine = this.get(id);
      if (machine === undefined) throw notFound(id);
      return machine;
    }
    const { phase, entry } = held;
    if (phase.name === "ending") return phase.done;
    if (phase.name === "creating" || phase.name === "moving") {
      phase.abort.abort(reason);
      await phase.done.catch(() => {});
      // It may have come to its end all the same, just before it saw the signal.
      return this.#held.has(id) ? this.end(id, reason, message) : toMachine(entry);
    }
    const live = phase.name === "hibernated" ? undefined : phase.live;
    const done = this.#end(held, live, reason, message);
    held.phase = { name: "ending", done };
    return done;
  }

  async #end(held: Held, live: Live | undefined, reason: EndReason, message: string | null): Promise<Machine> {
    const { slots, images, log, clock } = this.#options;
    const { entry } = held;
    const startedAt = clock.monotonic();
    for (const cancel of held.timers) cancel();
    Object.assign(entry, { state: "ending", reason, message, lastActivityAt: held.activity.lastAt });
    this.#write(entry);
    live?.guest.close();
    try {
      if (live !== undefined) await slots.clear(live.handle.place.slot);
      if (entry.image !== null) await images.remove(entry.image.id);
    } catch (error) {
      // The journal says `ending`: the watch, or the next host, tries again. The machine stays visible, not half forgotten.
      log.error({ op: "machine.end", outcome: "failed", sandboxId: entry.id, reason, err: error });
      held.phase = { name: "unended", live };
      throw new CodedError("internal", `machine ${entry.id} could not be ended: ${String(error)}`, { cause: error });
    }
    this.#finish(entry, reason, message);
    log.info({ op: "machine.end", outcome: reason, sandboxId: entry.id, tenant: entry.spec.tenant, durationMs: round(clock.monotonic() - startedAt) });
    return toMachine(entry);
  }

  #finish(entry: MachineEntry, reason: EndReason, message: string | null): void {
    Object.assign(entry, { state: "ended", reason, message, endedAt: this.#options.clock.now() });
    this.#held.delete(entry.id);
    this.#unwritten.set(entry.id, entry);
    this.#writeEnded();
  }

  /** Writes what has ended, and tells of it; what the journal does not take now is tried again by the watch. */
  #writeEnded(): void {
    const { journal, feed, clock, log } = this.#options;
    for (const entry of this.#unwritten.values()) {
      try {
        journal.put(entry);
        feed.add("ended", toMachine(entry), entry.endedAt ?? clock.now());
        this.#unwritten.delete(entry.id);
      } catch (error) {
        log.error({ op: "machine.write", outcome: "failed", sandboxId: entry.id, err: error }, "will be tried again by the watch");
      }
    }
  }

  /** Intent on the way to an end. An end is not put off because the journal cannot be written, as on a full disk. */
  #write(entry: MachineEntry): void {
    try {
      this.#options.journal.put(entry);
    } catch (error) {
      this.#options.log.error({ op: "machine.write", outcome: "failed", sandboxId: entry.id, state: entry.state, err: error });
    }
  }

  #endInBackground(id: string, reason: EndReason, message: string): void {
    this.end(id, reason, message).catch((error: unknown) => {
      this.#options.log.error({ op: "machine.end", sandboxId: id, reason, err: error }, "will be tried again by the watch");
    });
  }

  /** Last 1 MiB of what PID 1 wrote. */
  async console(id: string): Promise<string> {
    return readConsole(this.reach(id).handle.place.directory);
  }

  /**
   * Takes up the machines an earlier host process left: those whose process is the one of the journal and whose guest
   * answers run on, those that slept sleep on, all others are ended with a reason. The caller sweeps unclaimed slots and
   * images afterwards.
   */
  async adopt(): Promise<{ adopted: number; ended: number }> {
    const { slots } = this.#options;
    const entries = this.#options.journal.living();
    const standing = new Map(entries.map((entry) => [entry, this.#processOf(entry)]));
    for (const [entry, handle] of standing) if (handle !== undefined) slots.claim(entry.slot ?? 0);
    const outcomes = await Promise.all(entries.map((entry) => this.#adoptOne(entry, standing.get(entry))));
    const adopted = outcomes.filter(Boolean).length;
    return { adopted, ended: outcomes.length - adopted };
  }

  async #adoptOne(entry: MachineEntry, handle: MachineHandle | undefined): Promise<boolean> {
    const { slots, images, log, clock } = this.#options;
    const held: Held = { entry, phase: { name: "hibernated" }, activity: new Activity(clock), timers: [] };
    let lost = lostReason(entry);
    try {
      if (entry.image !== null && (entry.state === "hibernated" || entry.state === "waking") && (await images.find(entry.image.id)) !== undefined) {
        if (entry.slot !== null) await slots.clear(entry.slot);
        Object.assign(entry, { state: "hibernated", slot: null, pid: null, startTime: null, address: null });
        this.#held.set(entry.id, held);
        this.#write(entry);
        this.#armClocks(held);
        return true;
      }
      if (handle !== undefined && entry.state !== "creating" && entry.state !== "ending") {
        await this.#adoptRunning(held, handle);
        log.info({ op: "machine.adopt", outcome: "adopted", sandboxId: entry.id, slot: entry.slot });
        return true;
      }
    } catch (error) {
      this.#held.delete(entry.id);
      lost = ["runtime_crashed", `could not be adopted after a restart of the host: ${String(error)}`];
      log.warn({ op: "machine.adopt", outcome: "ended", sandboxId: entry.id, err: error });
    }
    if (entry.slot !== null) await slots.clear(entry.slot);
    if (entry.image !== null) await images.remove(entry.image.id);
    this.#finish(entry, ...lost);
    return false;
  }

  async #adoptRunning(held: Held, handle: MachineHandle): Promise<void> {
    const { driver } = this.#options;
    const { entry } = held;
    const guest = new GuestClient(entry.address ?? "");
    const live: Live = { handle, guest, oomKills: driver.stats(handle).oomKills, lastOomAt: null };
    held.phase = { name: "running", live };
    this.#held.set(entry.id, held);
    try {
      if (entry.state === "paused") return this.#settle(held, "paused", live, "paused");
      driver.resume(handle); // it may have been stopped between a checkpoint and its commit
      const { locked } = await guest.waitUntilUp(ADOPT_TIMEOUT_MS);
      const again = { generation: entry.generation, machine_id: entry.machineId, previous_host_key: entry.hostKey };
      if (locked) await this.#unlock(entry, live, again, new AbortController().signal);
      entry.image = null; // of a hibernation that did not come to its commit
      this.#settle(held, "running", live, "started");
    } catch (error) {
      guest.close();
      throw error;
    }
  }

  #processOf(entry: MachineEntry): MachineHandle | undefined {
    const { slot, pid, startTime, address, spec } = entry;
    if (slot === null || pid === null || startTime === null || address === null) return undefined;
    const identity = processIdentity(pid);
    if (identity === undefined || identity.startTime !== startTime) return undefined;
    return { process: identity, place: this.#options.slots.placeOf(slot, address, spec.disk_mb) };
  }

  /** Removes images nobody sleeps in. To be called after {@link Machines.adopt}. */
  async sweepImages(): Promise<number> {
    const { images, log } = this.#options;
    const slept = new Set([...this.#held.values()].map((held) => held.entry.image?.id));
    const found = await images.list((id, error) => log.error({ op: "image.list", image: id, err: error }, "left as it is"));
    const orphans = found.filter((manifest) => manifest.kind === "hibernation" && !slept.has(manifest.id));
    for (const orphan of orphans) await images.remove(orphan.id);
    return orphans.length;
  }

  /** Starts looking after the processes: one that has ended takes its machine with it within half a second. */
  watch(): void {
    const timer = setInterval(() => this.#lookAround(), WATCH_INTERVAL_MS);
    this.#stopWatch = () => clearInterval(timer);
  }

  stopWatching(): void {
    this.#stopWatch?.();
    for (const { timers } of this.#held.values()) for (const cancel of timers) cancel();
  }

  #lookAround(): void {
    this.#writeEnded();
    for (const { entry, phase } of this.#held.values()) {
      if (phase.name === "unended") {
        this.#endInBackground(entry.id, entry.reason ?? "user", entry.message ?? "ended again after a failure");
      } else if (phase.name === "running" || phase.name === "paused") {
        this.#noteOom(phase.live); // close to when it happened, so that a later KILL is not taken for it
        if (this.#options.driver.adopt(phase.live.handle)) void boundConsole(phase.live.handle.place.directory);
        else void this.#endCrashed(entry, phase.live);
      }
    }
  }

  async #endCrashed(entry: MachineEntry, { handle, lastOomAt }: Live): Promise<void> {
    const [reason, message] = await crashReason(handle.place.directory, entry.spec.memory_mb, lastOomAt, this.#options.clock.now());
    this.#endInBackground(entry.id, reason, message);
  }

  #noteOom(live: Live): void {
    const { oomKills } = this.#options.driver.stats(live.handle);
    if (oomKills > live.oomKills) Object.assign(live, { oomKills, lastOomAt: this.#options.clock.now() });
  }

  /** Ends every machine that is awake and makes no more: the instance is being taken down. Those asleep sleep on. */
  async endAll(reason: EndReason): Promise<void> {
    this.#closed = true;
    const awake = [...this.#held.values()].filter((held) => held.phase.name !== "hibernated");
    await Promise.allSettled(awake.map((held) => this.#takeDown(held, reason)));
  }

  /** A persistent machine is put to sleep; any other, or one that cannot be, is ended. */
  async #takeDown({ entry }: Held, reason: EndReason): Promise<void> {
    if (entry.deadlineUnixMs === null && entry.spec.on_idle === "hibernate") {
      const slept = await this.hibernate(entry.id).then(
        () => true,
        (error: unknown) => {
          this.#options.log.error({ op: "machine.hibernate", sandboxId: entry.id, err: error });
          return false;
        },
      );
      if (slept) return;
    }
    await this.end(entry.id, reason);
  }
}

function toSnapshot(manifest: ImageManifest): MachineSnapshot {
  const { id, name, machine_id, tenant, generation, template, template_hash, driver, driver_version, cpu, memory_mb, disk_mb, network, size_bytes, created_at } = manifest;
  return { id, name, machine_id, tenant, generation, template, template_hash, driver, driver_version, cpu, memory_mb, disk_mb, network, size_bytes, created_at };
}

function notFound(id: string): CodedError {
  return new CodedError("sandbox_not_found", `no machine ${id} on this host`);
}

function snapshotNotFound(id: string): CodedError {
  return new CodedError("snapshot_not_found", `no snapshot ${id} on this host`);
}

function round(ms: number): number {
  return Math.round(ms * 10) / 10;
}
