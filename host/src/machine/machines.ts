import {
  CodedError,
  type EndReason,
  type Machine,
  type MachineSample,
  type MachineSnapshot,
  type MachineUpdate,
  type NetworkPolicy,
  type ResolvedMachineSpec,
} from "@torpor/protocol";
import type { MachineHandle } from "../driver/driver.ts";
import type { BrokenEntry, MachineEntry } from "../journal.ts";
import { processIdentity } from "../process-identity.ts";
import type { Activity } from "./activity.ts";
import { CLOCK_JUMP_MS } from "./boot-moment.ts";
import { checkCapacity } from "./capacity.ts";
import { readConsole } from "./console-log.ts";
import type { GuestClient } from "./guest-client.ts";
import { HeldMachine } from "./held-machine.ts";
import type { MachineParts } from "./machine-parts.ts";
import { endedError, toMachine } from "./machine-record.ts";
import { newEntry } from "./new-entry.ts";
import type { Phase } from "./phase.ts";
import { requireSnapshot, type SnapshotOptions, toSnapshot } from "./snapshots.ts";
import { withoutSecrets } from "./without-secrets.ts";

/** How often a machine is looked at that somebody waits for to stand still. */
const SETTLE_LOOK_MS = 10;
const WATCH_INTERVAL_MS = 250;

/** What became of the machines that an earlier host process left. */
export interface Adoption {
  adopted: number;
  failed: number;
  ended: number;
  /** Records that cannot be read: left as they are, with all that may be theirs. */
  broken: number;
}

/** All machines of this host, by id: makes and finds them, and takes up those an earlier host process left. */
export class Machines {
  readonly #parts: MachineParts;
  readonly #held = new Map<string, HeldMachine>();
  /** Records that cannot be read, by id: their machines are taken to exist, and nothing is known of them. */
  readonly #broken = new Map<string, BrokenEntry>();
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
    const { capacity, headroom, driver, clock, journal, secretBox } = this.#parts;
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
    const entry = newEntry(id, spec, driver.info.name, clock, secretBox);
    journal.commit(entry);
    return { machine: await this.#hold(entry).create(), created: true };
  }

  #hold(entry: MachineEntry): HeldMachine {
    const held = new HeldMachine(entry, this.#parts, () => this.#held.delete(entry.id));
    this.#held.set(entry.id, held);
    return held;
  }

  /** A machine, living or ended within the last 7 days. @throws CodedError `internal` when its record cannot be read */
  get(id: string): Machine | undefined {
    const held = this.#held.get(id);
    if (held !== undefined) return held.show();
    const broken = this.#broken.get(id);
    if (broken !== undefined) throw unreadable(broken);
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

  /**
   * What it used between two times, by samples of every 5 s in which it ran, an hour's at most; none of before this host
   * process. Wakes and asks nothing. @throws CodedError `sandbox_not_found`, or 410 `sandbox_ended` with the reason
   */
  samples(id: string, fromUnixMs: number, toUnixMs: number): MachineSample[] {
    return this.#require(id).samples(fromUnixMs, toUnixMs);
  }

  /** Changes clocks; in the journal when this returns. @throws CodedError `sandbox_not_found`, `sandbox_ended` */
  update(id: string, update: Omit<MachineUpdate, "network">): Machine {
    return this.#require(id).update(update);
  }

  /** Changes what it may reach; in the journal and in force when this resolves. @throws CodedError `sandbox_not_found`, `sandbox_ended` */
  async setNetwork(id: string, network: NetworkPolicy): Promise<Machine> {
    return this.#require(id).setNetwork(network);
  }

  async pause(id: string): Promise<Machine> {
    return this.#require(id).pause();
  }

  async resume(id: string): Promise<Machine> {
    return this.#require(id).resume();
  }

  /** @param memory whether memory and processes are kept; default: as its spec says */
  async hibernate(id: string, memory?: boolean): Promise<Machine> {
    return this.#require(id).hibernate({ memory });
  }

  async wake(id: string): Promise<Machine> {
    return this.#require(id).wake();
  }

  /** Writes a snapshot of a machine, which then goes on. The same snapshot id again answers the one that exists. */
  async snapshot(id: string, snapshotId: string, options: SnapshotOptions = {}): Promise<MachineSnapshot> {
    const known = await this.#parts.images.find(snapshotId);
    if (known === undefined) return this.#require(id).snapshot(snapshotId, options);
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

  /** Last 1 MiB of what PID 1 wrote, without the machine's secrets. */
  async console(id: string): Promise<string> {
    const held = this.#require(id);
    const { phase, entry } = held;
    const { slots, secretBox } = this.#parts;
    const { directory } =
      phase.name === "failed" && phase.slot !== null
        ? slots.placeOf(phase.slot, "", 0)
        : held.requireRunning().handle.place;
    const text = await readConsole(directory);
    const secrets = secretBox.unseal(entry.settings.secrets, entry.spec.tenant);
    return withoutSecrets(Object.values(secrets))?.(text) ?? text;
  }

  /**
   * Takes up the machines an earlier host process left: those whose process is the one of the journal run on, those that
   * slept sleep on, all others have failed or ended, with a reason. Waits for none of them: one that does not answer, or
   * cannot be cleared away, does not keep the others. The caller sweeps unclaimed slots and images afterwards.
   */
  async adopt(): Promise<Adoption> {
    const { journal, slots, log } = this.#parts;
    const { entries, broken } = journal.living();
    const processes = new Map(entries.map((entry) => [entry, this.#processOf(entry)]));
    disownTakenSlots(entries, (entry) => processes.get(entry) !== undefined);
    for (const { slot } of [...entries, ...broken]) if (typeof slot === "number") slots.claim(slot);
    for (const entry of broken) {
      this.#broken.set(entry.id, entry);
      log.error({ op: "machine.adopt", outcome: "unreadable", sandboxId: entry.id, err: entry.error });
    }
    const outcomes = await Promise.all(entries.map((entry) => this.#adoptOne(entry, processes.get(entry))));
    const count = (...names: (typeof outcomes)[number][]): number =>
      outcomes.filter((outcome) => names.includes(outcome)).length;
    return {
      adopted: count("standing", "asleep"),
      failed: count("failed"),
      ended: count("ended"),
      broken: broken.length,
    };
  }

  async #adoptOne(
    entry: MachineEntry,
    handle: MachineHandle | undefined,
  ): Promise<"standing" | "asleep" | "failed" | "ended"> {
    const { log } = this.#parts;
    const held = this.#hold(entry);
    try {
      const outcome = await held.adopt(handle);
      log.info({ op: "machine.adopt", outcome, sandboxId: entry.id, slot: entry.slot });
      return outcome;
    } catch (error) {
      log.warn({ op: "machine.adopt", outcome: "failed", sandboxId: entry.id, err: error });
      held.giveUp(`could not be adopted after a restart of the host: ${String(error)}`);
      return "failed";
    }
  }

  #processOf({ slot, pid, startTime, address, spec, incarnations }: MachineEntry): MachineHandle | undefined {
    if (slot === null || pid === null || startTime === null || address === null) return undefined;
    const identity = processIdentity(pid);
    if (identity === undefined || identity.startTime !== startTime) return undefined;
    const place = this.#parts.slots.placeOf(slot, address, spec.disk_mb, incarnations?.at(-1)?.id);
    return { process: identity, place };
  }

  /** Whether all slots that belong to somebody are known: only then may the others be swept. */
  get allSlotsKnown(): boolean {
    return [...this.#broken.values()].every(({ slot }) => slot !== undefined);
  }

  /** Records that cannot be read. */
  get brokenRecords(): readonly BrokenEntry[] {
    return [...this.#broken.values()];
  }

  /** Gives up a record that cannot be read: ends what runs in its slot and forgets it. Its image goes with the next sweep. */
  async giveUpBroken(id: string): Promise<void> {
    const broken = this.#broken.get(id);
    if (broken === undefined) return;
    const { slots, journal, log } = this.#parts;
    if (typeof broken.slot === "number") await slots.clear(broken.slot);
    journal.remove(id);
    this.#broken.delete(id);
    log.warn({ op: "machine.repair", outcome: "given up", sandboxId: id, slot: broken.slot });
  }

  /** Sleeping machines, with the ids of the images they sleep in. */
  get asleep(): { id: string; imageId: string }[] {
    return [...this.#held.values()].flatMap(({ entry, phase }) =>
      phase.name === "hibernated" && entry.image !== null ? [{ id: entry.id, imageId: entry.image.id }] : [],
    );
  }

  /** Machines whose end or stop failed, and is tried again. */
  get stuck(): string[] {
    return [...this.#held.values()]
      .filter(({ phase }) => phase.name === "unended" || (phase.name === "failed" && phase.standing))
      .map(({ entry }) => entry.id);
  }

  /** Images of sleeping machines that no machine sleeps in, or is about to. */
  async orphanImages(): Promise<string[]> {
    const { images, log } = this.#parts;
    const found = await images.list((id, error) =>
      log.error({ op: "image.list", image: id, err: error }, "left as it is"),
    );
    return found
      .filter(({ kind, id, machine_id: machineId }) => {
        const held = this.#held.get(machineId);
        const isUndecided = held?.phase.name === "moving" || this.#broken.has(machineId);
        return kind === "hibernation" && !isUndecided && held?.entry.image?.id !== id;
      })
      .map(({ id }) => id);
  }

  /** Removes images nobody sleeps in. To be called after {@link Machines.adopt}. */
  async sweepImages(): Promise<string[]> {
    const orphans = await this.orphanImages();
    for (const id of orphans) await this.#parts.images.remove(id);
    return orphans;
  }

  /** Starts looking after the processes: one that has ended takes its machine with it within half a second. */
  watch(): void {
    const { clock, journal, log } = this.#parts;
    let offset = clock.now() - clock.monotonic();
    const timer = setInterval(() => {
      const jump = clock.now() - clock.monotonic() - offset;
      if (Math.abs(jump) > CLOCK_JUMP_MS) {
        offset += jump;
        log.warn(
          { op: "clock.jump", ms: Math.round(jump) },
          "the wall clock was set; deadlines stay where they were",
        );
        for (const held of this.#held.values()) held.followClock(Math.round(jump));
      }
      journal.catchUp();
      for (const held of this.#held.values()) held.lookAfter();
    }, WATCH_INTERVAL_MS);
    this.#stopWatch = () => clearInterval(timer);
  }

  stopWatching(): void {
    this.#stopWatch?.();
    for (const held of this.#held.values()) held.letGo();
    this.#parts.journal.letGo();
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

/**
 * Slots are given out anew as soon as they are clear, also when that could not be written down: an entry that names a slot
 * in which another stands has none any more.
 */
function disownTakenSlots(entries: readonly MachineEntry[], lives: (entry: MachineEntry) => boolean): void {
  const owners = new Map<number, MachineEntry>();
  const claim = (entry: MachineEntry): number => (lives(entry) ? 2 : entry.state === "failed" ? 1 : 0);
  for (const entry of entries.toSorted((a, b) => claim(b) - claim(a))) {
    if (entry.slot === null) continue;
    if (owners.has(entry.slot)) entry.slot = null;
    else owners.set(entry.slot, entry);
  }
}

function unreadable({ id, error }: BrokenEntry): CodedError {
  return new CodedError(
    "internal",
    `the host's record of sandbox ${id} cannot be read (${error.message}), so nothing is done with it; see torpor doctor`,
    { cause: error },
  );
}

function notFound(id: string): CodedError {
  return new CodedError("sandbox_not_found", `no machine ${id} on this host`);
}
