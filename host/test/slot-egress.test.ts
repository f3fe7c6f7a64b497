import { describe, expect, test } from "vitest";
import type { EgressPolicy } from "../src/network/egress-policy.ts";
import { SlotEgress } from "../src/network/slot-egress.ts";

/** A gate and a namespace that keep the books; rules are loaded when the test says so. */
function bench() {
  const policies = new Map<number, EgressPolicy>();
  const gate = {
    address: "198.18.15.253",
    ports: { dns: 1, http: 2, tls: 3 },
    set: (slot: number, policy: EgressPolicy) => void policies.set(slot, policy),
    policyOf: (slot: number) => policies.get(slot),
    forget: (slot: number) => void policies.delete(slot),
  };
  const loading: { rules: string; done: () => void; fail: () => void }[] = [];
  /** Slots with rules in the namespace. */
  const ruled = new Set<string>();
  const egress = new SlotEgress(
    gate,
    (rules) =>
      new Promise((resolve, reject) =>
        loading.push({
          rules,
          done: () => {
            const name = /policy_(s\d+)/.exec(rules)?.[1] ?? "";
            if (rules.includes("delete chain")) ruled.delete(name);
            else ruled.add(name);
            resolve();
          },
          fail: () => reject(new Error("nft failed")),
        }),
      ),
  );
  /** Lets everything be loaded until `all` are settled. */
  const settle = async (all: Promise<unknown>[]): Promise<void> => {
    const pump = setInterval(() => loading.shift()?.done(), 1);
    await Promise.all(all).finally(() => clearInterval(pump));
  };
  return { egress, policies, ruled, loading, settle };
}

describe("what slots may reach", () => {
  test("leaves nothing behind when a slot goes while its policy changes", async () => {
    const { egress, policies, ruled, settle } = bench();
    await settle([egress.set(7, "none"), egress.forget(7)]);
    expect([policies.size, ruled.size]).toEqual([0, 0]);
    await settle([egress.set(7, "internet")]);
    expect([policies.get(7)?.egress, ruled.size]).toEqual(["internet", 0]);
  });

  test("costs plain internet no rule, and takes rules away that stand in its place", async () => {
    const { egress, ruled, loading, settle } = bench();
    await egress.set(1, "internet");
    await egress.forget(1);
    expect(loading).toEqual([]);
    await settle([egress.set(1, "none")]);
    expect([...ruled]).toEqual(["s1"]);
    await settle([egress.set(1, "internet")]);
    expect(ruled.size).toBe(0);
  });

  test("stays as it was when a change fails, and is cleared at the end whatever came of it", async () => {
    const { egress, policies, loading, settle } = bench();
    await egress.set(1, "internet");
    const failing = egress.set(1, "none");
    failing.catch(() => {});
    await new Promise(setImmediate);
    loading.shift()?.fail();
    await expect(failing).rejects.toThrow("nft failed");
    expect(policies.get(1)?.egress).toBe("internet");
    const going = egress.forget(1);
    await new Promise(setImmediate);
    expect(loading[0]?.rules).toContain("delete chain ip torpor policy_s1");
    await settle([going]);
  });

  test("is nothing for a slot that nobody speaks for after a restart of the host", () => {
    const { egress, policies } = bench();
    const rules = egress.adopt(new Map([[1, "internet"]]), [1, 2]);
    expect(policies.get(1)?.egress).toBe("internet");
    expect(policies.get(2)?.egress).toBe("none");
    expect(rules).toContain("add chain ip torpor policy_s2");
    expect(rules).not.toContain("policy_s1");
  });
});
