import type { NetworkPolicy } from "@torpor/protocol";
import { addressBlock } from "../../src/network/address-plan.ts";
import { EgressPolicy } from "../../src/network/egress-policy.ts";
import { SlotPolicies } from "../../src/network/slot-policies.ts";

/** Slot policies for tests on loopback, whose every address is slot 1. */
export class LoopbackPolicies extends SlotPolicies {
  constructor(network: NetworkPolicy) {
    super(addressBlock(0));
    this.set(1, new EgressPolicy(network));
  }
  override slotOf(): number {
    return 1;
  }
}
