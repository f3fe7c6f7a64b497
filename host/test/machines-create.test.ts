import { CodedError } from "@torpor/protocol";
import { RESOLV_CONF } from "../src/resolvers.ts";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import type { InitBehaviour } from "./fakes/fake-guest.ts";
import { TEST_SPEC } from "./fakes/journal-entry.ts";
import { MachineBench, NOTHING } from "./fakes/machine-bench.ts";

let bench: MachineBench;
beforeEach(async () => {
  bench = new MachineBench();
  await bench.open();
});
afterEach(() => bench.close());

describe("creating a machine", () => {
  test("answers a running, attested machine that the journal knows and the feed tells of", async () => {
    const { machine, created } = await bench.machines.create("one", TEST_SPEC);
    expect(created).toBe(true);
    expect(machine).toMatchObject({
      id: "one",
      state: "running",
      generation: 1,
      reason: null,
      source: "cold",
      attestation: { complete: true, generation: 1 },
    });
    expect(bench.journal.get("one")).toMatchObject({ state: "running", slot: 1, startTime: 1 });
    expect(bench.events).toEqual(["started"]);
    expect(bench.machines.counts).toEqual({ running: 1, creating: 0, hibernated: 0 });
    expect([...(await bench.machines.templatesInUse())]).toEqual(["aa"]);
  });

  test("gives the guest its identity, and secrets of its own, only then", async () => {
    await bench.machines.create("one", { ...TEST_SPEC, env: { FROM: "sandbox", KEY: "value" } });
    await bench.machines.create("two", TEST_SPEC);
    const [first, second] = [1, 2].map((slot) => bench.driver.machine(slot).guest?.inits ?? []);
    expect(first).toHaveLength(1);
    expect(first?.[0]).toMatchObject({
      sandbox_id: "one",
      hostname: "one",
      generation: 1,
      env: { PATH: "/bin", FROM: "sandbox", KEY: "value" },
      default_user: "user",
      default_workdir: "/workspace",
      resolv_conf: RESOLV_CONF,
    });
    for (const secret of ["machine_id", "access_token", "host_key", "entropy_base64"])
      expect(first?.[0]?.[secret]).not.toBe(second?.[0]?.[secret]);
    expect(Buffer.from(String(first?.[0]?.["entropy_base64"]), "base64")).toHaveLength(64);
    expect(first?.[0]?.["now_unix_ns"]).toBeTypeOf("number");
  });

  test("sets the limits asked for", async () => {
    await bench.machines.create("one", { ...TEST_SPEC, cpu: 0.5, memory_mb: 333 });
    expect(bench.driver.machine(1).limits).toEqual({ cpu: 0.5, memoryMib: 333 });
  });

  test("cuts the network off before the guest is unlocked when egress is none; its resolver, which refuses, is the one of all", async () => {
    await bench.machines.create("one", { ...TEST_SPEC, network: "none" });
    expect(bench.router.slots.get(1)).toBe("none");
    expect(bench.driver.machine(1).guest?.inits[0]?.["resolv_conf"]).toBe(RESOLV_CONF);
  });

  test("makes one machine when the same id is asked for many times at once", async () => {
    const answers = await Promise.all(
      Array.from({ length: 5 }, () => bench.machines.create("one", TEST_SPEC)),
    );
    expect(answers.map(({ created }) => created)).toEqual([true, false, false, false, false]);
    expect(bench.inPlace.machines).toEqual([1]);
    expect((await bench.machines.create("one", TEST_SPEC)).created).toBe(false);
  });

  test("never makes an id again whose machine has ended", async () => {
    await bench.machines.create("one", TEST_SPEC);
    await bench.machines.end("one", "user");
    await expect(bench.machines.create("one", TEST_SPEC)).rejects.toMatchObject({
      code: "sandbox_ended",
      details: { reason: "user" },
    });
    expect(bench.inPlace).toEqual(NOTHING);
  });
});

describe("a creation that fails leaves nothing but its record", () => {
  async function expectFailure(): Promise<void> {
    await expect(bench.machines.create("one", { ...TEST_SPEC, network: "none" })).rejects.toThrow();
    expect(bench.inPlace).toEqual(NOTHING);
    expect(bench.machines.get("one")).toMatchObject({ state: "ended", reason: "create_failed" });
    expect(bench.machines.get("one")?.message).not.toBe("");
    expect(bench.events).toEqual(["ended: create_failed"]);
    expect(bench.machines.counts).toEqual({ running: 0, creating: 0, hibernated: 0 });
  }

  test.each(["prepare", "restore", "limit"] as const)("when the driver fails to %s", async (step) => {
    bench.driver.fail(step);
    await expectFailure();
  });

  test("when its network cannot be cut off", async () => {
    bench.router.failNextEgress = true;
    await expectFailure();
  });

  test.each<InitBehaviour>([
    "attests another generation",
    "attests incompletely",
    "refuses",
    "answers nonsense",
  ])("when the guest %s", async (behaviour) => {
    bench.driver.initBehaviour = behaviour;
    await expectFailure();
  });

  test("and the next one succeeds", async () => {
    bench.driver.fail("restore");
    await expect(bench.machines.create("one", TEST_SPEC)).rejects.toThrow("fails to restore");
    await bench.machines.create("two", TEST_SPEC);
  });

  test("also when the journal cannot take the intent: then nothing is even begun", async () => {
    bench.journal.full = true;
    await expect(bench.machines.create("one", TEST_SPEC)).rejects.toThrow("full");
    expect(bench.inPlace).toEqual(NOTHING);
    expect(bench.machines.get("one")).toBeUndefined();
  });
});

describe("ending a machine that is being created", () => {
  test.each(["prepare", "restore"] as const)("pre-empts it while it waits to %s", async (step) => {
    const release = bench.driver.hold(step);
    const create = bench.machines.create("one", TEST_SPEC);
    const joined = bench.machines.create("one", TEST_SPEC);
    const end = bench.machines.end("one", "user");
    release();
    for (const attempt of [create, joined])
      await expect(attempt).rejects.toMatchObject({ code: "sandbox_ended", details: { reason: "user" } });
    expect(await end).toMatchObject({ state: "ended", reason: "user" });
    expect(bench.inPlace).toEqual(NOTHING);
    expect(bench.events).toEqual(["ended: user"]);
  });

  test("does not wait for a guest that hangs in init", async () => {
    bench.driver.initBehaviour = "hangs";
    const create = bench.machines.create("one", TEST_SPEC);
    create.catch(() => {});
    while (bench.driver.machines.get(1)?.guest?.inits.length !== 1)
      await new Promise((resolve) => setImmediate(resolve));
    const startedAt = performance.now();
    expect(await bench.machines.end("one", "user")).toMatchObject({ state: "ended", reason: "user" });
    expect(performance.now() - startedAt).toBeLessThan(3000);
    await expect(create).rejects.toMatchObject({ code: "sandbox_ended" });
    expect(bench.inPlace).toEqual(NOTHING);
  });

  test("keeps what cannot be taken down in sight, and ends it when it can", async () => {
    bench.driver.initBehaviour = "refuses";
    bench.driver.fail("kill", 1);
    await expect(bench.machines.create("one", TEST_SPEC)).rejects.toThrow();
    expect(bench.machines.get("one")).toMatchObject({ state: "ending", reason: "create_failed" });
    expect(() => bench.machines.reach("one")).toThrow(CodedError);
    expect(bench.inPlace.machines).toEqual([1]);
    expect(await bench.machines.end("one", "user")).toMatchObject({ state: "ended" });
    expect(bench.inPlace).toEqual(NOTHING);
  });
});

describe("what the host cannot give is refused before anything is made", () => {
  test.each([
    ["cpu", 3],
    ["memory_mb", 8193],
    ["disk_mb", 16_385],
  ] as const)("%s above all it has", async (field, value) => {
    await expect(bench.machines.create("one", { ...TEST_SPEC, [field]: value })).rejects.toMatchObject({
      code: "invalid_request",
      details: { field, value },
    });
    expect(bench.machines.get("one")).toBeUndefined();
  });

  test("when it has too little memory free", async () => {
    bench.free.memoryMb = 255;
    await expect(bench.machines.create("one", TEST_SPEC)).rejects.toMatchObject({
      code: "capacity_exhausted",
      retryable: true,
    });
    expect(bench.machines.get("one")).toBeUndefined();
  });

  test.each([
    { diskMb: 1023, diskUsedPercent: 50 },
    { diskMb: 40_000, diskUsedPercent: 90 },
  ])("when its disk stands at %o, with what is free and what to do", async (free) => {
    Object.assign(bench.free, free);
    await expect(bench.machines.create("one", TEST_SPEC)).rejects.toMatchObject({
      code: "no_space",
      message: expect.stringContaining("destroy sandboxes or snapshots") as string,
      details: {
        free_bytes: free.diskMb * 1048576,
        used_percent: free.diskUsedPercent,
        watermark_percent: 90,
      },
    });
    expect(bench.machines.get("one")).toBeUndefined();
  });

  test("once it is being taken down", async () => {
    await bench.machines.create("one", { ...TEST_SPEC, deadline_unix_ms: bench.clock.now() + 1000 });
    const ending = bench.machines.endAll("shutdown");
    await expect(bench.machines.create("two", TEST_SPEC)).rejects.toMatchObject({ code: "host_unavailable" });
    await ending;
    expect(bench.machines.get("one")).toMatchObject({ state: "ended", reason: "shutdown" });
    expect(bench.inPlace).toEqual(NOTHING);
  });
});
