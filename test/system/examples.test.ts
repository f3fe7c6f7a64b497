import { run } from "@torpor/base";
import { Sandbox } from "@torpor/sdk";
import { describe, expect, test } from "vitest";
import { repositoryRoot } from "../src/repository.ts";
import { useInstance } from "../src/use-instance.ts";

describe("the examples on real machines", () => {
  const torpor = useInstance({ server: true, pool: 1, shells: 1 });

  async function example(name: string): Promise<string> {
    const { url, apiKey } = torpor();
    const argv = [process.execPath, "--conditions=source", "--import", "tsx", `examples/${name}.ts`] as const;
    const { stdout } = await run(argv, {
      cwd: repositoryRoot,
      env: { ...process.env, TORPOR_URL: url, TORPOR_API_KEY: apiKey },
    });
    process.stdout.write(stdout);
    const left: string[] = [];
    for await (const { id } of Sandbox.list({ url, apiKey })) left.push(id);
    expect(left).toEqual([]);
    return stdout;
  }

  test("stateful: turn 2 finds turn 1's repository, package and variables after a hibernation", async () => {
    const said = await example("stateful");
    expect(said).toMatch(/asleep, [1-9]\d* MB of storage and no RAM\nturn 2: the same sandbox, awake\n/);
    expect(said).toMatch(/repository turn 1\npackage +hello\nvariable +42\n$/);
  });

  test("notebook: values, output, errors and a kernel of its own", async () => {
    expect(await example("notebook")).toBe(
      "price 1\nprice 2\nprice 3\nvalue 6\nZeroDivisionError: division by zero\nanother kernel knows the variable: False\n",
    );
  });

  test("fork-best-of-n: the best of three forks is kept", async () => {
    const said = await example("fork-best-of-n");
    expect(said).toMatch(/^best slope 3, scores -2450 0 -8575\n/);
    expect(said).toContain("its fork runs on: true");
  });
});
