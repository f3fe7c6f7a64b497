import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { run } from "@torpor/base";
import type { HostFinding, HostRepair, Machine } from "@torpor/protocol";
import { afterEach, describe, expect, test } from "vitest";
import { eventually } from "../src/eventually.ts";
import { sandboxProcess } from "../src/sandbox-process.ts";
import { useInstance } from "../src/use-instance.ts";

describe("an agent that does not answer", () => {
  const torpor = useInstance({ env: { TORPOR_AGENT_TIMEOUT_SECONDS: "4" } });
  afterEach(() => torpor().host.endAll());

  test("is found out, and its machine forced to an end with that reason", async () => {
    const { id } = await torpor().host.create();
    const before = await torpor().host.get(id);
    const pid = sandboxProcess(torpor(), id);
    process.kill(pid, "SIGSTOP");
    const machine = await eventually(
      "the machine to have failed",
      async () => {
        const seen = await torpor().host.get(id);
        return seen.state === "failed" ? seen : undefined;
      },
      60_000,
    );
    expect(machine).toMatchObject({
      reason: "agent_unresponsive",
      message: expect.stringMatching(/has not answered for \d+ s/) as string,
      last_activity_at: before.last_activity_at, // being asked is no activity
    });
    expect((await torpor().host.end(id)).reason).toBe("agent_unresponsive");
  });

  test("at once, since a fork bomb starves it, is not taken for one that hangs", async () => {
    const { id } = await torpor().host.create({ cpu: 1, memory_mb: 512 });
    await torpor().host.output(id, "(bash -c 'b() { b | b & }; b' > /dev/null 2>&1 &) ; sleep 0.1");
    // Five times the patience with an idle machine.
    await new Promise((resolve) => setTimeout(resolve, 20_000));
    expect(await torpor().host.get(id)).toMatchObject({ state: "running", message: null });
    expect(await torpor().host.end(id)).toMatchObject({ state: "ended", reason: "user" });
  });
});

describe("a disk at its watermark", () => {
  const torpor = useInstance();

  test("refuses what would fill it, says how much is free, and lets everything else go on", async () => {
    const instance = torpor();
    const [awake, asleep, due] = await Promise.all([
      instance.host.create(),
      instance.host.create(),
      instance.host.create(),
    ]);
    await instance.host.output(asleep.id, "echo kept > /workspace/file");
    await instance.host.hibernate(asleep.id);
    await instance.killHost("SIGTERM");
    await instance.startHost({ TORPOR_DISK_WATERMARK_PERCENT: "1" }); // every disk is fuller than this

    const refusals = [
      await instance.host.tryCreate(),
      await instance.host.call(`/v1/machines/${awake.id}/hibernate`, { method: "POST" }),
      await instance.host.call(`/v1/machines/${awake.id}/snapshots`, {
        method: "POST",
        body: { id: `snp${"0".repeat(23)}`, name: null },
      }),
    ];
    for (const { status, json } of refusals) {
      expect([status, json]).toMatchObject([
        507,
        { error: { code: "no_space", message: expect.stringContaining("destroy") as string } },
      ]);
      const { free_bytes: free } = (json as { error: { details: { free_bytes: number } } }).error.details;
      expect(free).toBeGreaterThan(0);
    }
    // Refused before anything was done to it.
    expect(await instance.host.output(awake.id, "echo still here")).toBe("still here");
    // What is there can be reached, ended, and ends by itself.
    expect(await instance.host.output(asleep.id, "cat /workspace/file")).toBe("kept");
    await instance.host.setDeadline(due.id, Date.now() + 300);
    const ended = await eventually("the deadline to be kept", async () => {
      const seen: Machine = await instance.host.get(due.id);
      return seen.state === "ended" ? seen : undefined;
    });
    expect(ended.reason).toBe("ttl_expired");
    for (const { id } of [awake, asleep]) expect((await instance.host.end(id)).reason).toBe("user");
  });
});

describe("a host that comes back to 30 machines", () => {
  const torpor = useInstance({ pool: 2, shells: 1 });

  test("serves them all within five seconds, one that hangs and one that has died among them", async () => {
    const instance = torpor();
    const machines: Machine[] = [];
    for (let made = 0; made < 30; made += 6) {
      machines.push(
        ...(await Promise.all(Array.from({ length: 6 }, () => instance.host.create({ memory_mb: 256 })))),
      );
    }
    const [hung, dead, ...rest] = machines.map(({ id }) => id);
    for (const id of rest.slice(0, 4)) await instance.host.pause(id);
    for (const id of rest.slice(4, 8)) await instance.host.hibernate(id);
    process.kill(sandboxProcess(instance, hung ?? ""), "SIGSTOP");
    await instance.killHost("SIGKILL");
    process.kill(sandboxProcess(instance, dead ?? ""), "SIGKILL");
    const startedAt = performance.now();
    await instance.startHost();
    const startLine = instance
      .log("host")
      .trim()
      .split("\n")
      .findLast((line) => line.includes('"op":"host.start"'));
    const { durationMs: ownMs } = JSON.parse(startLine ?? "{}") as { durationMs: number };
    const answers = await Promise.all(rest.slice(8).map((id) => instance.host.output(id, "hostname")));
    const usableAfterMs = performance.now() - startedAt;
    process.stdout.write(
      `a host that comes back to 30 machines takes ${ownMs} ms from its first line to serving; all that ran have run a command ${Math.round(usableAfterMs)} ms after its process was started\n`,
    );
    expect(answers).toEqual(rest.slice(8));
    // Loading the program from its TypeScript takes seconds on a busy machine; what is installed takes 0.3 s.
    expect(ownMs).toBeLessThan(5000);
    expect(usableAfterMs).toBeLessThan(10_000);
    const states = new Map((await instance.host.list()).map(({ id, state }) => [id, state]));
    expect(rest.slice(0, 4).map((id) => states.get(id))).toEqual(Array(4).fill("paused"));
    expect(rest.slice(4, 8).map((id) => states.get(id))).toEqual(Array(4).fill("hibernated"));
    expect([states.get(hung ?? ""), states.get(dead ?? "")]).toEqual(["running", "failed"]);
    await instance.host.endAll();
  });
});

describe("what is in place and nobody's", () => {
  const torpor = useInstance();
  const SLOT = 4000;

  async function plant(): Promise<void> {
    const { names, stateDir } = torpor();
    await run(["ip", "netns", "add", names.slotNetns(SLOT)]);
    const peer = ["type", "veth", "peer", "name", "eth0", "netns", names.slotNetns(SLOT)];
    await run(["ip", "-n", names.routerNetns, "link", "add", `s${SLOT}`, ...peer]);
    mkdirSync(join(stateDir, "host", "machines", String(SLOT)));
    mkdirSync(join("/sys/fs/cgroup", "memory", names.cgroup, String(SLOT)), { recursive: true });
    writeFileSync(join(stateDir, "host", "machines", String(SLOT), "disk.ext4"), "left");
  }

  function findings(): Promise<{ findings: HostFinding[] }> {
    return torpor().host.http.json("/v1/findings");
  }

  test("is found, and goes with a repair: namespace, link, cgroup and files", async () => {
    const { id } = await torpor().host.create();
    expect((await findings()).findings).toEqual([]);
    await plant();
    expect((await findings()).findings).toMatchObject([{ kind: "slot_unclaimed", what: String(SLOT) }]);
    const repair = await torpor().host.http.json<HostRepair>("/v1/findings/repair", { method: "POST" });
    expect(repair).toMatchObject({ repaired: [{ what: String(SLOT) }], failed: [], left: [] });
    expect((await findings()).findings).toEqual([]);
    expect(await torpor().host.output(id, "echo untouched")).toBe("untouched");
  });

  test("goes when a host starts, too, while what is somebody's goes on", async () => {
    const { id } = await torpor().host.create();
    await torpor().killHost("SIGKILL");
    await plant();
    await torpor().startHost();
    await eventually("it to be swept", async () => (await findings()).findings.length === 0);
    expect(await torpor().host.output(id, "echo untouched")).toBe("untouched");
  });
});
