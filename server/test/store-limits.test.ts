import type { SandboxState } from "@torpor/protocol";
import { describe, expect, test } from "vitest";
import { OperatorScope } from "../src/auth/tenant-scope.ts";
import type { NewSandbox } from "../src/store/new-sandbox.ts";
import type { SandboxRecord } from "../src/store/sandbox-record.ts";
import { account, blank, blankSnapshot, DATABASE_KINDS, scopeOf, useStores } from "./stores.ts";

describe.each(DATABASE_KINDS)("the limits of an account in the store on %s", (kind) => {
  const store = useStores(kind);
  const operator = OperatorScope.fromVerifiedKey("k");
  const limited = async (limits: object, tenantLimits: object = {}): Promise<string> => {
    const id = account();
    await store.accounts.insert(operator, id, { limits, tenantLimits }, 7);
    return id;
  };

  test("makes one of a name, and changes its limits one by one", async () => {
    const id = account();
    const changes = { limits: { max_lifetime_seconds: 9, cpu: 1.5 }, tenantLimits: { sandboxes: 2 } };
    const made = await Promise.all(
      Array.from({ length: 5 }, () => store.accounts.insert(operator, id, changes, 7)),
    );
    const [one, ...others] = made.filter((each) => each !== undefined);
    expect(others).toEqual([]);
    expect(one).toMatchObject({
      id,
      createdAt: 7,
      limits: { cpu: 1.5, disk_mb: null },
      tenantLimits: { sandboxes: 2 },
    });
    expect(await store.accounts.own(scopeOf(id))).toEqual(await store.accounts.find(operator, id));
    expect(await store.accounts.find(operator, account())).toBeUndefined();
    await expect(store.accounts.own(scopeOf(account()))).rejects.toThrow("no row");
    const none = { limits: {}, tenantLimits: {} };
    expect(await store.accounts.setLimits(operator, account(), none)).toBeUndefined();
    expect(await store.accounts.setLimits(operator, id, none)).toEqual(one);
    const changed = await store.accounts.setLimits(operator, id, {
      limits: { cpu: null },
      tenantLimits: { sandboxes: null, cpu: 3 },
    });
    expect(changed?.limits).toMatchObject({ max_lifetime_seconds: 9, cpu: null });
    expect(changed?.tenantLimits).toMatchObject({ sandboxes: null, cpu: 3 });
  });

  test("counts what there is: what is awake, what lives, what is kept, what was made within a minute", async () => {
    const id = await limited({});
    const record = await store.accounts.own(scopeOf(id));
    const shape = { cpu: 0.3, memoryMb: 100, diskMb: 10 };
    const make = async (changes: Partial<NewSandbox> = {}): Promise<SandboxRecord> =>
      await store.sandboxes.insert(scopeOf(id), { ...blank(), ...shape, createdAt: 1_000_000, ...changes });
    await make();
    const asleep = await make({ tenant: "other" });
    const to = async (seen: SandboxRecord | undefined, state: SandboxState, image?: SandboxRecord["image"]) =>
      seen && (await store.sandboxes.advance(seen, state, image === undefined ? {} : { image }));
    await to(await to(await to(asleep, "running"), "hibernating"), "hibernated", {
      size_bytes: 5_000_000_000,
      created_at: "2026-01-01T00:00:00.000Z",
      memory: true,
    });
    await to(await to(await make({ createdAt: 900_000 }), "destroying"), "destroyed");
    await to(await make(), "failed");
    await store.snapshots.insert(scopeOf(id), { ...blankSnapshot(id), tenant: "other", size_bytes: 7 });
    expect(await store.accounts.usage(record, 1_000_500)).toEqual({
      sandboxes: 3,
      sandboxes_awake: 1,
      cpu: 0.3,
      memory_mb: 100,
      disk_mb: 30,
      image_bytes: 5_000_000_007,
      creates_per_minute: 3,
    });
    expect(await store.accounts.tenantUsage(scopeOf(id), "other", 1_000_500)).toMatchObject({
      sandboxes: 1,
      sandboxes_awake: 0,
      image_bytes: 5_000_000_007,
    });
  });

  test.each([
    ["sandboxes", { sandboxes: 10 }, {}],
    ["sandboxes_awake", { sandboxes_awake: 10 }, {}],
    ["cpu", { cpu: 5 }, {}],
    ["memory_mb", { memory_mb: 5_000 }, {}],
    ["disk_mb", { disk_mb: 5_000 }, {}],
    ["creates_per_minute", { creates_per_minute: 10 }, {}],
    ["sandboxes", { sandboxes: 50 }, { sandboxes: 10 }],
  ])("lets 10 of 100 that are made at once past %s of %j, %j", async (limit, limits, tenantLimits) => {
    const id = await limited(limits, tenantLimits);
    const outcomes = await Promise.allSettled(
      Array.from({ length: 100 }, () =>
        store.sandboxes.insert(scopeOf(id), {
          ...blank(),
          cpu: 0.5,
          memoryMb: 500,
          diskMb: 500,
          createdAt: 5_000_000,
        }),
      ),
    );
    expect(outcomes.filter(({ status }) => status === "fulfilled")).toHaveLength(10);
    const refused = outcomes.flatMap((one) => (one.status === "rejected" ? [one.reason as unknown] : []));
    const code = limit === "creates_per_minute" ? "rate_limited" : "quota_exceeded";
    for (const error of refused) expect(error).toMatchObject({ code, details: { limit } });
    const record = await store.accounts.own(scopeOf(id));
    expect((await store.accounts.usage(record, 5_000_001)).sandboxes).toBe(10);
  });

  test("lets 3 of 20 that wake at once past the limit, and all where there is none", async () => {
    const sleepers = async (id: string): Promise<SandboxRecord[]> =>
      await Promise.all(
        Array.from({ length: 20 }, async () => {
          let record = await store.sandboxes.insert(scopeOf(id), blank());
          for (const state of ["running", "hibernating", "hibernated"] as const)
            record = (await store.sandboxes.advance(record, state)) ?? record;
          return record;
        }),
      );
    const wake = async (id: string): Promise<string[]> => {
      const records = await sleepers(id);
      await store.accounts.setLimits(operator, id, {
        limits: id === free ? {} : { sandboxes_awake: 3 },
        tenantLimits: {},
      });
      const outcomes = await Promise.allSettled(
        records.map((record) => store.sandboxes.claimWake(record, 1)),
      );
      return outcomes.map((one) => (one.status === "fulfilled" ? one.value.state : "refused")).toSorted();
    };
    const free = await limited({});
    expect(await wake(free)).toEqual(Array.from({ length: 20 }, () => "hibernated")); // nothing to count
    expect(await wake(await limited({}))).toEqual([
      ...Array.from({ length: 17 }, () => "refused"),
      ...Array.from({ length: 3 }, () => "waking"),
    ]);
  });

  test("counts a sandbox that several wake together once", async () => {
    const id = await limited({ sandboxes_awake: 1 });
    let record = await store.sandboxes.insert(scopeOf(id), blank());
    for (const state of ["running", "hibernating", "hibernated"] as const)
      record = (await store.sandboxes.advance(record, state)) ?? record;
    const claims = await Promise.all([1, 2, 3].map(() => store.sandboxes.claimWake(record, 1)));
    expect(claims.map(({ state }) => state).toSorted()).toEqual(["hibernated", "hibernated", "waking"]);
  });

  test("says when the next may be made", async () => {
    const id = await limited({ creates_per_minute: 2 });
    const make = async (createdAt: number): Promise<SandboxRecord> =>
      await store.sandboxes.insert(scopeOf(id), { ...blank(), createdAt });
    await make(1_000_000);
    await make(1_020_000);
    await expect(make(1_030_000)).rejects.toMatchObject({ details: { retry_after_seconds: 30 } });
    await make(1_060_000);
    await expect(make(1_060_001)).rejects.toMatchObject({ details: { retry_after_seconds: 20 } });
  });

  test("takes no snapshot and makes nothing persistent once the images are at their limit", async () => {
    const id = await limited({ image_bytes: 100 });
    await store.sandboxes.insert(scopeOf(id), { ...blank(), persistent: true });
    await store.snapshots.insert(scopeOf(id), { ...blankSnapshot(id), size_bytes: 100 });
    const refused = { code: "quota_exceeded", details: { limit: "image_bytes" } };
    await expect(store.snapshots.insert(scopeOf(id), blankSnapshot(id))).rejects.toMatchObject(refused);
    await expect(store.sandboxes.insert(scopeOf(id), { ...blank(), persistent: true })).rejects.toMatchObject(
      refused,
    );
    await store.sandboxes.insert(scopeOf(id), blank());
  });
});
