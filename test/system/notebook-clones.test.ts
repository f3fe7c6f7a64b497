import { expect, test } from "vitest";
import { Notebook } from "../src/notebook.ts";
import { poolFull } from "../src/pool-full.ts";
import { useInstance } from "../src/use-instance.ts";

const instance = useInstance({ pool: 1 });

const DRAW = [
  "import numpy as np, os, random, secrets, ssl, tempfile, uuid",
  "[random.random(), np.random.rand(), str(uuid.uuid4()), str(uuid.uuid1())[9:], ssl.RAND_bytes(8).hex(), os.urandom(8).hex(), secrets.token_hex(8), next(tempfile._get_candidate_names())]",
].join("\n");

async function clone(name: string): Promise<{ id: string; source: string | null; notebook: Notebook }> {
  const { id, source } = await instance().host.create({
    template: "code-interpreter",
    memory_mb: 1024,
    env: { NAME: name },
  });
  return { id, source, notebook: new Notebook(instance().host, id) };
}

test("two clones of one warm kernel draw different numbers in every generator, and each knows its own environment", async () => {
  const clones = [await clone("one"), await clone("two"), await clone("three")];
  const drawn = await Promise.all(
    clones.map(async ({ notebook }) =>
      (JSON.parse((await notebook.text(DRAW)).replaceAll("'", '"')) as unknown[]).map(String),
    ),
  );
  for (let generator = 0; generator < (drawn[0] ?? []).length; generator++) {
    expect(
      new Set(drawn.map((values) => values[generator])).size,
      `generator ${generator}: ${JSON.stringify(drawn)}`,
    ).toBe(clones.length);
  }
  const names = await Promise.all(
    clones.map(({ notebook }) =>
      notebook.text("import os; os.environ['NAME'] + os.environ['TORPOR_SANDBOX_ID']"),
    ),
  );
  expect(names).toEqual(clones.map(({ id }, index) => `${["one", "two", "three"][index]}${id}`));
  await Promise.all(clones.map(({ id }) => instance().host.end(id)));
});

test("a waiting copy is given out with its kernel reseeded, attested, and quick at the first cell", async () => {
  await poolFull(instance(), "code-interpreter", { ready: 1 });
  const { id, source, notebook } = await clone("pool");
  expect(source).toBe("pool");
  const { attestation } = await instance().host.get(id);
  expect(attestation?.steps.find(({ name }) => name === "processes")).toMatchObject({
    outcome: "done",
    detail: "2 reseeded",
  });
  const began = performance.now();
  expect(await notebook.run("1")).toMatchObject({ text: "1", lines: [{ execution_count: 1 }, {}] });
  expect(performance.now() - began).toBeLessThan(3000);
});
