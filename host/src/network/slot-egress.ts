import { Gate } from "@torpor/base";
import type { NetworkPolicy } from "@torpor/protocol";
import type { EgressGate } from "./egress-gate.ts";
import { EgressPolicy } from "./egress-policy.ts";
import { noSlotRules, slotRules } from "./egress-rules.ts";

const PLAIN_INTERNET = new EgressPolicy("internet");

/**
 * What each slot may reach, at the gate and in the rules of the router's namespace. One change at a time: of two of one slot
 * the later holds, and none outlasts the slot.
 */
export class SlotEgress {
  readonly #gate: Pick<EgressGate, "set" | "policyOf" | "forget" | "address" | "ports">;
  readonly #load: (rules: string) => Promise<void>;
  /** Slots that have rules of their own, or may have after a failure. */
  readonly #ruled = new Set<number>();
  readonly #changing = new Gate(1);

  /** @param load loads rules for nft into the router's namespace */
  constructor(
    gate: Pick<EgressGate, "set" | "policyOf" | "forget" | "address" | "ports">,
    load: (rules: string) => Promise<void>,
  ) {
    this.#gate = gate;
    this.#load = load;
  }

  /**
   * Puts all slots under their policies, before any is changed. One that is in place and nobody speaks for may reach nothing:
   * in it goes on what was being restored when the host died, until it is cleared away.
   *
   * @returns the rules, to be loaded together with the router's
   */
  adopt(known: ReadonlyMap<number, NetworkPolicy>, inPlace: Iterable<number>): string {
    const all = new Map<number, NetworkPolicy>();
    for (const slot of inPlace) all.set(slot, "none");
    for (const [slot, network] of known) all.set(slot, network);
    let rules = "";
    for (const [slot, network] of all) {
      const policy = new EgressPolicy(network);
      this.#gate.set(slot, policy);
      if (policy.isPlainInternet) continue;
      this.#ruled.add(slot);
      rules += slotRules(slot, policy, this.#gate);
    }
    return rules;
  }

  /** Changes what a slot may reach, in force when this returns. On an error all stays as it was. */
  set(slot: number, network: NetworkPolicy): Promise<void> {
    const policy = network === "internet" ? PLAIN_INTERNET : new EgressPolicy(network);
    return this.#changing.run(async () => {
      const before = this.#gate.policyOf(slot);
      this.#gate.set(slot, policy);
      if (policy.isPlainInternet && !this.#ruled.has(slot)) return;
      this.#ruled.add(slot);
      try {
        await this.#load(policy.isPlainInternet ? noSlotRules(slot) : slotRules(slot, policy, this.#gate));
      } catch (error) {
        if (before !== undefined) this.#gate.set(slot, before);
        throw error;
      }
      if (policy.isPlainInternet) this.#ruled.delete(slot);
    });
  }

  /** Forgets a slot whose link is gone, after what is under way for it. Idempotent. */
  forget(slot: number): Promise<void> {
    return this.#changing.run(async () => {
      this.#gate.forget(slot);
      if (!this.#ruled.has(slot)) return;
      await this.#load(noSlotRules(slot));
      this.#ruled.delete(slot);
    });
  }
}
