import { beforeAll, describe, expect, test } from "vitest";
import { Notebook } from "../src/notebook.ts";
import { useInstance } from "../src/use-instance.ts";

const PNG =
  "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

const instance = useInstance();
let notebook: Notebook;
let machineId: string;
beforeAll(async () => {
  ({ id: machineId } = await instance().host.create({
    template: "code-interpreter",
    memory_mb: 1024,
    env: { FLAVOUR: "salt" },
  }));
  notebook = new Notebook(instance().host, machineId);
});

describe("a notebook", () => {
  test("counts from 1, keeps variables between executions and knows the sandbox's environment", async () => {
    const first = await notebook.run("x = 41");
    expect(first.lines).toEqual([{ type: "number_of_executions", execution_count: 1 }]);
    expect(await notebook.text("x + 1")).toBe("42");
    expect(
      await notebook.text("import os; os.environ['FLAVOUR'], os.environ['TORPOR_SANDBOX_ID'], os.getcwd()"),
    ).toBe(`('salt', '${machineId}', '/home/user')`);
  });

  test("streams output as it is written", async () => {
    const arrived: number[] = [];
    for await (const line of notebook.stream(
      "import time\nfor i in range(3):\n    print(i)\n    time.sleep(0.6)",
    )) {
      if (line.type === "stdout") arrived.push(performance.now());
    }
    expect(arrived).toHaveLength(3);
    expect((arrived[2] ?? 0) - (arrived[0] ?? 0)).toBeGreaterThan(700);
  });

  test("sends a sign of life while nothing is written", async () => {
    const { lines } = await notebook.run("import time; time.sleep(5.5)");
    expect(lines.map(({ type }) => type)).toEqual(["number_of_executions", "keepalive"]);
  });

  test("tells standard output and error apart, also of child processes and of native writes", async () => {
    const { stdout, stderr } = await notebook.run(
      "import os, sys\nprint('a', file=sys.stderr)\nos.system('echo b; echo c >&2')\nos.write(1, b'd')",
    );
    expect(
      stdout
        .split("")
        .sort((a, b) => a.localeCompare(b))
        .join("")
        .trim(),
    ).toBe("bd");
    expect(
      stderr
        .split("")
        .sort((a, b) => a.localeCompare(b))
        .join("")
        .trim(),
    ).toBe("ac");
  });

  test("shows what forked children print", async () => {
    const { stdout, error } = await notebook.run(
      "import multiprocessing as mp, time\ndef f(n): print(f'child {n}'); return n\nwith mp.get_context('fork').Pool(2) as pool: print(pool.map(f, [1, 2]))",
    );
    expect(error).toBeUndefined();
    expect(stdout.split("\n").sort()).toEqual(["", "[1, 2]", "child 1", "child 2"]);
  });

  test("passes any text and any bytes on", async () => {
    const { stdout, text } = await notebook.run(
      "import os, time\nprint('h\\u00e9 \\U0001F600 \\ud800 \\0 end')\nos.write(1, b'\\xff\\xfe raw')\n'\\u2028\\U0001F600'",
    );
    expect(stdout).toContain("hé 😀 ? \0 end");
    expect(stdout).toContain("\ufffd\ufffd raw");
    expect(text).toBe("\\u2028😀");
    expect(await notebook.text("'still here'")).toBe("still here");
  });

  test("takes the quotes off a text result", async () => {
    expect(await notebook.text("'it'")).toBe("it");
    expect(await notebook.text('"it\'s"')).toBe("it's");
    expect(await notebook.text("['a']")).toBe("['a']");
  });

  test("shows each kind of rich result in its field", async () => {
    const { results } = await notebook.run(
      [
        "from IPython.display import *",
        "import base64",
        `png = base64.b64decode('${PNG}')`,
        "display(HTML('<b>x</b>'), Markdown('# x'), SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>'), Latex('$x$'), JSON({'a': [1]}), Javascript('1'))",
        "display(Image(data=png), Image(data=b'\\xff\\xd8\\xff\\xe0', format='jpeg'))",
        "display({'application/pdf': 'JVBERi0=', 'application/x-own': 'own'}, raw=True)",
      ].join("\n"),
    );
    expect(results.every((result) => result.is_main_result === false)).toBe(true);
    const [html, markdown, svg, latex, json, javascript, png, jpeg, raw] = results;
    expect(html?.["html"]).toBe("<b>x</b>");
    expect(markdown?.["markdown"]).toBe("# x");
    expect(svg?.["svg"]).toContain("<svg");
    expect(latex?.["latex"]).toBe("$x$");
    expect(json?.["json"]).toEqual({ a: [1] });
    expect(javascript?.["javascript"]).toBe("1");
    expect(String(png?.["png"]).trim()).toBe(PNG);
    expect(Buffer.from(String(jpeg?.["jpeg"]), "base64").subarray(0, 3)).toEqual(
      Buffer.from([0xff, 0xd8, 0xff]),
    );
    expect(raw).toMatchObject({ pdf: "JVBERi0=", extra: { "application/x-own": "own" } });
  });

  test("gives a table's data as columns, with null for what is missing or infinite", async () => {
    const { results } = await notebook.run(
      "import pandas as pd\npd.DataFrame({'n': [1, 2], 'f': [1.5, float('inf')], 'd': pd.to_datetime(['2024-01-01', None]), 's': ['x', None]})",
    );
    expect(results[0]?.["html"]).toContain("<table");
    expect(results[0]?.["data"]).toEqual({
      n: [1, 2],
      f: [1.5, null],
      d: ["2024-01-01T00:00:00", null],
      s: ["x", null],
    });
  });

  test("shows the first figure without being asked, with its chart's data", async () => {
    const { id } = await notebook.createContext();
    const { results } = await notebook.run(
      "import matplotlib.pyplot as plt\nplt.plot([1, 2], [3, 4], label='a')\nplt.xlabel('Time (s)')\nplt.title('T')\nNone",
      { context_id: id },
    );
    const figure = results.find((result) => result["png"] !== undefined);
    expect(Buffer.from(String(figure?.["png"]), "base64").subarray(1, 4).toString()).toBe("PNG");
    expect(figure?.["chart"]).toMatchObject({
      type: "line",
      title: "T",
      x_label: "Time (s)",
      x_unit: "s",
      y_label: null,
      x_scale: "linear",
      elements: [
        {
          label: "a",
          points: [
            [1, 3],
            [2, 4],
          ],
        },
      ],
    });
    await notebook.call("DELETE", `/contexts/${id}`);
  });

  test.each([
    ["scatter", "plt.scatter([1], [2], label='s')", [{ label: "s", points: [[1, 2]] }]],
    [
      "bar",
      "plt.bar(['a', 'b'], [1, 2], label='g')",
      [
        { label: "a", group: "g", value: 1 },
        { label: "b", group: "g", value: 2 },
      ],
    ],
    ["bar", "plt.barh(['a'], [3], label='g')", [{ label: "a", group: "g", value: 3 }]],
    [
      "pie",
      "plt.pie([1, 3], labels=['x', 'y'])",
      [
        { label: "x", angle: 90, radius: 1 },
        { label: "y", angle: 270, radius: 1 },
      ],
    ],
    [
      "box_and_whisker",
      "plt.boxplot([[1, 2, 3, 4, 50]], labels=['p'])",
      [{ label: "p", min: 1, first_quartile: 2, median: 3, third_quartile: 4, max: 4, outliers: [50] }],
    ],
    [
      "box_and_whisker",
      "plt.boxplot([[1, 2, 3, 4, 50]], labels=['p'], vert=False, patch_artist=True, showmeans=True)",
      [{ label: "p", min: 1, first_quartile: 2, median: 3, third_quartile: 4, max: 4, outliers: [12, 50] }],
    ],
    [
      "superchart",
      "f, (a, b) = plt.subplots(1, 2); a.plot([1, 2]); b.bar(['x'], [2])",
      [expect.objectContaining({ type: "line" }), expect.objectContaining({ type: "bar" })],
    ],
    ["unknown", "plt.imshow([[1, 2], [3, 4]])", []],
  ])("gives the data of a %s chart: %s", async (type, code, elements) => {
    const { results, error } = await notebook.run(`import matplotlib.pyplot as plt\n${code}\nNone`);
    expect(error).toBeUndefined();
    expect(results.find((result) => result["png"] !== undefined)?.["chart"]).toMatchObject({
      type,
      elements,
    });
  });

  test("reports an error with its traceback and goes on", async () => {
    const { error, lines } = await notebook.run("def f():\n    return 1 / 0\nf()");
    expect(error).toMatchObject({ name: "ZeroDivisionError", value: "division by zero" });
    expect(error?.traceback).toContain("return");
    expect(lines.at(-1)).toBe(error);
    expect((await notebook.run("def f(:")).error?.name).toBe("SyntaxError");
    expect((await notebook.run("input()")).error?.name).toBe("StdinNotImplementedError");
    expect(await notebook.text("1 + 1")).toBe("2");
  });

  test("sets variables for one execution only, also when it fails", async () => {
    const env_vars = { FLAVOUR: "sweet", EXTRA: 'it\'s "x"\n' };
    expect(await notebook.text("import os; (os.environ['FLAVOUR'], os.environ['EXTRA'])", { env_vars })).toBe(
      `('sweet', 'it\\'s "x"\\n')`,
    );
    await notebook.run("1 / 0", { env_vars });
    expect(await notebook.text("(os.environ['FLAVOUR'], os.environ.get('EXTRA'))")).toBe("('salt', None)");
  });

  test("runs top-level await", async () => {
    expect(await notebook.text("import asyncio\nawait asyncio.sleep(0.01, result=7)")).toBe("7");
  });
});

describe("bash", () => {
  const bash = { language: "bash" };

  test("keeps its folder and variables, and reports status and both streams", async () => {
    const first = await notebook.run("cd /tmp; OWN=1; echo out; echo err >&2; false", bash);
    expect(first.stdout).toBe("out\n");
    expect(first.stderr).toBe("err\n");
    expect(first.error).toMatchObject({ name: "ExitStatus", value: "1" });
    const second = await notebook.run("pwd; echo $OWN $FLAVOUR", bash);
    expect(second).toMatchObject({ stdout: "/tmp\n1 salt\n", stderr: "", error: undefined });
  });

  test("lives through syntax errors, quotes, input that is not there and bytes that are no text", async () => {
    expect((await notebook.run("if", bash)).error).toMatchObject({ name: "ExitStatus", value: "2" });
    expect(await notebook.run(`cat; echo 'it'"'"'s'; printf '\\xff'`, bash)).toMatchObject({
      stdout: "it's\n\ufffd",
      error: undefined,
    });
    expect(await notebook.run("seq 100000 | tail -1; echo $OWN", bash)).toMatchObject({
      stdout: "100000\n1\n",
    });
  });

  test("sets variables for one execution only", async () => {
    expect(
      await notebook.run("echo $FLAVOUR $EXTRA", { ...bash, env_vars: { FLAVOUR: "sweet", EXTRA: "it's" } }),
    ).toMatchObject({ stdout: "sweet it's\n" });
    expect(await notebook.run("echo $FLAVOUR ${EXTRA-none}", bash)).toMatchObject({ stdout: "salt none\n" });
  });

  test("starts anew after exit", async () => {
    expect((await notebook.run("exit 3", bash)).error).toMatchObject({ name: "ExitStatus", value: "3" });
    expect(await notebook.run("echo ${OWN-gone}", bash)).toMatchObject({ stdout: "gone\n" });
  });
});
