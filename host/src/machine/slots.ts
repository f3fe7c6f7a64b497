import { mkdir, readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { Gate } from "@torpor/base";
import { CodedError, type NetworkPolicy, randomText } from "@torpor/protocol";
import type { CgroupTree } from "../cgroup.ts";
import type { Driver, MachinePlace } from "../driver/driver.ts";
import { MAX_SLOT } from "../network/address-plan.ts";
import type { Router, SlotNetwork } from "../network/router.ts";

/** Clearing one is some ten short processes. */
const SWEEP_WIDTH = 4;

/** What is made ahead may go anywhere, as most machines may; nothing runs in it yet. */
const AHEAD_EGRESS: NetworkPolicy = "internet";
const LAPSE_MS = 10_000;
/** Networks kept made for whoever comes next: as many as a fork restores at once. Each is some 0.1 MiB of the kernel's memory. */
export const SPARE_NETWORKS = 8;
const REPLENISH_AFTER_MS = 1_000;
/** Between two of them: each takes some 20 ms of a CPU, in the background. */
const REPLENISH_EVERY_MS = 100;
/** What a slot whose processes are gone has left is removed after so long. */
const TIDY_AFTER_MS = 25;

export interface SlotsOptions {
  router: Pick<Router, "addSlot" | "removeSlot" | "setEgress" | "slotsInPlace">;
  driver: Pick<Driver, "kill" | "stop">;
  cgroups: Pick<CgroupTree, "children">;
  /** Parent of the machines' directories. */
  directory: string;
  /** Name of a slot's network namespace. */
  netnsOf: (slot: number) => string;
}

/**
 * Places for machines: a number, and by it a network namespace, a directory, a cgroup. A place serves one machine and
 * is taken apart with it.
 */
export class Slots {
  readonly #options: SlotsOptions;
  readonly #taken = new Set<number>();
  /** Unclaimed ones that could not be cleared: nobody's, and not to be given out. */
  readonly #stuck = new Set<number>();
  /** Of slots that are nobody's any more. None rejects. */
  readonly #tidying = new Set<Promise<void>>();
  /** Taken for places that will be asked for. */
  readonly #ahead: { slot: number; network: Promise<SlotNetwork> }[] = [];
  #lapse: NodeJS.Timeout | undefined;
  /** As many of those ahead are kept, see {@link Slots.keepSpares}. */
  #spares = 0;
  #isClosing = false;
  #replenishing: NodeJS.Timeout | undefined;
  #next = 1;

  constructor(options: SlotsOptions) {
    this.#options = options;
  }

  /** The place of a machine that is already in its slot. */
  placeOf(slot: number, address: string, diskMib: number, incarnationId = ""): MachinePlace {
    const directory = this.#directoryOf(slot);
    return { slot, incarnationId, directory, netns: this.#options.netnsOf(slot), address, diskMib };
  }

  /** Marks the slot of an adopted machine as taken. */
  claim(slot: number): void {
    this.#taken.add(slot);
  }

  /** A fresh place. On an error nothing of it stays. @throws CodedError `capacity_exhausted` */
  async make(diskMib: number, egress: NetworkPolicy): Promise<MachinePlace> {
    const { router } = this.#options;
    const ahead = await this.#takeAhead();
    const slot = ahead?.slot ?? this.#pick();
    const directory = this.#directoryOf(slot);
    try {
      const [network] = await Promise.all([
        ahead ?? router.addSlot(slot, egress),
        mkdir(directory, { recursive: true, mode: 0o700 }),
      ]);
      if (ahead !== undefined && egress !== AHEAD_EGRESS) await router.setEgress(slot, egress);
      const { netns, address } = network;
      return { slot, incarnationId: newIncarnationId(), directory, netns, address, diskMib };
    } catch (error) {
      await this.clear(slot);
      throw error;
    }
  }

  /**
   * So many places will be asked for in a moment, by all who say so: begins to make the networks that are not there yet, which is mostly waiting.
   * Those that nobody has taken after ten seconds are removed.
   */
  expect(count: number): void {
    while (this.#ahead.length < count && this.#taken.size < MAX_SLOT) void this.#makeAhead();
    clearTimeout(this.#lapse);
    this.#lapse = setTimeout(() => this.#dropAhead(), LAPSE_MS).unref();
  }

  /**
   * Keeps the networks of some places made from now on, for machines that nothing was prepared for: they are the longest of what
   * a place needs. Made anew one by one, from a second after the first was taken on, when whoever took it has its machine.
   */
  keepSpares(): void {
    if (this.#isClosing) return;
    this.#spares = SPARE_NETWORKS;
    this.#replenishing = undefined;
    if (this.#ahead.length >= this.#spares || this.#taken.size >= MAX_SLOT) return;
    this.#makeAhead().then(
      () => this.#replenishAfter(REPLENISH_EVERY_MS),
      () => {}, // the next that is taken has it tried again
    );
  }

  #replenishAfter(ms: number): void {
    if (this.#spares > 0) this.#replenishing ??= setTimeout(() => this.keepSpares(), ms).unref();
  }

  #makeAhead(): Promise<SlotNetwork> {
    const slot = this.#pick();
    const ahead = { slot, network: this.#options.router.addSlot(slot, AHEAD_EGRESS) };
    this.#ahead.push(ahead);
    ahead.network.catch(() => {
      // Whoever would have taken it makes its own, and hears what is wrong.
      const index = this.#ahead.indexOf(ahead);
      if (index !== -1) this.#drop(this.#ahead.splice(index, 1));
    });
    return ahead.network;
  }

  /** Undefined when none was made ahead, or it could not be made. */
  async #takeAhead(): Promise<SlotNetwork | undefined> {
    const ahead = this.#ahead.shift();
    this.#replenishAfter(REPLENISH_AFTER_MS);
    const network = await ahead?.network.catch(() => undefined);
    if (ahead !== undefined && network === undefined) this.#drop([ahead]);
    return network;
  }

  #dropAhead(): void {
    this.#drop(this.#ahead.splice(this.#spares));
  }

  #drop(places: { slot: number; network: Promise<SlotNetwork> }[]): void {
    for (const { slot, network } of places)
      this.#tidyBehind(
        network.catch(() => {}).then(() => this.clear(slot)),
        slot,
      );
  }

  /**
   * Ends whatever runs in a slot and removes every trace of it. Idempotent.
   *
   * @param onDead called once its last process is gone; what is left to do then is tidying up
   */
  async clear(slot: number, onDead?: () => void): Promise<void> {
    const directory = this.#directoryOf(slot);
    const place = this.placeOf(slot, "", 0);
    const killed = this.#options.driver.kill(place, onDead);
    killed.catch(() => {}); // a failure is reported below
    // The signals are out. Of several machines that fall due at once all are ended before the first is cleared away.
    await new Promise(setImmediate);
    await Promise.all([killed, this.#options.router.removeSlot(slot)]);
    await rm(directory, { recursive: true, force: true });
    this.#taken.delete(slot);
    this.#stuck.delete(slot);
  }

  /**
   * As {@link Slots.clear}, but answers once its last process is gone: network and files go behind the caller's back. The
   * slot is nobody's from then on, and given out anew once it is clear; one that cannot be cleared is left to the sweep.
   *
   * @throws what kept its processes from being ended; the slot is still the caller's then
   */
  async release(slot: number): Promise<void> {
    await this.#options.driver.stop(this.placeOf(slot, "", 0));
    // Starting its programs holds this process up: the caller's answer goes first.
    this.#tidyBehind(
      delay(TIDY_AFTER_MS).then(() => this.clear(slot)),
      slot,
    );
  }

  #tidyBehind(clearing: Promise<void>, slot: number): void {
    const tidying = clearing
      .catch(() => void this.#stuck.add(slot)) // the sweep tries again, and says why
      .finally(() => this.#tidying.delete(tidying));
    this.#tidying.add(tidying);
  }

  /** Removes what was made ahead and not taken, makes no more of it by itself, and waits until no slot is being cleared behind its caller. Never rejects. */
  async tidyUp(): Promise<void> {
    this.#isClosing = true;
    this.#spares = 0;
    clearTimeout(this.#replenishing);
    this.#dropAhead();
    await Promise.all(this.#tidying);
  }

  /** Ends whatever runs in a slot and takes its network away; its files stay, and so does the claim on it. Idempotent. */
  async stop(slot: number): Promise<void> {
    const { driver, router } = this.#options;
    await Promise.all([driver.stop(this.placeOf(slot, "", 0)), router.removeSlot(slot)]);
  }

  /**
   * Slots in place that nobody claimed. Needs no grace for what is just being made: a slot is claimed before anything of it
   * is there.
   */
  async unclaimed(): Promise<number[]> {
    const { router, cgroups, directory } = this.#options;
    await mkdir(directory, { recursive: true, mode: 0o700 });
    const found = await router.slotsInPlace();
    for (const name of [...cgroups.children(), ...(await readdir(directory))])
      if (/^\d+$/.test(name)) found.add(Number(name));
    return [...found]
      .filter((slot) => !this.#taken.has(slot) || this.#stuck.has(slot))
      .toSorted((a, b) => a - b);
  }

  /**
   * Clears every slot found in place that nobody claimed. One that cannot be cleared does not keep the others; it is found
   * again by the next sweep.
   *
   * @returns their numbers, and what went wrong by number
   */
  async sweep(): Promise<{ swept: number[]; failed: Map<number, unknown> }> {
    const orphans = await this.unclaimed();
    for (const slot of orphans) this.#taken.add(slot); // no new machine is to be put into one that is being cleared
    const failed = new Map<number, unknown>();
    const width = new Gate(SWEEP_WIDTH);
    await Promise.all(
      orphans.map((slot) =>
        width.run(async () => {
          try {
            await this.clear(slot);
          } catch (error) {
            failed.set(slot, error);
            this.#stuck.add(slot);
          }
        }),
      ),
    );
    return { swept: orphans.filter((slot) => !failed.has(slot)), failed };
  }

  #directoryOf(slot: number): string {
    return join(this.#options.directory, String(slot));
  }

  /** Numbers go round, so that a slot just left is not taken again at once. */
  #pick(): number {
    for (let tries = 0; tries < MAX_SLOT; tries++) {
      const slot = this.#next;
      this.#next = slot === MAX_SLOT ? 1 : slot + 1;
      if (!this.#taken.has(slot)) {
        this.#taken.add(slot);
        return slot;
      }
    }
    throw new CodedError(
      "capacity_exhausted",
      `all ${MAX_SLOT} machine slots of this host are taken; destroy sandboxes or add a host`,
    );
  }
}

/** A new identity of a physical machine: 125 random bits. */
function newIncarnationId(): string {
  return `mch${randomText(25)}`;
}
