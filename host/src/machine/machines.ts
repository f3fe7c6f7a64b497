import { randomBytes } from "node:crypto";
import { truncate } from "node:fs";
import { open, readFile, stat } from "node:fs/promises";
import { join } from "node:path";
import type { Clock, Log } from "@torpor/base";
import {
  type Attestation,
  CodedError,
  type EndReason,
  type Machine,
  type MachineSpec,
} from "@torpor/protocol";
import type { Driver, MachineHandle } from "../driver/driver.ts";
import type { Journal, MachineEntry } from "../journal.ts";
import type { Router } from "../network/router.ts";
import { processIdentity } from "../process-identity.ts";
import type { EventFeed } from "./event-feed.ts";
import { GuestClient } from "./guest-client.ts";
import { endedError, lostReason, toMachine } from "./machine-record.ts";
import type { PristineMachine } from "./pool.ts";
import type { Slots } from "./slots.ts";

/** What this process holds of a machine. Variants own their resources; the journal's state is another matter. */
type Phase =
  | { name: "creating"; abort: AbortController; done: Promise<Machine> }
  | {
      name: "running";
      handle: MachineHandle;
      guest: GuestClient;
      cancelDeadline: () => void;
      oomKills: number;
      lastOomAt: number | null;
    }
  | { name: "ending"; done: Promise<Machine> };

interface Held {
  entry: MachineEntry;
  phase: Phase;
}

/** What a template says of the machines made from it. */
export interface SourceTemplate {
  hash: string;
  /** Environment beneath the sandbox's own, default user and working directory. */
  manifest: { env: Record<string, string>; user: string; workdir: string };
}

/** Supplies pristine machines by template name. */
export interface MachineSource {
  acquire(
    template: string,
    diskMib: number,
    signal: AbortSignal,
  ): Promise<PristineMachine & { template: SourceTemplate }>;
}

export interface MachinesOptions {
  journal: Journal;
  driver: Driver;
  slots: Pick<Slots, "placeOf" | "claim" | "clear">;
  router: Pick<Router, "setEgress">;
  source: MachineSource;
  feed: EventFeed;
  clock: Clock;
  log: Log;
  /** Written to each guest's /etc/resolv.conf. */
  resolvConf: string;
  capacity: { cpus: number; memoryMb: number; diskMb: number };
  /** Free memory and disk right now, MiB, below which creates are refused. */
  headroom: () => { memoryMb: number; diskMb: number };
}

const WATCH_INTERVAL_MS = 250;
/** The console is PID 1's output; root inside can write to it, so it is cut when it grows above this. */
const MAX_CONSOLE_BYTES = 1024 * 1024;
const MIN_FREE_MEMORY_MB = 256;
const MIN_FREE_DISK_MB = 1024;
/** Processes of the user inside: a fork bomb ends here, far below what would hurt the agent. */
export const GUEST_PIDS_LIMIT = 1024;
/** A guest that lived through the host's restart answers at once; a hung one must not hold up the others. */
const ADOPT_TIMEOUT_MS = 5000;

/** All machines of this host: makes, finds, changes, ends and adopts them, and enforces their deadlines. */
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

  get counts(): { running: number; creating: number } {
    const phases = [...this.#held.values()].map((held) => held.phase.name);
    return {
      running: phases.filter((name) => name === "running").length,
      creating: phases.filter((name) => name === "creating").length,
    };
  }

  /** Hashes of templates that living machines stand on. */
  get templatesInUse(): Set<string> {
    return new Set([...this.#held.values()].map((held) => held.entry.templateHash));
  }

  /**
   * Makes a machine. The same id again joins the creation under way or answers the machine that exists.
   *
   * @returns the machine and whether this call made it. @throws CodedError when it cannot be made; nothing stays then.
   */
  async create(id: string, spec: MachineSpec): Promise<{ machine: Machine; created: boolean }> {
    if (this.#closed)
      throw new CodedError("host_unavailable", `machine ${id} was not made: this host is being taken down`);
    const existing = this.#held.get(id);
    if (existing?.phase.name === "creating") return { machine: await existing.phase.done, created: false };
    const known = this.get(id);
    if (known !== undefined) {
      if (known.state !== "running") throw endedError(known);
      return { machine: known, created: false };
    }
    this.#checkCapacity(spec);
    const entry: MachineEntry = {
      id,
      slot: null,
      state: "creating",
      spec,
      templateHash: "",
      driver: this.#options.driver.info.name,
      pid: null,
      startTime: null,
      address: null,
      accessToken: randomBytes(24).toString("hex"),
      hostKey: randomBytes(24).toString("hex"),
      deadlineUnixMs: spec.deadline_unix_ms,
      createdAt: this.#options.clock.now(),
      startedAt: null,
      endedAt: null,
      reason: null,
      message: null,
      attestation: null,
      source: null,
    };
    this.#options.journal.put(entry);
    const abort = new AbortController();
    const done = this.#create(entry, abort);
    this.#held.set(id, { entry, phase: { name: "creating", abort, done } });
    return { machine: await done, created: true };
  }

  async #create(entry: MachineEntry, abort: AbortController): Promise<Machine> {
    const { journal, driver, router, source, clock, log } = this.#options;
    const startedAt = clock.monotonic();
    const { spec } = entry;
    let pristine: PristineMachine | undefined;
    try {
      const acquired = await source.acquire(spec.template, spec.disk_mb, abort.signal);
      pristine = acquired;
      const { handle, guest } = acquired;
      // A guest that hangs in init must not hold up a destroy.
      abort.signal.addEventListener("abort", () => guest.close(), { once: true });
      entry.slot = handle.place.slot;
      entry.address = handle.place.address;
      entry.templateHash = acquired.template.hash;
      entry.source = acquired.source;
      driver.limit(handle, { cpu: spec.cpu, memoryMib: spec.memory_mb });
      if (spec.network === "none") await router.setEgress(handle.place.slot, "none");
      abort.signal.throwIfAborted();
      entry.attestation = await this.#init(entry, acquired);
      abort.signal.throwIfAborted();
      entry.pid = handle.process.pid;
      entry.startTime = handle.process.startTime;
      entry.startedAt = clock.now();
      entry.state = "running";
      journal.put(entry);
      this.#run(entry, handle, guest);
      log.info({
        op: "machine.create",
        outcome: "created",
        sandboxId: entry.id,
        tenant: spec.tenant,
        template: spec.template,
        source: entry.source,
        slot: entry.slot,
        durationMs: round(clock.monotonic() - startedAt),
      });
      return toMachine(entry);
    } catch (error) {
      const aborted = abort.signal.aborted;
      const reason: EndReason = aborted ? (abort.signal.reason as EndReason) : "create_failed";
      await this.#undoCreate(entry, pristine, reason, error instanceof Error ? error.message : String(error));
      log.error({
        op: "machine.create",
        outcome: reason,
        sandboxId: entry.id,
        tenant: spec.tenant,
        durationMs: round(clock.monotonic() - startedAt),
        err: error,
      });
      if (aborted) throw endedError(toMachine(entry));
      throw error;
    }
  }

  /** Takes down what a failed creation had made. When that fails too, the machine stays, `ending`, for the watch. */
  async #undoCreate(
    entry: MachineEntry,
    pristine: PristineMachine | undefined,
    reason: EndReason,
    message: string,
  ): Promise<void> {
    if (pristine !== undefined) {
      const { handle, guest } = pristine;
      guest.close();
      try {
        await this.#options.slots.clear(handle.place.slot);
      } catch (error) {
        this.#options.log.error({
          op: "machine.create",
          outcome: "left",
          sandboxId: entry.id,
          slot: handle.place.slot,
          err: error,
        });
        entry.state = "ending";
        entry.reason = reason;
        entry.message = message;
        this.#held.set(entry.id, {
          entry,
          phase: { name: "running", handle, guest, cancelDeadline: () => {}, oomKills: 0, lastOomAt: null },
        });
        this.#write(entry);
        return;
      }
    }
    this.#finish(entry, reason, message);
  }

  async #init(
    entry: MachineEntry,
    { guest, prepared, template: { manifest } }: PristineMachine & { template: SourceTemplate },
  ): Promise<Attestation> {
    const { spec } = entry;
    return guest.init({
      generation: spec.generation,
      sandbox_id: entry.id,
      template: spec.template,
      hostname: entry.id,
      ...(prepared ? {} : { machine_id: newMachineId() }),
      env: { ...manifest.env, ...spec.env },
      access_token: entry.accessToken,
      host_key: entry.hostKey,
      entropy_base64: randomBytes(64).toString("base64"),
      resolv_conf: spec.network === "none" ? "" : this.#options.resolvConf,
      default_user: manifest.user,
      default_workdir: manifest.workdir,
      pids_limit: GUEST_PIDS_LIMIT,
      ...(entry.deadlineUnixMs === null ? {} : { deadline_unix_ms: entry.deadlineUnixMs }),
      tenant: spec.tenant,
    });
  }

  #run(entry: MachineEntry, handle: MachineHandle, guest: GuestClient): void {
    const phase: Phase = {
      name: "running",
      handle,
      guest,
      cancelDeadline: () => {},
      oomKills: this.#options.driver.stats(handle).oomKills,
      lastOomAt: null,
    };
    this.#held.set(entry.id, { entry, phase });
    this.#armDeadline(entry, phase);
    this.#options.feed.add("started", toMachine(entry), this.#options.clock.now());
  }

  /** Counts on the monotonic clock from now, so that a jump of the wall clock moves no deadline of a running machine. */
  #armDeadline(entry: MachineEntry, phase: Extract<Phase, { name: "running" }>): void {
    phase.cancelDeadline();
    phase.cancelDeadline = () => {};
    if (entry.deadlineUnixMs === null) return;
    phase.cancelDeadline = this.#options.clock.after(entry.deadlineUnixMs - this.#options.clock.now(), () => {
      this.#endInBackground(
        entry.id,
        "ttl_expired",
        `its ttl ended at ${new Date(entry.deadlineUnixMs ?? 0).toISOString()}`,
      );
    });
  }

  /** A machine, living or ended within the last 7 days. */
  get(id: string): Machine | undefined {
    const held = this.#held.get(id);
    if (held === undefined) {
      const entry = this.#unwritten.get(id) ?? this.#options.journal.get(id);
      return entry === undefined ? undefined : toMachine(entry);
    }
    if (held.phase.name === "running") this.#noteOom(held.phase);
    return toMachine(held.entry, lastOomAt(held.phase));
  }

  list(): Machine[] {
    return [...this.#held.values()].map((held) => toMachine(held.entry, lastOomAt(held.phase)));
  }

  /** A running machine's way in. @throws CodedError `sandbox_not_found`, or 410 `sandbox_ended` with the reason. */
  reach(id: string): { entry: Readonly<MachineEntry>; guest: GuestClient; handle: MachineHandle } {
    const held = this.#held.get(id);
    if (held?.phase.name === "running" && held.entry.state === "running")
      return { entry: held.entry, guest: held.phase.guest, handle: held.phase.handle };
    const machine = this.get(id);
    if (machine === undefined) throw notFound(id);
    if (held?.phase.name === "creating")
      throw new CodedError("guest_unavailable", `machine ${id} is still being created; try again shortly`);
    throw endedError(machine);
  }

  /** Sets the deadline; in the journal when this returns. @throws CodedError as {@link Machines.reach}. */
  setDeadline(id: string, deadlineUnixMs: number | null): Machine {
    const { journal, feed, clock } = this.#options;
    this.reach(id);
    const held = this.#held.get(id);
    if (held?.phase.name !== "running") throw notFound(id);
    held.entry.deadlineUnixMs = deadlineUnixMs;
    journal.put(held.entry);
    this.#armDeadline(held.entry, held.phase);
    const machine = toMachine(held.entry);
    feed.add("deadline_changed", machine, clock.now());
    return machine;
  }

  /**
   * Ends a machine and removes every trace of it. Legal in every state: it pre-empts a creation, joins an ending under
   * way, and answers the record of an ended one.
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
    if (phase.name === "creating") {
      phase.abort.abort(reason);
      await phase.done.catch(() => {});
      // It may have been made all the same, just before it saw the signal.
      return this.#held.has(id) ? this.end(id, reason, message) : toMachine(entry);
    }
    const done = this.#end(entry, phase, reason, message);
    held.phase = { name: "ending", done };
    return done;
  }

  async #end(
    entry: MachineEntry,
    phase: Extract<Phase, { name: "running" }>,
    reason: EndReason,
    message: string | null,
  ): Promise<Machine> {
    const { slots, log, clock } = this.#options;
    const startedAt = clock.monotonic();
    phase.cancelDeadline();
    entry.state = "ending";
    entry.reason = reason;
    entry.message = message;
    this.#write(entry);
    phase.guest.close();
    try {
      await slots.clear(phase.handle.place.slot);
    } catch (error) {
      // The journal says `ending`: the next sweep tries again. The machine stays visible, not half forgotten.
      log.error({ op: "machine.end", outcome: "failed", sandboxId: entry.id, reason, err: error });
      this.#held.set(entry.id, { entry, phase });
      throw new CodedError("internal", `machine ${entry.id} could not be ended: ${String(error)}`, {
        cause: error,
      });
    }
    this.#finish(entry, reason, message);
    log.info({
      op: "machine.end",
      outcome: reason,
      sandboxId: entry.id,
      tenant: entry.spec.tenant,
      durationMs: round(clock.monotonic() - startedAt),
    });
    return toMachine(entry);
  }

  #finish(entry: MachineEntry, reason: EndReason, message: string | null): void {
    entry.state = "ended";
    entry.reason = reason;
    entry.message = message;
    entry.endedAt = this.#options.clock.now();
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
        log.error(
          { op: "machine.write", outcome: "failed", sandboxId: entry.id, err: error },
          "will be tried again by the watch",
        );
      }
    }
  }

  /** Intent on the way to an end. An end is not put off because the journal cannot be written, as on a full disk. */
  #write(entry: MachineEntry): void {
    try {
      this.#options.journal.put(entry);
    } catch (error) {
      this.#options.log.error({
        op: "machine.write",
        outcome: "failed",
        sandboxId: entry.id,
        state: entry.state,
        err: error,
      });
    }
  }

  #endInBackground(id: string, reason: EndReason, message: string): void {
    this.end(id, reason, message).catch((error: unknown) => {
      this.#options.log.error(
        { op: "machine.end", sandboxId: id, reason, err: error },
        "will be tried again by the watch",
      );
    });
  }

  /** Last 1 MiB of what PID 1 wrote. */
  async console(id: string): Promise<string> {
    const { handle } = this.reach(id);
    const file = await open(join(handle.place.directory, "console.log"), "r");
    try {
      const { size } = await file.stat();
      const length = Math.min(size, MAX_CONSOLE_BYTES);
      const { buffer, bytesRead } = await file.read(Buffer.alloc(length), 0, length, size - length);
      return buffer.subarray(0, bytesRead).toString("utf8");
    } finally {
      await file.close();
    }
  }

  /**
   * Takes up the machines an earlier host process left: running ones are adopted when their process is the one of the
   * journal and their guest answers; all others are ended with a reason. The caller sweeps unclaimed slots afterwards.
   */
  async adopt(): Promise<{ adopted: number; ended: number }> {
    const { journal, slots } = this.#options;
    const entries = journal.living();
    const candidates = entries.filter(
      (entry) => entry.state === "running" && this.#processOf(entry) !== undefined,
    );
    for (const entry of candidates) slots.claim(entry.slot ?? 0);
    const outcomes = await Promise.all(
      entries.map(async (entry) => {
        if (!candidates.includes(entry)) {
          if (entry.slot !== null) await slots.clear(entry.slot);
          this.#finish(entry, ...lostReason(entry));
          return false;
        }
        return this.#adoptOne(entry);
      }),
    );
    const adopted = outcomes.filter(Boolean).length;
    return { adopted, ended: outcomes.length - adopted };
  }

  async #adoptOne(entry: MachineEntry): Promise<boolean> {
    const { slots, log } = this.#options;
    const handle = this.#processOf(entry);
    const guest = new GuestClient(entry.address ?? "");
    try {
      if (handle === undefined) throw new Error("its process has ended");
      await guest.waitUntilUp(ADOPT_TIMEOUT_MS);
      this.#run(entry, handle, guest);
      log.info({ op: "machine.adopt", outcome: "adopted", sandboxId: entry.id, slot: entry.slot });
      return true;
    } catch (error) {
      guest.close();
      if (entry.slot !== null) await slots.clear(entry.slot);
      this.#finish(
        entry,
        "runtime_crashed",
        `could not be adopted after a restart of the host: ${String(error)}`,
      );
      log.warn({ op: "machine.adopt", outcome: "ended", sandboxId: entry.id, err: error });
      return false;
    }
  }

  #processOf(entry: MachineEntry): MachineHandle | undefined {
    const { slot, pid, startTime, address, spec } = entry;
    if (slot === null || pid === null || startTime === null || address === null) return undefined;
    const identity = processIdentity(pid);
    if (identity === undefined || identity.startTime !== startTime) return undefined;
    return { process: identity, place: this.#options.slots.placeOf(slot, address, spec.disk_mb) };
  }

  /** Starts looking after the processes: one that has ended takes its machine with it within half a second. */
  watch(): void {
    const timer = setInterval(() => this.#lookAround(), WATCH_INTERVAL_MS);
    this.#stopWatch = () => clearInterval(timer);
  }

  stopWatching(): void {
    this.#stopWatch?.();
    for (const { phase } of this.#held.values()) if (phase.name === "running") phase.cancelDeadline();
  }

  #lookAround(): void {
    this.#writeEnded();
    for (const { entry, phase } of this.#held.values()) {
      if (phase.name !== "running") continue;
      if (entry.state === "ending") {
        this.#endInBackground(
          entry.id,
          entry.reason ?? "user",
          entry.message ?? "ended again after a failure",
        );
      } else if (!this.#options.driver.adopt(phase.handle)) {
        this.#noteOom(phase);
        void this.#endCrashed(entry, phase);
      } else {
        this.#noteOom(phase); // close to when it happened, so that a later KILL is not taken for it
        void this.#boundConsole(phase.handle);
      }
    }
  }

  async #endCrashed(entry: MachineEntry, phase: Extract<Phase, { name: "running" }>): Promise<void> {
    const recentOom = phase.lastOomAt !== null && this.#options.clock.now() - phase.lastOomAt < 5000;
    const panic = await readFile(join(phase.handle.place.directory, "panic.log"), "utf8").catch(() => "");
    const why = panic.trim().split("\n")[0] ?? "";
    if (recentOom)
      this.#endInBackground(
        entry.id,
        "oom",
        `it used more than its ${entry.spec.memory_mb} MB of memory and was ended by the kernel`,
      );
    else
      this.#endInBackground(
        entry.id,
        "runtime_crashed",
        `its runtime process ended unexpectedly${why === "" ? "" : `: ${why.slice(0, 500)}`}`,
      );
  }

  #noteOom(phase: Extract<Phase, { name: "running" }>): void {
    const { oomKills } = this.#options.driver.stats(phase.handle);
    if (oomKills > phase.oomKills) {
      phase.oomKills = oomKills;
      phase.lastOomAt = this.#options.clock.now();
    }
  }

  async #boundConsole(handle: MachineHandle): Promise<void> {
    const path = join(handle.place.directory, "console.log");
    const size = await stat(path).then(
      (file) => file.size,
      () => 0,
    );
    if (size > MAX_CONSOLE_BYTES) truncate(path, 0, () => {});
  }

  /** Ends every machine and makes no more: the instance is being taken down. */
  async endAll(reason: EndReason): Promise<void> {
    this.#closed = true;
    await Promise.allSettled([...this.#held.keys()].map((id) => this.end(id, reason)));
  }

  #checkCapacity(spec: MachineSpec): void {
    const { capacity, headroom } = this.#options;
    const wanted = {
      cpu: [spec.cpu, capacity.cpus],
      memory_mb: [spec.memory_mb, capacity.memoryMb],
      disk_mb: [spec.disk_mb, capacity.diskMb],
    } as const;
    for (const [field, [asked, most]] of Object.entries(wanted)) {
      if (asked > most)
        throw new CodedError(
          "invalid_request",
          `${field} is ${asked}, but this host has ${most} in all; ask for at most ${most}`,
          { details: { field, value: asked, maximum: most } },
        );
    }
    const free = headroom();
    if (free.memoryMb < MIN_FREE_MEMORY_MB) {
      throw new CodedError(
        "capacity_exhausted",
        `the host has ${free.memoryMb} MB of memory free, below the ${MIN_FREE_MEMORY_MB} it keeps; destroy sandboxes or try again later`,
      );
    }
    if (free.diskMb < MIN_FREE_DISK_MB) {
      throw new CodedError(
        "capacity_exhausted",
        `the host's state directory has ${free.diskMb} MB free, below the ${MIN_FREE_DISK_MB} it keeps; free disk space`,
      );
    }
  }
}

/** A machine id as systemd writes them: 32 hexadecimal digits. */
export function newMachineId(): string {
  return randomBytes(16).toString("hex");
}

function notFound(id: string): CodedError {
  return new CodedError("sandbox_not_found", `no machine ${id} on this host`);
}

function lastOomAt(phase: Phase): number | null {
  return phase.name === "running" ? phase.lastOomAt : null;
}

function round(ms: number): number {
  return Math.round(ms * 10) / 10;
}
