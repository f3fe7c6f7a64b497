import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Clock, FakeClock, SecretValues, silentLog } from "@torpor/base";
import type { MachineHandle } from "../../src/driver/driver.ts";
import { ImageStore } from "../../src/image/image-store.ts";
import { Journal, type MachineEntry } from "../../src/journal.ts";
import { EventFeed } from "../../src/machine/event-feed.ts";
import { GuestClient } from "../../src/machine/guest-client.ts";
import { MachineJournal } from "../../src/machine/machine-journal.ts";
import type { MachineSource } from "../../src/machine/machine-parts.ts";
import { type Adoption, Machines } from "../../src/machine/machines.ts";
import { type OnPlace, Sleep } from "../../src/machine/sleep.ts";
import { Slots } from "../../src/machine/slots.ts";
import { SecretBox } from "../../src/secret-box.ts";
import { FakeDriver } from "./fake-driver.ts";
import { FakeRouter } from "./fake-router.ts";

/** A journal whose disk is full when a test says so. */
class FillableJournal extends Journal {
  full = false;

  override put(entry: MachineEntry): void {
    if (this.full) throw new Error("database or disk is full");
    super.put(entry);
  }
}

/** Everything a registry of machines stands on, with fakes where root and gVisor would be needed. */
export class MachineBench {
  readonly directory = mkdtempSync(join(tmpdir(), "torpor-test-machines-"));
  readonly clock = new FakeClock();
  /** Restores that were announced: the template's hash, the disk in MiB, how many. */
  readonly expectedRestores: [string, number, number][] = [];
  /** What machines go by, from the next restart on. */
  timekeeper: Clock = this.clock;
  readonly driver = new FakeDriver();
  readonly router = new FakeRouter();
  readonly journal = new FillableJournal(join(this.directory, "journal.sqlite"));
  readonly feed = new EventFeed(this.journal);
  readonly images = new ImageStore(join(this.directory, "images"));
  free = { memoryMb: 4096, diskMb: 4096, diskUsedPercent: 50, diskWatermarkPercent: 90 };
  /** How long an agent may be silent. */
  agentPatienceMs = 30_000;
  slots = this.#newSlots();
  machines = this.#newMachines();

  #newSlots(): Slots {
    return new Slots({
      router: this.router,
      driver: this.driver,
      cgroups: { children: () => new Set<string>() },
      directory: join(this.directory, "machines"),
      netnsOf: (slot) => `fake-${slot}`,
    });
  }

  #newMachines(): Machines {
    const source: MachineSource = {
      acquire: async (_template, diskMib, signal) => {
        const place = await this.slots.make(diskMib, "internet");
        try {
          const handle = await this.driver.prepare(
            { imagePath: "" },
            place,
            { cpu: 1, memoryMib: 1 },
            signal,
          );
          await this.driver.restore(handle, "", signal);
          const template = {
            hash: "aa",
            manifest: { env: { PATH: "/bin", FROM: "template" }, user: "user", workdir: "/workspace" },
          };
          return {
            handle,
            guest: new GuestClient(place.address),
            machineId: undefined,
            hostKey: "",
            source: "cold",
            template,
          };
        } catch (error) {
          await this.slots.clear(place.slot);
          throw error;
        }
      },
    };
    const start = async (
      diskMib: number,
      imageDir: string,
      signal: AbortSignal,
      onPlace: OnPlace,
    ): Promise<MachineHandle> => {
      const place = await this.slots.make(diskMib, "internet");
      try {
        await onPlace(place);
        return await this.driver.start({ imagePath: "" }, place, { cpu: 1, memoryMib: 1 }, imageDir, signal);
      } catch (error) {
        await this.slots.clear(place.slot);
        throw error;
      }
    };
    const sleep = new Sleep({
      driver: this.driver,
      images: this.images,
      target: {
        restore: (_hash, diskMib, imageDir, signal, onPlace) => start(diskMib, imageDir, signal, onPlace),
        boot: (_hash, diskMib, _limits, signal, onPlace) => start(diskMib, "", signal, onPlace),
        templateOf: () => Promise.resolve({ newestUnix: 1, preparation: {} }),
        expectRestores: (...expected) => void this.expectedRestores.push(expected),
      },
      clear: (slot) => this.slots.clear(slot),
      router: this.router,
      headroom: () => this.free,
      log: silentLog,
    });
    return new Machines({
      journal: new MachineJournal(this.journal, this.feed, this.timekeeper, silentLog),
      images: this.images,
      sleep,
      driver: this.driver,
      slots: this.slots,
      router: this.router,
      source,
      feed: this.feed,
      secretBox: SecretBox.open(join(this.directory, "secrets.key")),
      secretValues: new SecretValues(),
      clock: this.timekeeper,
      log: silentLog,
      capacity: { cpus: 2, memoryMb: 8192, diskMb: 16_384 },
      headroom: () => this.free,
      agentPatienceMs: this.agentPatienceMs,
    });
  }

  /** To be called before the first machine sleeps. */
  open(): Promise<void> {
    return this.images.open();
  }

  /** Ids of the images in place, hibernation's and snapshots', but for those whose blocks are being freed. */
  get imagesInPlace(): string[] {
    try {
      return readdirSync(join(this.directory, "images"))
        .filter((name) => !name.endsWith(".removing"))
        .sort();
    } catch {
      return [];
    }
  }

  /** What a host does after it was killed: forgets all but the journal, adopts, sweeps. */
  async restart(): Promise<Omit<Adoption, "broken"> & { swept: number[] }> {
    this.machines.stopWatching();
    await this.slots.tidyUp(); // a process that was killed tidies nothing up later, in slots that are others' by then
    this.slots = this.#newSlots();
    this.machines = this.#newMachines();
    await this.images.open();
    const { broken: _broken, ...outcome } = await this.machines.adopt();
    const { swept } = this.machines.allSlotsKnown ? await this.slots.sweep() : { swept: [] };
    await this.machines.sweepImages();
    return { ...outcome, swept };
  }

  /** As {@link MachineBench.inPlace}, once what is cleared behind its caller's back is clear. */
  async inPlaceOnceTidy(): Promise<MachineBench["inPlace"]> {
    await this.slots.tidyUp();
    return this.inPlace;
  }

  /** What stands on the machine, by kind; all empty when nothing was left. */
  get inPlace(): { machines: number[]; networks: number[]; directories: string[] } {
    let directories: string[] = [];
    try {
      directories = readdirSync(join(this.directory, "machines"));
    } catch {
      // none was ever made
    }
    return {
      machines: [...this.driver.machines.keys()],
      networks: [...this.router.slots.keys()],
      directories,
    };
  }

  /** Types of the events so far, oldest first. */
  get events(): string[] {
    return this.journal
      .eventsAfter(0)
      .map(({ type, machine }) =>
        type === "ended" || type === "failed" ? `${type}: ${machine.reason}` : type,
      );
  }

  async close(): Promise<void> {
    this.machines.stopWatching();
    for (const slot of this.driver.machines.keys()) await this.slots.clear(slot);
    this.journal.close();
    rmSync(this.directory, { recursive: true, force: true });
  }
}

export const NOTHING = { machines: [], networks: [], directories: [] };
