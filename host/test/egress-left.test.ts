import type { NetworkPolicy } from "@torpor/protocol";
import { expect, test } from "vitest";
import type { MachineEntry } from "../src/journal.ts";
import { egressLeft } from "../src/machine/egress-left.ts";

const entry = (id: string, slot: number | null, network: NetworkPolicy): MachineEntry =>
  ({ id, slot, spec: { network }, pid: null, startTime: null }) as MachineEntry;

test("a slot that two entries name is under the policy of the one that lives, whichever comes first", () => {
  const stale = entry("stale", 7, "internet");
  const living = entry("living", 7, "none");
  for (const entries of [
    [stale, living],
    [living, stale],
  ])
    expect([...egressLeft({ entries, broken: [] }, ({ id }) => id === "living")]).toEqual([[7, "none"]]);
  // Alone it says nothing either: what is in the slot may be on its way to another entry.
  expect(egressLeft({ entries: [stale, entry("asleep", null, "none")], broken: [] }).size).toBe(0);
});
