import type { NetworkPolicy } from "@torpor/protocol";
import type { Router, SlotNetwork } from "../../src/network/router.ts";

/** Keeps the books of slots' networks; each slot is a loopback address. */
export class FakeRouter implements Pick<
  Router,
  "addSlot" | "removeSlot" | "setEgress" | "slotsInPlace" | "withoutAttempts"
> {
  /** Slots in place and what they may reach. */
  readonly slots = new Map<number, NetworkPolicy>();
  failNextEgress = false;
  /** How often attempts to connect were refused. */
  refusals = 0;

  addSlot(slot: number, egress: NetworkPolicy): Promise<SlotNetwork> {
    if (this.slots.has(slot)) return Promise.reject(new Error(`slot ${slot} has a network already`));
    this.slots.set(slot, egress);
    return Promise.resolve({ slot, netns: `fake-${slot}`, address: fakeAddress(slot) });
  }

  setEgress(slot: number, egress: NetworkPolicy): Promise<void> {
    if (this.failNextEgress) {
      this.failNextEgress = false;
      return Promise.reject(new Error("the fake router fails to set egress"));
    }
    this.slots.set(slot, egress);
    return Promise.resolve();
  }

  withoutAttempts<T>(_slot: number, act: () => Promise<T>): Promise<T> {
    this.refusals++;
    return act();
  }

  removeSlot(slot: number): Promise<void> {
    this.slots.delete(slot);
    return Promise.resolve();
  }

  slotsInPlace(): Promise<Set<number>> {
    return Promise.resolve(new Set(this.slots.keys()));
  }
}

/** Test files run at once in processes of their own: the pid keeps their loopback addresses apart. */
export function fakeAddress(slot: number): string {
  return `127.${64 + (process.pid % 128)}.${(process.pid >> 7) % 256}.${((slot - 1) % 254) + 1}`;
}
