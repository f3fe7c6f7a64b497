import {
  CodedError,
  type EndReason,
  type Machine,
  type MachineSnapshot,
  type MachineState,
  type MachineUpdate,
  type ResolvedMachineSpec,
} from "@torpor/protocol";
import type { MachineHandle } from "../driver/driver.ts";
import type { MachineEntry } from "../journal.ts";
import { processIdentity } from "../process-identity.ts";
import type { Activity } from "./activity.ts";
import { checkCapacity } from "./capacity.ts";
import { readConsole } from "./console-log.ts";
import type { GuestClient } from "./guest-client.ts";
import { HeldMachine } from "./held-machine.ts";
import type { MachineParts } from "./machine-parts.ts";
import { endedError, lostReason, toMachine } from "./machine-record.ts";
import { newEntry } from "./new-entry.ts";
import type { Phase } from "./phase.ts";
import { requireSnapshot, toSnapshot } from "./snapshots.ts";

/** How often a machine is looked at that somebody waits for to stand still. */
const SETTLE_LOOK_MS = 10;
const WATCH_INTERVAL_MS = 250;

/** All machines of this host, by id: makes and finds them, and takes up those an earlier host process left. */
export class Machines {
  readonly #parts: MachineParts;
  readonly #held = new Map<string, HeldMachine>();
  #closed = false;
  #stopWatch: (() => void) | undefined;

  constructor(parts: MachineParts) {
    this.#parts = parts;
  }

  get counts(): { running: number; creating: number; hibernated: number } {
    const phases = [...this.#held.values()].map((held) => held.phase.name);
    const count = (name: Phase["name"]): number => phases.filter((phase) => phase === name).length;
    return { running: count("running"), creating: count("creating"), hibernated: count("hibernated") };
  }

  /** Hashes of templates that machines, awake or asleep, and snapshots stand on. */
  async templatesInUse(): Promise<Set<string>> {
    const snapshots = await this.snapshots();
    return new Set([
      ...[...this.#held.values()].map((held) => held.entry.templateHash),
      ...snapshots.map((snapshot) => snapshot.template_hash),
    ]);
  }

  /**
   * Makes a machine. The same id again joins the creation under way or answers the machine that exists.
   *
   * @returns the machine and whether this call made it. @throws CodedError when it cannot be made; nothing stays then.
   */
  async create(id: string, spec: ResolvedMachineSpec): Promise<{ machine: Machine; created: boolean }> {
    const { capacity, headroom, driver, clock, journal } = this.#parts;
    if (this.#closed)
      throw new CodedError("host_unavailable", `machine ${id} was not made: this host is being taken down`);
    const existing = this.#held.get(id);
    if (existing?.phase.name === "creating") return { machine: await existing.phase.done, created: false };
    const known = this.get(id);
    if (known !== undefined) {
      if (known.state === "ended" || known.state === "ending") throw endedError(known);
      return { machine: known, created: false };
    }
    checkCapacity(spec, capacity, headroom());
    const entry = newEntry(id, spec, driver.info.name, clock.now());
    journal.commit(entry);
    return { machine: await this.#hold(entry).create(), created: true };
  }

  #hold(entry: MachineEntry): HeldMachine {
    const held = new HeldMachine(entry, this.#parts, () => this.#held.delete(entry.id));
    this.#held.set(entry.id, held);
    return held;
  }

  /** A machine, living or ended within the last 7 days. */
  get(id: string): Machine | undefined {
    const held = this.#held.get(id);
    if (held !== undefined) return held.show();
    const entry = this.#parts.journal.ended(id);
    return entry === undefined ? undefined : toMachine(entry);
  }

  list(): Machine[] {
    return [...this.#held.values()].map((held) => held.show());
  }

  /** @throws CodedError `sandbox_not_found`, or 410 `sandbox_ended` with the reason */
  #require(id: string): HeldMachine {
    const held = this.#held.get(id);
    if (held !== undefined) return held;
    const machine = this.get(id);
    throw machine === undefined ? notFound(id) : endedError(machine);
  }

  #isRunning(id: string): boolean {
    return this.#held.get(id)?.phase.name === "running";
  }

  /** A running machine's way in. @throws CodedError `sandbox_not_found`, `wrong_state`, or 410 `sandbox_ended` with the reason. */
  reach(id: string): {
    entry: Readonly<MachineEntry>;
    guest: GuestClient;
    handle: MachineHandle;
    activity: Activity;
  } {
    const held = this.#require(id);
    const { guest, handle } = held.requireRunning();
    return { entry: held.entry, guest, handle, activity: held.activity };
  }

  /** As {@link Machines.reach}, of a machine that is made sure to run, waking it if need be; concurrent callers share one wake. */
  async awaken(id: string): Promise<ReturnType<Machines["reach"]>> {
    // Again if it was put to sleep in the moment after: a caller that may wake it is never told that it sleeps.
    while (!this.#isRunning(id)) await this.#require(id).awaken();
    return this.reach(id);
  }

  /**
   * The machine once it stands still, neither paused nor on its way to another state, or as it is after `withinMs`. Moves
   * nothing. @returns undefined for an id that is unknown
   */
  async settled(id: string, withinMs: number, signal: AbortSignal): Promise<Machine | undefined> {
    const { clock } = this.#parts;
    const until = clock.monotonic() + withinMs;
    const isPassing = (): boolean =>
      ["creating", "moving", "paused"].includes(this.#held.get(id)?.phase.name ?? "");
    while (isPassing() && !signal.aborted && clock.monotonic() < until)
      await new Promise<void>((resolve) => clock.after(SETTLE_LOOK_MS, resolve));
    return this.get(id);
  }

  /** Changes clocks; in the journal when this returns. @throws CodedError `sandbox_not_found`, `sandbox_ended` */
  update(id: string, update: MachineUpdate): Machine {
    return this.#require(id).update(update);
  }

  async pause(id: string): Promise<Machine> {
    return this.#require(id).pause();
  }

  async resume(id: string): Promise<Machine> {
    return this.#require(id).resume();
  }

  async hibernate(id: string): Promise<Machine> {
    return this.#require(id).hibernate();
  }

  async wake(id: string): Promise<Machine> {
    return this.#require(id).wake();
  }

  /** Writes a snapshot of a machine, which then goes on. The same snapshot id again answers the one that exists. */
  async snapshot(id: string, snapshotId: string, name: string | null): Promise<MachineSnapshot> {
    const known = await this.#parts.images.find(snapshotId);
    if (known === undefined) return this.#require(id).snapshot(snapshotId, name);
    if (known.machine_id !== id)
      throw new CodedError("conflict", `snapshot ${snapshotId} exists and is of another sandbox than ${id}`);
    return toSnapshot(known);
  }

  async snapshots(): Promise<MachineSnapshot[]> {
    const { images, log } = this.#parts;
    const found = await images.list((id, error) => log.error({ op: "image.list", image: id, err: error }));
    return found.filter((manifest) => manifest.kind === "snapshot").map(toSnapshot);
  }

  /** @throws CodedError `snapshot_not_found` */
  async findSnapshot(id: string): Promise<MachineSnapshot> {
    return toSnapshot(await requireSnapshot(this.#parts.images, id));
  }

  /** Idempotent. Machines made from it live on. */
  async removeSnapshot(id: string): Promise<void> {
    const manifest = await this.#parts.images.find(id).catch(() => undefined); // a damaged one goes too
    if (manifest?.kind !== "hibernation") await this.#parts.images.remove(id);
  }

  /** Ends a machine and removes every trace of it. Legal in every state; answers the record of one that has ended. */
  async end(id: string, reason: EndReason, message: string | null = null): Promise<Machine> {
    const held = this.#held.get(id);
    if (held !== undefined) return held.end(reason, message);
    const machine = this.get(id);
    if (machine === undefined) throw notFound(id);
    return machine;
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
    const entries = this.#parts.journal.living();
    const standing = new Map(entries.map((entry) => [entry, this.#processOf(entry)]));
    for (const [{ slot, state }, handle] of standing)
      if (handle !== undefined && slot !== null && !sleeps(state)) this.#parts.slots.claim(slot);
    const outcomes = await Promise.all(entries.map((entry) => this.#adoptOne(entry, standing.get(entry))));
    const adopted = outcomes.filter(Boolean).length;
    return { adopted, ended: outcomes.length - adopted };
  }

  async #adoptOne(entry: MachineEntry, handle: MachineHandle | undefined): Promise<boolean> {
    const { log } = this.#parts;
    const held = this.#hold(entry);
    let lost = lostReason(entry);
    try {
      // Whatever has become of its image: one that cannot be read now may be put back, and a wake says what is wrong.
      if (sleeps(entry.state) && entry.image !== null) {
        await held.adoptAsleep(handle === undefined ? null : entry.slot);
        return true;
      }
      if (handle !== undefined && entry.state !== "creating" && entry.state !== "ending") {
        await held.adoptStanding(handle);
        log.info({ op: "machine.adopt", outcome: "adopted", sandboxId: entry.id, slot: entry.slot });
        return true;
      }
    } catch (error) {
      lost = ["runtime_crashed", `could not be adopted after a restart of the host: ${String(error)}`];
      log.warn({ op: "machine.adopt", outcome: "ended", sandboxId: entry.id, err: error });
    }
    await held.abandon(...lost);
    return false;
  }

  #processOf({ slot, pid, startTime, address, spec }: MachineEntry): MachineHandle | undefined {
    if (slot === null || pid === null || startTime === null || address === null) return undefined;
    const identity = processIdentity(pid);
    if (identity === undefined || identity.startTime !== startTime) return undefined;
    return { process: identity, place: this.#parts.slots.placeOf(slot, address, spec.disk_mb) };
  }

  /** Removes images nobody sleeps in. To be called after {@link Machines.adopt}. */
  async sweepImages(): Promise<number> {
    const { images, log } = this.#parts;
    const slept = new Set([...this.#held.values()].map((held) => held.entry.image?.id));
    const found = await images.list((id, error) =>
      log.error({ op: "image.list", image: id, err: error }, "left as it is"),
    );
    const orphans = found.filter((manifest) => manifest.kind === "hibernation" && !slept.has(manifest.id));
    for (const orphan of orphans) await images.remove(orphan.id);
    return orphans.length;
  }

  /** Starts looking after the processes: one that has ended takes its machine with it within half a second. */
  watch(): void {
    const timer = setInterval(() => {
      this.#parts.journal.catchUp();
      for (const held of this.#held.values()) held.lookAfter();
    }, WATCH_INTERVAL_MS);
    this.#stopWatch = () => clearInterval(timer);
  }

  stopWatching(): void {
    this.#stopWatch?.();
    for (const held of this.#held.values()) held.letGo();
  }

  /** Makes no more machines and takes down those that are awake: the instance is being stopped. Those asleep sleep on. */
  async endAll(reason: EndReason): Promise<void> {
    this.#closed = true;
    const awake = [...this.#held.values()].filter((held) => held.phase.name !== "hibernated");
    await Promise.allSettled(awake.map((held) => this.#takeDown(held, reason)));
  }

  /** A machine without a deadline that sleeps when idle is put to sleep; any other, or one that cannot be, is ended. */
  async #takeDown(held: HeldMachine, reason: EndReason): Promise<void> {
    const { deadlineUnixMs, spec, id } = held.entry;
    if (deadlineUnixMs === null && spec.on_idle === "hibernate") {
      try {
        await held.hibernate();
        return;
      } catch (error) {
        this.#parts.log.error({ op: "machine.hibernate", sandboxId: id, err: error });
      }
    }
    await held.end(reason);
  }
}

/** Whether a machine in that state of the journal rests in its image; a waking one does until it is committed as running. */
function sleeps(state: MachineState): boolean {
  return state === "hibernated" || state === "waking";
}

function notFound(id: string): CodedError {
  return new CodedError("sandbox_not_found", `no machine ${id} on this host`);
}
