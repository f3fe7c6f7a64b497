import type { Machine } from "@torpor/protocol";
import { beforeAll, describe, expect, test } from "vitest";
import { Notebook } from "../src/notebook.ts";
import { residentState, startResident } from "../src/resident.ts";
import { useInstance } from "../src/use-instance.ts";

const COPIES = 8;

/** What copies of one warm machine would share if nobody took care. */
const SECRETS: Record<string, string> = {
  hostname: "hostname",
  "machine-id": "cat /etc/machine-id",
  urandom: "head -c 16 /dev/urandom | od -An -tx1",
  "a UUID": "python3 -c 'import uuid; print(uuid.uuid4())'",
  "the shell's RANDOM": "echo $RANDOM $RANDOM $RANDOM",
  "the id in info.json": 'python3 -c \'import json; print(json.load(open("/run/torpor/info.json"))["id"])\'',
};

describe("copies of a running machine", () => {
  const torpor = useInstance();
  let parent: Machine;
  let copies: Machine[];

  beforeAll(async () => {
    const { host } = torpor();
    parent = await host.create({ template: "code-interpreter", memory_mb: 1024 });
    await new Notebook(host, parent.id).run(
      "import random, uuid, numpy as np; shared = random.random(); np.random.rand()",
    );
    await startResident(host, parent.id);
    const began = performance.now();
    const snapshot = await host.snapshot(parent.id, "warm");
    const taken = performance.now();
    copies = [];
    // Two at a time: each holds a whole interpreter.
    for (let made = 0; made < COPIES; made += 2) {
      copies.push(
        ...(await Promise.all(
          [1, 2].map(() =>
            host.create({ template: "code-interpreter", memory_mb: 1024, from_snapshot: snapshot.id }),
          ),
        )),
      );
    }
    process.stdout.write(
      `snapshot of ${Math.round(snapshot.size_bytes / 1e6)} MB ${Math.round(taken - began)} ms, ${COPIES} copies ${Math.round(performance.now() - taken)} ms\n`,
    );
    expect((await host.snapshots()).map(({ name, tenant }) => [name, tenant])).toEqual([["warm", "test"]]);
    await host.removeSnapshot(snapshot.id);
  });

  test.each(Object.entries(SECRETS))("share no %s", async (_what, command) => {
    const answers = await Promise.all([parent, ...copies].map(({ id }) => torpor().host.output(id, command)));
    expect(answers.every((answer) => answer.trim() !== "")).toBe(true);
    expect(new Set(answers).size).toBe(COPIES + 1);
  });

  test("draw different numbers in the interpreter that was warm, and still know what it knew", async () => {
    const drawn: string[][] = [];
    for (const { id } of copies) {
      const notebook = new Notebook(torpor().host, id);
      drawn.push(
        JSON.parse(
          (
            await notebook.text("[str(x) for x in (shared, random.random(), np.random.rand(), uuid.uuid4())]")
          ).replaceAll("'", '"'),
        ) as string[],
      );
    }
    expect([0, 1, 2, 3].map((column) => new Set(drawn.map((row) => row[column])).size)).toEqual([
      1,
      COPIES,
      COPIES,
      COPIES,
    ]);
  });

  test("attest it, go on where the parent was, and leave the parent running", async () => {
    for (const copy of copies) {
      expect(copy).toMatchObject({ generation: 1, source: "snapshot", attestation: { complete: true } });
      expect(await residentState(torpor().host, copy.id)).toMatchObject({ failed: null });
    }
    expect(await torpor().host.get(parent.id)).toMatchObject({ state: "running", generation: 1 });
    expect(await residentState(torpor().host, parent.id)).toMatchObject({ failed: null });
  });
});
