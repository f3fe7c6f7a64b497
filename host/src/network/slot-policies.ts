import type { AddressBlock } from "./address-plan.ts";
import type { EgressPolicy } from "./egress-policy.ts";

/** Who asks, and what they may reach. What is not known may nothing. */
export class SlotPolicies {
  readonly #block: AddressBlock;
  readonly #policies = new Map<number, EgressPolicy>();

  constructor(block: AddressBlock) {
    this.#block = block;
  }

  /** The slot that speaks from an address: the router writes it, so no sandbox speaks from another's. */
  slotOf(address: string): number | undefined {
    return this.#block.slotOf(address);
  }

  of(slot: number): EgressPolicy | undefined {
    return this.#policies.get(slot);
  }

  set(slot: number, policy: EgressPolicy): void {
    this.#policies.set(slot, policy);
  }

  delete(slot: number): void {
    this.#policies.delete(slot);
  }
}
