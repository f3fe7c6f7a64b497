/**
 * Record states of a sandbox and the legal moves between them. The table is data so that the server's
 * compare-and-set, the tests and the docs read the same one.
 */

/** Every state a sandbox record can be in. States ending in `-ing` are transitions under way. */
export const SANDBOX_STATES = [
  "creating",
  "running",
  "pausing",
  "paused",
  "resuming",
  "hibernating",
  "hibernated",
  "waking",
  "snapshotting",
  "failed",
  "destroying",
  "destroyed",
] as const;

export type SandboxState = (typeof SANDBOX_STATES)[number];

/** Legal next states, by current state. `destroyed` is the only state without an exit. */
export const SANDBOX_TRANSITIONS: Readonly<Record<SandboxState, readonly SandboxState[]>> = {
  creating: ["running", "failed", "destroying"],
  running: ["pausing", "hibernating", "snapshotting", "failed", "destroying"],
  pausing: ["paused", "running", "failed", "destroying"],
  paused: ["resuming", "hibernating", "failed", "destroying"],
  resuming: ["running", "failed", "destroying"],
  hibernating: ["hibernated", "running", "failed", "destroying"],
  hibernated: ["waking", "destroying"],
  waking: ["running", "hibernated", "failed", "destroying"],
  snapshotting: ["running", "failed", "destroying"],
  failed: ["destroying"],
  destroying: ["destroyed"],
  destroyed: [],
};

/** Whether `from -> to` is in the table. */
export function canTransition(from: SandboxState, to: SandboxState): boolean {
  return SANDBOX_TRANSITIONS[from].includes(to);
}

/** States in which the sandbox has ended or is ending: work asked of it answers 410 `sandbox_ended`. */
export function isEnding(state: SandboxState): boolean {
  return state === "destroying" || state === "destroyed" || state === "failed";
}

/** Why a sandbox ended, as a person reads it in `reason`. */
export const END_REASONS = [
  "user",
  "ttl_expired",
  "idle",
  "max_lifetime",
  "retention",
  "budget",
  "oom",
  "runtime_crashed",
  /** Its processes live, but the agent inside has not answered for too long. */
  "agent_unresponsive",
  "create_failed",
  /** The client left before it could learn the id of what it had asked for. */
  "abandoned",
  "host_lost",
  "shutdown",
] as const;

export type EndReason = (typeof END_REASONS)[number];
