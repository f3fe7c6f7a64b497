import type { OnPlace } from "./sleep.ts";
import { availableParallelism } from "node:os";
import { type Clock, Gate, type Log, pause } from "@torpor/base";
import type { PoolStatus } from "@torpor/protocol";
import type { Driver, MachineHandle, MachineLimits } from "../driver/driver.ts";
import { Demand } from "./demand.ts";
import type { Golden } from "./golden.ts";
import { GuestClient, type GuestPreparation } from "./guest-client.ts";
import { resumed, Shells } from "./shells.ts";
import type { Slots } from "./slots.ts";

/** A machine restored from a golden snapshot, still locked: nobody's yet. */
export interface PristineMachine {
  handle: MachineHandle;
  guest: GuestClient;
  /** The one {@link GuestClient.prepare} has given it; undefined when it was not prepared. */
  machineId: string | undefined;
  /** What its init must name. */
  hostKey: string;
  /** Where it came from, see protocol `Machine.source`. */
  source: "pool" | "shell" | "cold";
}

export interface PoolOptions {
  template: { name: string; golden: Golden };
  driver: Driver;
  slots: Pick<Slots, "make" | "clear">;
  clock: Clock;
  log: Log;
  /** Machines kept restored, pinged and paused. 0 turns the pool off. */
  readyTarget: number;
  /** Runtime processes kept started and empty at least, see {@link Shells}. */
  shellTarget: number;
  /** How far back the demand for them is looked at. */
  shellDemandMs: number;
  /** Writable layer of what waits; another size is made on the spot. */
  diskMib: number;
  /** Limits while it waits; the lease sets its own. */
  limits: MachineLimits;
  /** What a waiting copy is given ahead; made anew for each. */
  preparation: () => GuestPreparation & { machine_id: string };
  /** Bounds the restores running at once on this host. */
  restoreGate: Gate;
}

const UP_TIMEOUT_MS = 30_000;
/** Refilling waits until no create has been asked for this long: it would take the CPU of it and of its first command. */
const QUIET_MS = 200;
/** How far back demand is looked at. */
const DEMAND_WINDOW_MS = 5000;
/** Most machines that wait, whatever the demand: at 25 MiB each, 400 MiB. */
const MAX_READY = 16;
/** How long an expected create is waited for: its server commits a record meanwhile. */
const EXPECT_MS = 2000;
/** After a refill that failed. Doubled each time up to a minute. */
const RETRY_MS = 500;

/**
 * Keeps machines of one template waiting. Members are pristine: restored, locked, prepared (their own entropy and
 * machine id, one command run so that its pages are in) and paused; each is leased once and never returned.
 */
export class Pool {
  readonly #options: PoolOptions;
  readonly #ready: PristineMachine[] = [];
  readonly #shells: Shells;
  readonly #creates: Demand;
  readonly #stopping = new AbortController();
  readonly #background = new Set<Promise<void>>();
  /** Of those ready: the ones that are resumed already, for a create that is expected. */
  readonly #awake = new Set<PristineMachine>();
  /** Machines that were handed out, as long as anybody holds them. */
  readonly #leased = new WeakSet<MachineHandle>();
  #acquiring = 0;
  #lastAsked = 0;
  #refilling: Promise<void> | undefined;
  /** Ends the pause of the refill, if it makes one. */
  #hurry = new AbortController();
  #failures = 0;

  constructor(options: PoolOptions) {
    this.#options = options;
    this.#creates = new Demand(options.clock, DEMAND_WINDOW_MS);
    this.#shells = new Shells({
      driver: options.driver,
      clock: options.clock,
      least: options.shellTarget,
      demandMs: options.shellDemandMs,
      start: async (signal) => this.#prime(await this.#prepare(options.diskMib, signal)),
      discard: (shell, error) => this.#discard(shell, undefined, error),
      end: (shell) => this.#clear(shell.place.slot),
      track: (work) => this.#track(work),
    });
  }

  get status(): PoolStatus {
    return {
      template: this.#options.template.name,
      ready: this.#ready.length,
      target: this.#target(),
      empty: this.#shells.waiting.length,
      empty_target: this.#shells.target,
    };
  }

  /** Machines that wait. */
  get members(): MachineHandle[] {
    return [...this.#ready.map((member) => member.handle), ...this.#shells.waiting];
  }

  /** Starts filling up in the background. */
  start(): void {
    this.#refill();
  }

  /**
   * Hands out a machine: a waiting one, else an empty process with the image restored into it, else one made from
   * nothing. The caller owns it from then on.
   */
  async acquire(diskMib: number, signal: AbortSignal): Promise<PristineMachine> {
    const { clock } = this.#options;
    this.#lastAsked = clock.monotonic();
    this.#creates.note();
    this.#acquiring += 1;
    try {
      const standard = diskMib === this.#options.diskMib;
      const waiting = standard ? this.#takeReady() : undefined;
      if (waiting !== undefined) return this.#lease(waiting);
      return await this.#options.restoreGate.run(async () => {
        signal.throwIfAborted();
        const late = standard ? this.#takeReady() : undefined;
        if (late !== undefined) return this.#lease(late);
        const shell = standard ? await this.#shells.take() : undefined;
        return this.#lease(await this.#fill(shell, diskMib, shell === undefined ? "cold" : "shell", signal));
      });
    } finally {
      this.#acquiring -= 1;
      this.#lastAsked = clock.monotonic();
      this.#refill();
    }
  }

  /**
   * A create is about to be asked for: one that waits is resumed, which takes some milliseconds, while the request is still
   * on its way. Nobody's claim: whoever asks first gets it.
   * When nobody has within {@link EXPECT_MS}, it waits on.
   */
  expect(diskMib: number): void {
    const member = this.#ready.find((candidate) => !this.#awake.has(candidate));
    if (diskMib !== this.#options.diskMib || member === undefined) return;
    if (!resumed(this.#options.driver, member.handle)) return;
    this.#awake.add(member);
    // What a thawed agent is first asked takes it some milliseconds more than what comes next: this, and not its init.
    member.guest.health(EXPECT_MS).catch(() => {}); // a member that has died is found out when it is taken
    this.#options.clock.after(EXPECT_MS, () => {
      if (this.#awake.delete(member) && !this.#stopping.signal.aborted) this.#track(this.#putBack(member));
    });
  }

  /** Makes one that was resumed for nothing wait again. */
  async #putBack(member: PristineMachine): Promise<void> {
    this.#ready.splice(this.#ready.indexOf(member), 1); // nobody's meanwhile
    try {
      await this.#options.driver.pause(member.handle);
      this.#ready.push(member);
    } catch (error) {
      this.#discard(member.handle, member.guest, error);
    }
  }

  /**
   * Restores another image that stands on this template, into an empty process where one waits. The caller owns the machine
   * from then on.
   *
   * @param onPlace awaited, with its place, before the image goes into it
   * @throws why it failed; nothing of it stays then
   */
  async restore(
    diskMib: number,
    imageDir: string,
    signal: AbortSignal,
    onPlace: OnPlace,
  ): Promise<MachineHandle> {
    this.#acquiring += 1;
    try {
      const shell = diskMib === this.#options.diskMib ? await this.#shells.take() : undefined;
      if (shell !== undefined) this.#requireUnleased(shell);
      return await this.#restore(shell, diskMib, imageDir, signal, onPlace);
    } finally {
      this.#acquiring -= 1;
      this.#lastAsked = this.#options.clock.monotonic();
      this.#refill();
    }
  }

  /** So many images are about to be restored, of machines with this disk: empty processes are started for them meanwhile. */
  expectRestores(count: number, diskMib: number): void {
    if (diskMib !== this.#options.diskMib) return;
    this.#shells.expect(count);
    this.#hurry.abort();
    this.#refill();
  }

  /** Ends every waiting machine. */
  async stop(): Promise<void> {
    this.#stopping.abort();
    await this.#refilling;
    await Promise.all(this.#background);
    for (const { handle, guest } of this.#ready.splice(0)) {
      guest.close();
      this.#clear(handle.place.slot);
    }
    this.#awake.clear();
    this.#shells.close();
    await Promise.all(this.#background);
  }

  /**
   * The one lease of a machine, which comes straight from the golden snapshot. That it was never unlocked before is the
   * guest's to say: one that was refuses the init of its lease.
   *
   * @throws Error when it was handed out before: nobody gets it then
   */
  #lease(machine: PristineMachine): PristineMachine {
    this.#requireUnleased(machine.handle);
    return machine;
  }

  #requireUnleased(handle: MachineHandle): void {
    if (this.#leased.has(handle))
      throw new Error(
        `the machine in slot ${handle.place.slot} was to be handed out a second time: it may hold a tenant's data`,
      );
    this.#leased.add(handle);
  }

  #takeReady(): PristineMachine | undefined {
    for (let member = this.#ready.shift(); member !== undefined; member = this.#ready.shift()) {
      this.#awake.delete(member);
      if (resumed(this.#options.driver, member.handle)) return member;
      this.#discard(member.handle, member.guest);
    }
    return undefined;
  }

  /** @param error what could not be done with it; undefined when its process is gone */
  #discard(handle: MachineHandle, guest?: GuestClient, error?: unknown): void {
    guest?.close();
    this.#options.log.warn(
      { op: "pool.discard", slot: handle.place.slot, ...(error === undefined ? {} : { err: error }) },
      `a waiting machine ${error === undefined ? "has died" : "cannot be used"}; another takes its place`,
    );
    this.#clear(handle.place.slot);
    this.#refill();
  }

  /** Clears a slot in the background. One that cannot be is left to the sweep at the next start. */
  #clear(slot: number): void {
    const { slots, log } = this.#options;
    this.#track(
      slots.clear(slot).catch((error: unknown) => log.error({ op: "pool.clear", slot, err: error })),
    );
  }

  /** Work that a stop waits for. It must not reject. */
  #track(work: Promise<void>): void {
    this.#background.add(work);
    void work.then(() => this.#background.delete(work));
  }

  async #prepare(diskMib: number, signal: AbortSignal): Promise<MachineHandle> {
    const { slots, driver, template, limits } = this.#options;
    const place = await slots.make(diskMib, "internet");
    try {
      return await driver.prepare(template.golden.root, place, limits, signal);
    } catch (error) {
      await slots.clear(place.slot);
      throw error;
    }
  }

  async #prime(shell: MachineHandle): Promise<MachineHandle> {
    try {
      await this.#options.driver.prime(shell);
      return shell;
    } catch (error) {
      this.#discard(shell);
      throw error;
    }
  }

  async #restore(
    shell: MachineHandle | undefined,
    diskMib: number,
    imageDir: string,
    signal: AbortSignal,
    onPlace: OnPlace = () => {},
  ): Promise<MachineHandle> {
    const { slots, driver, template, limits } = this.#options;
    const place = shell?.place ?? (await slots.make(diskMib, "internet"));
    try {
      await onPlace(place);
      if (shell === undefined)
        return await driver.start(template.golden.root, place, limits, imageDir, signal);
      await driver.restore(shell, imageDir, signal);
      return shell;
    } catch (error) {
      await slots.clear(place.slot);
      throw error;
    }
  }

  /** Restores the golden snapshot and waits for the guest's first answer. */
  async #fill(
    shell: MachineHandle | undefined,
    diskMib: number,
    source: PristineMachine["source"],
    signal: AbortSignal,
  ): Promise<PristineMachine> {
    const { slots, template } = this.#options;
    const handle = await this.#restore(shell, diskMib, template.golden.imageDir, signal);
    const guest = new GuestClient(handle.place.address);
    try {
      const { locked } = await guest.waitUntilUp(UP_TIMEOUT_MS, signal);
      if (!locked) throw new Error(`the machine restored in slot ${handle.place.slot} is not locked`);
      const { hostKey } = template.golden;
      if (source !== "pool") return { handle, guest, source, hostKey, machineId: undefined };
      const preparation = this.#options.preparation();
      await guest.prepare(preparation, { hostKey });
      return { handle, guest, source, hostKey, machineId: preparation.machine_id };
    } catch (error) {
      guest.close();
      await slots.clear(handle.place.slot);
      throw error;
    }
  }

  /** As many as were asked for lately, within bounds, so that the next burst of that size finds them waiting. */
  #target(): number {
    if (this.#options.readyTarget === 0) return 0;
    return Math.max(this.#options.readyTarget, Math.min(MAX_READY, this.#creates.count));
  }

  #refill(): void {
    if (this.#stopping.signal.aborted || this.#options.readyTarget === 0) return;
    // Not at once: what the loop does first may find that there is something to refill.
    this.#refilling ??= Promise.resolve()
      .then(() => this.#refillLoop())
      .finally(() => {
        this.#refilling = undefined;
      });
  }

  async #refillLoop(): Promise<void> {
    const { driver, log, diskMib, restoreGate, clock } = this.#options;
    const { signal } = this.#stopping;
    while (!signal.aborted) {
      const wantReady = this.#ready.length < this.#target();
      if (!wantReady && this.#shells.waiting.length >= this.#shells.target) return;
      const waitMs = this.#refillWaits();
      if (waitMs > 0) {
        this.#hurry = new AbortController();
        await pause(clock, waitMs, AbortSignal.any([signal, this.#hurry.signal]));
        continue;
      }
      try {
        await restoreGate.run(async () => {
          if (!wantReady || this.#shells.areShort) {
            await this.#shells.add(signal);
            return;
          }
          const member = await this.#fill(this.#shells.takeWaiting(), diskMib, "pool", signal);
          try {
            await driver.pause(member.handle);
            this.#ready.push(member);
          } catch (error) {
            this.#discard(member.handle, member.guest);
            throw error;
          }
        });
        this.#failures = 0;
      } catch (error) {
        if (signal.aborted) return;
        this.#failures += 1;
        log.error({
          op: "pool.refill",
          template: this.#options.template.name,
          failures: this.#failures,
          err: error,
        });
        await pause(clock, Math.min(RETRY_MS * 2 ** this.#failures, 60_000), this.#stopping.signal);
      }
    }
  }

  /** Milliseconds before it is asked again. 0: now. */
  #refillWaits(): number {
    const { clock } = this.#options;
    if (this.#acquiring > 0) return QUIET_MS;
    if (this.#shells.areShort) return 0;
    if (this.#shells.areExpected) return QUIET_MS; // an image is being written
    return Math.max(0, QUIET_MS - (clock.monotonic() - this.#lastAsked));
  }
}

/** Restores at once: they are CPU-bound, and one more than the cores keeps them busy over the waits. */
export function defaultRestoreWidth(): number {
  return availableParallelism() + 1;
}
