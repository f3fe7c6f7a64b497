import type { Log } from "@torpor/base";
import type { HostFinding, HostRepair } from "@torpor/protocol";
import type { ImageStore } from "../image/image-store.ts";
import type { Machines } from "./machines.ts";
import type { Slots } from "./slots.ts";

export interface ReconciliationOptions {
  machines: Machines;
  slots: Pick<Slots, "sweep" | "unclaimed">;
  images: Pick<ImageStore, "find" | "list">;
  log: Log;
}

interface Repairable {
  finding: HostFinding;
  /** Undefined when it takes a person. */
  repair?: () => Promise<unknown>;
}

/**
 * Compares the journal with what is on the machine: slots (processes, network namespaces, links, cgroups, files) and images.
 * What is nobody's goes. What cannot be read is somebody's, and stays until a person says otherwise.
 */
export class Reconciliation {
  readonly #options: ReconciliationOptions;
  #sweeping: Promise<void> | undefined;

  constructor(options: ReconciliationOptions) {
    this.#options = options;
  }

  /** Removes what is nobody's. Callers share a sweep under way. @throws what kept it from looking: nothing is removed then */
  sweep(): Promise<void> {
    this.#sweeping ??= this.#sweep().finally(() => (this.#sweeping = undefined));
    return this.#sweeping;
  }

  /** Waits for a sweep under way. */
  async idle(): Promise<void> {
    await this.#sweeping?.catch(() => {});
  }

  async #sweep(): Promise<void> {
    const { machines, slots, log } = this.#options;
    const startedAt = performance.now();
    const { swept, failed } = machines.allSlotsKnown
      ? await slots.sweep()
      : { swept: [], failed: new Map<number, unknown>() };
    const images = await machines.sweepImages();
    for (const [slot, error] of failed)
      log.error({ op: "host.sweep", outcome: "left", slot, err: error }, "will be tried again in a minute");
    if (swept.length + images.length > 0) {
      const durationMs = Math.round(performance.now() - startedAt);
      log.info({ op: "host.sweep", outcome: "swept", slots: swept, images, durationMs });
    }
  }

  /** What disagrees now. */
  async findings(): Promise<HostFinding[]> {
    return (await this.#look()).map(({ finding }) => finding);
  }

  /** Puts right what can be, one thing at a time: one that fails does not keep the others. */
  async repair(): Promise<HostRepair> {
    await this.idle();
    const outcome: HostRepair = { repaired: [], failed: [], left: [] };
    for (const { finding, repair } of await this.#look()) {
      if (repair === undefined) {
        outcome.left.push(finding);
        continue;
      }
      try {
        await repair();
        outcome.repaired.push(finding);
      } catch (error) {
        outcome.failed.push({ finding, error: String(error) });
      }
    }
    await this.sweep();
    return outcome;
  }

  async #look(): Promise<Repairable[]> {
    const { machines, slots, images } = this.#options;
    const found: Repairable[] = [];
    const add = (finding: HostFinding, repair?: () => Promise<unknown>): void => {
      found.push(repair === undefined ? { finding } : { finding, repair });
    };
    for (const { id, slot, error } of machines.brokenRecords) {
      const where = typeof slot === "number" ? `slot ${slot}` : "an unknown place";
      add(
        {
          kind: "record_unreadable",
          what: id,
          message: `the record of sandbox ${id}, in ${where}, cannot be read: ${error.message}`,
          repair: "ends what runs there and forgets the sandbox; what it slept in is removed",
        },
        () => machines.giveUpBroken(id),
      );
    }
    for (const id of machines.stuck) {
      const message = `sandbox ${id} has ended, and something of it cannot be cleared away; it is tried again all the time, see the host's log`;
      add({ kind: "machine_stuck", what: id, message, repair: null });
    }
    for (const slot of await slots.unclaimed()) {
      const repair = "ends what runs there and removes its network, cgroup and files";
      const message = `slot ${slot} is in place and no sandbox is in it`;
      const finding: HostFinding = { kind: "slot_unclaimed", what: String(slot), message, repair };
      add(finding, async () => {
        const { failed } = await slots.sweep();
        if (failed.has(slot)) throw failed.get(slot);
      });
    }
    for (const id of await machines.orphanImages()) {
      const message = `no sandbox sleeps in image ${id}`;
      add({ kind: "image_orphan", what: id, message, repair: "removes it" }, () => machines.sweepImages());
    }
    await images.list((id, error) => {
      const message = `the manifest of image ${id} cannot be read: ${String(error)}; restore it from a backup, or remove the folder`;
      add({ kind: "image_unreadable", what: id, message, repair: null });
    });
    for (const { id, imageId } of machines.asleep) {
      const image = await images.find(imageId).catch(() => "unreadable" as const); // told above
      if (image !== undefined) continue;
      const message = `sandbox ${id} sleeps in image ${imageId}, which is not there; put it back, or destroy the sandbox`;
      add({ kind: "image_missing", what: id, message, repair: null });
    }
    return found;
  }
}
