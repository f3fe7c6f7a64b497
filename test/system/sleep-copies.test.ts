import type { Machine } from "@torpor/protocol";
import { beforeAll, describe, expect, test } from "vitest";
import { eventually } from "../src/eventually.ts";
import { Notebook } from "../src/notebook.ts";
import { residentState, startResident } from "../src/resident.ts";
import { useInstance } from "../src/use-instance.ts";

const COPIES = 50;
/** Alive at a time: each holds a whole interpreter. */
const AT_ONCE = 5;
const TEST_TIMEOUT_MS = 300_000;

/** What copies of one warm machine would share if nobody took care. */
const SECRETS: Record<string, string> = {
  hostname: "hostname",
  "machine-id": "cat /etc/machine-id",
  urandom: "head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \\n'",
  "a UUID": "python3 -c 'import uuid; print(uuid.uuid4())'",
  "the shell's RANDOM": "echo $RANDOM $RANDOM $RANDOM",
  "the id in info.json": 'python3 -c \'import json; print(json.load(open("/run/torpor/info.json"))["id"])\'',
};
const DRAWN = ["random", "NumPy", "Python's UUID"];

describe("copies of a running machine", () => {
  const torpor = useInstance({ shells: 2 });
  let parent: Machine;
  /** By what it is of, one a copy, the parent's own last. */
  const seen = new Map<string, string[]>();
  const shared: string[] = [];

  async function look(id: string): Promise<void> {
    const note = (what: string, value: string | undefined): void => {
      seen.set(what, [...(seen.get(what) ?? []), value?.trim() ?? ""]);
    };
    const commands = Object.values(SECRETS);
    const answers = (await torpor().host.output(id, commands.join("; echo; "))).split("\n").filter(Boolean);
    Object.keys(SECRETS).forEach((what, index) => note(what, answers[index]));
    const notebook = new Notebook(torpor().host, id);
    const [told, ...drawn] = JSON.parse(
      (
        await notebook.text("[str(x) for x in (shared, random.random(), np.random.rand(), uuid.uuid4())]")
      ).replaceAll("'", '"'),
    ) as string[];
    shared.push(told ?? "");
    DRAWN.forEach((what, index) => note(what, drawn[index]));
  }

  beforeAll(async () => {
    const { host } = torpor();
    parent = await host.create({ template: "code-interpreter", memory_mb: 1024 });
    await new Notebook(host, parent.id).run(
      "import random, uuid, numpy as np; shared = random.random(); np.random.rand()",
    );
    await startResident(host, parent.id);
    const snapshot = await host.snapshot(parent.id, "warm");
    const taken = performance.now();
    for (let made = 0; made < COPIES; made += AT_ONCE) {
      await Promise.all(
        Array.from({ length: AT_ONCE }, async () => {
          const copy = await host.create({
            template: "code-interpreter",
            memory_mb: 1024,
            from_snapshot: snapshot.id,
          });
          expect(copy).toMatchObject({
            generation: 1,
            source: "snapshot",
            attestation: { complete: true },
          });
          await look(copy.id);
          expect(await residentState(host, copy.id)).toMatchObject({ failed: null });
          await host.end(copy.id);
        }),
      );
    }
    await look(parent.id);
    process.stdout.write(
      `${COPIES} copies of ${Math.round(snapshot.size_bytes / 1e6)} MB, made, asked and ended: ${Math.round(performance.now() - taken)} ms\n`,
    );
    expect((await host.snapshots()).map(({ name, tenant }) => [name, tenant])).toEqual([["warm", "test"]]);
    await host.removeSnapshot(snapshot.id);
  }, TEST_TIMEOUT_MS);

  test.each([...Object.keys(SECRETS), ...DRAWN])("share no %s", (what) => {
    const values = seen.get(what) ?? [];
    expect(values).toHaveLength(COPIES + 1);
    expect(values.every((value) => value !== "")).toBe(true);
    expect(new Set(values).size).toBe(COPIES + 1);
  });

  test("still know what the interpreter knew, and leave the parent running where it was", async () => {
    expect(new Set(shared).size).toBe(1);
    expect(await torpor().host.get(parent.id)).toMatchObject({ state: "running", generation: 1 });
    expect(await residentState(torpor().host, parent.id)).toMatchObject({ failed: null });
  });
});

/** Fills 400 MB, then notes the longest time it did not come to run. */
const WATCH = `
import json, os, time
block = os.urandom(400_000_000)
longest, last = 0, time.monotonic()
while True:
    time.sleep(0.005)
    now = time.monotonic()
    longest, last = max(longest, now - last), now
    with open("/workspace/pause.new", "w") as out: json.dump({"longest_ms": longest * 1000, "at": time.time()}, out)
    os.replace("/workspace/pause.new", "/workspace/pause")
`;

describe("a parent with 400 MB in memory", () => {
  const torpor = useInstance();

  test("stands still while it is copied, and no longer", async () => {
    const { host } = torpor();
    const { id } = await host.create({ memory_mb: 1024 });
    await host.output(
      id,
      `cat > /workspace/watch.py <<'PROGRAM'\n${WATCH}\nPROGRAM\nsetsid python3 /workspace/watch.py > /workspace/watch.log 2>&1 < /dev/null & disown`,
    );
    const pause = async (): Promise<{ longest_ms: number; at: number }> =>
      JSON.parse(await host.output(id, "cat /workspace/pause")) as { longest_ms: number; at: number };
    const before = await eventually("its memory to be full", pause, 30_000);
    const began = performance.now();
    const snapshot = await host.snapshot(id);
    const tookMs = performance.now() - began;
    const after = await eventually("it to go on", async () => {
      const now = await pause();
      return now.at > before.at + tookMs / 1000 ? now : undefined;
    });
    process.stdout.write(
      `parent of ${Math.round(snapshot.size_bytes / 1e6)} MB: paused ${Math.round(after.longest_ms)} ms of the ${Math.round(tookMs)} ms that its snapshot took\n`,
    );
    expect(snapshot.size_bytes).toBeGreaterThan(400_000_000);
    expect(after.longest_ms).toBeGreaterThan(before.longest_ms);
    // As long as the copy takes, and what a busy machine takes to get round to it again.
    expect(after.longest_ms).toBeLessThan(tookMs + 1000);
    await host.removeSnapshot(snapshot.id);
  });
});
