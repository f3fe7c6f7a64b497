import type { Socket } from "node:net";
import type { EgressPolicy } from "./egress-policy.ts";
import type { SlotPolicies } from "./slot-policies.ts";

/** Connections of one sandbox by the gate at once; more are reset. Each holds two descriptors. */
const CONNECTIONS_PER_SLOT = 256;
/** Of all sandboxes together. */
const CONNECTIONS = 8192;

interface Held {
  socket: Socket;
  /** Whether a policy still allows it; true while that is not known. */
  allowedBy: (policy: EgressPolicy) => boolean;
}

/** The connections of sandboxes that pass by the gate, by slot. */
export class GateConnections {
  readonly policies: SlotPolicies;
  readonly #held = new Map<number, Set<Held>>();
  #count = 0;

  constructor(policies: SlotPolicies) {
    this.policies = policies;
  }

  get count(): number {
    return this.#count;
  }

  /**
   * Takes up a sandbox's connection.
   *
   * @returns undefined when it has been reset: nobody's, or one too many. Otherwise whose it is, and a way to say what it
   *   is for, once that is known
   */
  take(socket: Socket): { slot: number; note: (allowedBy: Held["allowedBy"]) => void } | undefined {
    socket.on("error", () => {}); // whatever it is, "close" follows
    const slot = this.policies.slotOf(socket.remoteAddress ?? "");
    const held = this.#held.get(slot ?? 0) ?? new Set<Held>();
    if (slot === undefined || held.size >= CONNECTIONS_PER_SLOT || this.#count >= CONNECTIONS) {
      socket.resetAndDestroy();
      return undefined;
    }
    const one: Held = { socket, allowedBy: () => true };
    this.#held.set(slot, held.add(one));
    this.#count += 1;
    socket.on("close", () => {
      this.#count -= 1;
      held.delete(one);
      if (held.size === 0 && this.#held.get(slot) === held) this.#held.delete(slot);
    });
    return { slot, note: (allowedBy) => void (one.allowedBy = allowedBy) };
  }

  /** Resets what the policy of the slot now forbids. */
  recheck(slot: number): void {
    const policy = this.policies.of(slot);
    for (const { socket, allowedBy } of this.#held.get(slot) ?? [])
      if (policy === undefined || !allowedBy(policy)) socket.resetAndDestroy();
  }

  resetAll(): void {
    for (const held of this.#held.values()) for (const { socket } of held) socket.resetAndDestroy();
  }
}
