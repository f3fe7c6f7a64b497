import { isEnding, SANDBOX_STATES, SANDBOX_TRANSITIONS, type SandboxState } from "@torpor/protocol";

const WAYS = new Map<string, readonly SandboxState[]>();

/**
 * The shortest way between two states by the transition table that ends nothing on the way: the steps after `from`, the
 * last of them `to`. Empty when they are the same; undefined when there is none.
 */
export function stateWay(from: SandboxState, to: SandboxState): readonly SandboxState[] | undefined {
  return from === to ? [] : WAYS.get(`${from} ${to}`);
}

for (const from of SANDBOX_STATES) {
  const reached = new Map<SandboxState, readonly SandboxState[]>([[from, []]]);
  for (const [state, way] of reached) {
    for (const next of SANDBOX_TRANSITIONS[state]) {
      if (isEnding(next) || reached.has(next)) continue;
      reached.set(next, [...way, next]);
      WAYS.set(`${from} ${next}`, [...way, next]);
    }
  }
}
