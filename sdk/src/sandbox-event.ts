import type { SandboxState } from "./sandbox-info.ts";
import type { EventWire } from "./wire.ts";

/**
 * `sandbox.` and the state it entered; `sandbox.updated`: its clocks or its shape changed; `sandbox.idle_awake`: awake for
 * long without being used, with what that costs in `changes`; or that most of a budget is spent, or all of it.
 */
export type EventType =
  | `sandbox.${SandboxState}`
  | "sandbox.updated"
  | "sandbox.idle_awake"
  | "budget.warning"
  | "budget.exhausted";

/** Something that happened to a sandbox, or to a budget. */
export interface SandboxEvent {
  /** Unique; a later event has a larger number in it. */
  id: string;
  type: EventType;
  at: Date;
  /** Null for a budget's. */
  sandboxId: string | null;
  /** The sandbox's name; null where it has none, and of a sandbox that is kept no longer. */
  name: string | null;
  /** The sandbox's; empty of one that is kept no longer, and for a budget's. */
  metadata: Record<string, string>;
  /** Null for that of an account's budget. */
  tenant: string | null;
  /** Null for a budget's. */
  generation: number | null;
  /** State after the event; null for a budget's. */
  state: SandboxState | null;
  /** State before it; null for the first event of a sandbox, and for a budget's. */
  previousState: SandboxState | null;
  /** Why it ended or is ending; null while it lives. */
  reason: string | null;
  /** What changed with it, as the wire names and writes it; of a budget `amount`, `period`, `spent` and `renews_at`. */
  changes: Record<string, unknown>;
}

/** Wire form to ours. */
export function sandboxEventFromWire(wire: EventWire): SandboxEvent {
  return {
    id: wire.id,
    type: wire.type,
    at: new Date(wire.at),
    sandboxId: wire.sandbox_id,
    name: wire.name,
    metadata: wire.metadata,
    tenant: wire.tenant,
    generation: wire.generation,
    state: wire.state,
    previousState: wire.previous_state,
    reason: wire.reason,
    changes: wire.changes,
  };
}
