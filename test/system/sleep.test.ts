import { afterEach, describe, expect, test } from "vitest";
import { eventually } from "../src/eventually.ts";
import { Notebook } from "../src/notebook.ts";
import { checkRows, residentState, startResident } from "../src/resident.ts";
import { lookAtMachine } from "../src/leak-check.ts";
import { slotOf } from "../src/sandbox-process.ts";
import { useInstance } from "../src/use-instance.ts";

/** A wheel made by hand, so that nothing is fetched: one module that says it is there. */
const MAKE_WHEEL = `python3 - <<'PROGRAM'
import zipfile
info = "slumber-1.0.dist-info"
with zipfile.ZipFile("/workspace/slumber-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("slumber.py", "WORD = 'still installed'\\n")
    wheel.writestr(info + "/METADATA", "Metadata-Version: 2.1\\nName: slumber\\nVersion: 1.0\\n")
    wheel.writestr(info + "/WHEEL", "Wheel-Version: 1.0\\nGenerator: by hand\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    wheel.writestr(info + "/RECORD", "slumber.py,,\\n" + info + "/METADATA,,\\n" + info + "/WHEEL,,\\n" + info + "/RECORD,,\\n")
PROGRAM
python3 -m pip install --quiet --no-index --break-system-packages /workspace/slumber-1.0-py3-none-any.whl`;

describe("a machine that sleeps", () => {
  const torpor = useInstance({ pool: 0, shells: 0 });
  const output = (id: string, command: string): Promise<string> => torpor().host.output(id, command);

  afterEach(() => torpor().host.endAll());

  test("leaves no process, network, cgroup or memory behind, only its image", async () => {
    const { id } = await torpor().host.create();
    const slot = Number(slotOf(torpor(), id));
    const network = torpor().names.slotNetns(slot);
    expect([...(await lookAtMachine(torpor().stateDir))["network namespace"]]).toContain(network);
    const asleep = await torpor().host.hibernate(id);
    expect(asleep).toMatchObject({ state: "hibernated", generation: 1 });
    expect(asleep.image?.size_bytes).toBeGreaterThan(1_000_000);
    const state = await lookAtMachine(torpor().stateDir);
    expect([...state.process].filter((line) => line.includes("runsc"))).toEqual([]);
    await eventually("its files and its network to be gone", async () => {
      const { "machine directory": files, "network namespace": networks } = await lookAtMachine(
        torpor().stateDir,
      );
      // Another one is kept ready for whoever comes next.
      return files.size === 0 && !networks.has(network);
    });
  });

  test("wakes with its files, packages, caches, memory, connections and notebook", async () => {
    const { id } = await torpor().host.create({ template: "code-interpreter", memory_mb: 1024 });
    const notebook = new Notebook(torpor().host, id);
    await notebook.run("import numpy as np; answer = 41; table = np.arange(1000)");
    const hash = await output(
      id,
      "head -c 100000000 /dev/urandom > /workspace/big; sha256sum < /workspace/big",
    );
    await output(id, MAKE_WHEEL);
    await output(id, "mkdir -p ~/.cache/tool && head -c 1000000 /dev/urandom > ~/.cache/tool/warm");
    const cache = await output(id, "sha256sum ~/.cache/tool/warm");
    // Deep in the template, where nothing else is changed.
    await torpor().host.output(id, "echo '# changed' >> /usr/lib/python3.11/json/tool.py", { user: "root" });
    const before = await startResident(torpor().host, id);
    const inventory = await torpor().host.state(id);
    expect(inventory.files.sample.map(({ path }) => path)).toContain("/usr/lib/python3.11/json/tool.py");
    expect(inventory.packages.pip).toContainEqual({ name: "slumber", version: "1.0" });
    expect(inventory.caches.map(({ path }) => path).join()).toContain(".cache/tool");
    expect(inventory.files.changed_bytes).toBeGreaterThan(100_000_000);
    expect(inventory.memory.processes.map(({ pid }) => pid)).toContain(before.pid);

    const slept = performance.now();
    const { image } = await torpor().host.hibernate(id);
    const woke = performance.now();
    const machine = await torpor().host.wake(id);
    process.stdout.write(
      `hibernate ${Math.round(woke - slept)} ms, wake ${Math.round(performance.now() - woke)} ms, image ${Math.round((image?.size_bytes ?? 0) / 1e6)} MB\n`,
    );

    expect(machine).toMatchObject({ id, state: "running", generation: 2, attestation: { complete: true } });
    expect(await output(id, "sha256sum < /workspace/big")).toBe(hash);
    expect(await output(id, "python3 -c 'import slumber; print(slumber.WORD)'")).toBe("still installed");
    expect(await output(id, "sha256sum ~/.cache/tool/warm")).toBe(cache);
    const after = await eventually("the resident program to go on", async () => {
      const seen = await residentState(torpor().host, id);
      return seen.count > before.count + 30 ? seen : undefined;
    });
    expect(after).toMatchObject({ pid: before.pid, hash: before.hash, failed: null });
    expect(after.pings).toBe(after.count);
    expect(await checkRows(torpor().host, id)).toBe("ok 1");
    expect(await notebook.text("answer + int(table.sum() == 499500)")).toBe("42");
  });

  test("is put to sleep while five ask for both at once, and is never stuck", async () => {
    const { id } = await torpor().host.create();
    const before = await startResident(torpor().host, id);
    for (let round = 0; round < 5; round++) {
      const verbs = ["hibernate", "wake", "hibernate", "wake", "wake"] as const;
      const answers = await Promise.all(verbs.map((verb) => torpor().host.tryMove(id, verb)));
      expect(answers.map(({ status }) => status)).toEqual([200, 200, 200, 200, 200]);
      expect(["running", "hibernated"]).toContain((await torpor().host.get(id)).state);
    }
    expect((await torpor().host.hibernate(id)).state).toBe("hibernated");
    expect((await torpor().host.wake(id)).state).toBe("running");
    expect(await residentState(torpor().host, id)).toMatchObject({ pid: before.pid, failed: null });
  });

  test("is woken by a request, one wake for 50 of them, and not by a look at it", async () => {
    const { id } = await torpor().host.create();
    await output(id, "echo kept > /workspace/mark");
    await torpor().host.hibernate(id);
    await torpor().host.get(id);
    await torpor().host.list();
    const look = await torpor().host.call(`/v1/machines/${id}/ports/49983/torpor/state`, {
      headers: { "x-torpor-passive": "1" },
    });
    expect([look.status, (await torpor().host.get(id)).state]).toEqual([409, "hibernated"]);
    const answers = await Promise.all(Array.from({ length: 50 }, () => output(id, "cat /workspace/mark")));
    expect(new Set(answers)).toEqual(new Set(["kept"]));
    expect((await torpor().host.get(id)).generation).toBe(2);
  });

  test("sleeps by itself when nobody uses it, as durably, and wakes when somebody does", async () => {
    const { id } = await torpor().host.create({ idle_timeout_seconds: 1 });
    const before = await startResident(torpor().host, id);
    await output(id, "sleep 2; echo held > /workspace/mark"); // a command holds it awake
    const { generation } = await torpor().host.get(id);
    await eventually("it to fall asleep", async () => (await torpor().host.get(id)).state === "hibernated");
    expect(await output(id, "cat /workspace/mark")).toBe("held");
    expect((await torpor().host.get(id)).generation).toBe(generation + 1);
    expect(await residentState(torpor().host, id)).toMatchObject({ pid: before.pid, failed: null });
  });

  test("is stopped in RAM by a pause, and goes on", async () => {
    const { id } = await torpor().host.create();
    const before = await startResident(torpor().host, id);
    const began = performance.now();
    expect((await torpor().host.pause(id)).state).toBe("paused");
    const paused = performance.now();
    expect((await torpor().host.resume(id)).state).toBe("running");
    process.stdout.write(
      `pause ${(paused - began).toFixed(1)} ms, resume ${(performance.now() - paused).toFixed(1)} ms\n`,
    );
    await torpor().host.pause(id);
    expect(await residentState(torpor().host, id)).toMatchObject({ pid: before.pid, failed: null }); // a request resumes it
    expect((await torpor().host.get(id)).generation).toBe(1);
    await torpor().host.pause(id);
    await torpor().host.hibernate(id);
    expect(await residentState(torpor().host, id)).toMatchObject({ pid: before.pid, failed: null });
  });
});
