import type { Sandbox } from "@e2b/code-interpreter";
import { NotFoundError, TimeoutError } from "@e2b/code-interpreter";
import { beforeAll, describe, expect, test } from "vitest";
import { useInstance } from "../src/index.ts";
import { e2bCodeSandbox, settles } from "./e2b-sandbox.ts";

const torpor = useInstance({ server: true });
let sandbox: Sandbox;
beforeAll(async () => {
  sandbox = await e2bCodeSandbox(torpor(), { envs: { FLAVOUR: "salt" } });
});

describe("code run by E2B's code interpreter client", () => {
  test("gives the value of its last line, and keeps variables", async () => {
    const first = await sandbox.runCode("x = 41");
    expect(first.results).toEqual([]);
    const second = await sandbox.runCode("x + 1");
    expect(second.text).toBe("42");
    expect(second.results[0]?.isMainResult).toBe(true);
    expect((second.executionCount ?? 0) - (first.executionCount ?? 0)).toBe(1);
  });

  test("tells both streams as they come", async () => {
    const out: string[] = [];
    const err: string[] = [];
    const { logs } = await sandbox.runCode(
      "import sys, time\nprint('a', flush=True)\ntime.sleep(0.3)\nprint('b')\nprint('c', file=sys.stderr)",
      { onStdout: ({ line }) => void out.push(line), onStderr: ({ line }) => void err.push(line) },
    );
    expect(out.join("")).toBe("a\nb\n");
    expect(out.length).toBeGreaterThan(1);
    expect(err.join("")).toBe("c\n");
    expect(logs.stdout.join("")).toBe("a\nb\n");
  });

  test("that fails tells the error and its traceback, and the next runs", async () => {
    let heard: unknown;
    const { error, results } = await sandbox.runCode("1 / 0", { onError: (told) => void (heard = told) });
    expect(error).toMatchObject({ name: "ZeroDivisionError", value: "division by zero" });
    expect(error?.traceback).toContain("Traceback (most recent call last)");
    expect(heard).toEqual(error);
    expect(results).toEqual([]);
    expect((await sandbox.runCode("'fine'")).text).toBe("fine");
  });

  test("shows rich results in each their field", async () => {
    const { results } = await sandbox.runCode(
      [
        "from IPython.display import *",
        "display(HTML('<b>x</b>'), Markdown('# x'), Latex('$x$'), JSON({'a': [1]}), Javascript('1'))",
        "display(SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>'))",
        "'last'",
      ].join("\n"),
    );
    const [html, markdown, latex, json, javascript, svg, last] = results;
    expect(html).toMatchObject({ html: "<b>x</b>", isMainResult: false });
    expect(markdown?.markdown).toBe("# x");
    expect(latex?.latex).toBe("$x$");
    expect(json?.json).toEqual({ a: [1] });
    expect(javascript?.javascript).toBe("1");
    expect(svg?.svg).toContain("<svg");
    expect(last).toMatchObject({ text: "last", isMainResult: true });
  });

  test("shows a table with its data", async () => {
    const { results } = await sandbox.runCode(
      "import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': ['x', None]})",
    );
    expect(results[0]?.html).toContain("<table");
    expect(results[0]?.data).toEqual({ a: [1, 2], b: ["x", null] });
    expect(results[0]?.formats()).toEqual(expect.arrayContaining(["html", "data"]));
  });

  test("shows a figure as a picture and as a chart", async () => {
    const { results } = await sandbox.runCode(
      [
        "import matplotlib.pyplot as plt",
        "plt.plot([1, 2, 3], [4, 5, 6], label='up')",
        "plt.title('T'); plt.xlabel('X'); plt.ylabel('Y')",
        "plt.show()",
      ].join("\n"),
    );
    expect(
      Buffer.from(results[0]?.png ?? "", "base64")
        .subarray(1, 4)
        .toString(),
    ).toBe("PNG");
    expect(results[0]?.chart).toMatchObject({
      type: "line",
      title: "T",
      x_label: "X",
      y_label: "Y",
      elements: [
        {
          label: "up",
          points: [
            [1, 4],
            [2, 5],
            [3, 6],
          ],
        },
      ],
    });
  });

  test.each([
    [
      "bar",
      "plt.bar(['a', 'b'], [1, 2])",
      {
        elements: [
          { label: "a", value: 1 },
          { label: "b", value: 2 },
        ],
      },
    ],
    ["scatter", "plt.scatter([1], [2])", { elements: [{ points: [[1, 2]] }] }],
    ["pie", "plt.pie([1, 3], labels=['a', 'b'])", { elements: [{ label: "a" }, { label: "b" }] }],
    ["box_and_whisker", "plt.boxplot([[1, 2, 3, 4, 5]])", { elements: [{ min: 1, median: 3, max: 5 }] }],
    [
      "superchart",
      "f, (a, b) = plt.subplots(1, 2); a.plot([1]); b.bar(['x'], [1])",
      { elements: [{ type: "line" }, { type: "bar" }] },
    ],
  ])("tells a %s chart apart", async (type, code, more) => {
    const { results } = await sandbox.runCode(`import matplotlib.pyplot as plt\n${code}\nplt.show()`);
    expect(results[0]?.chart).toMatchObject({ type, ...more });
  });

  test("knows the sandbox's variables, and for one execution its own", async () => {
    const code = "import os; [os.environ.get('FLAVOUR'), os.environ.get('OWN'), os.environ['E2B_SANDBOX']]";
    expect((await sandbox.runCode(code, { envs: { OWN: "x", FLAVOUR: "sweet" } })).text).toBe(
      "['sweet', 'x', 'true']",
    );
    expect((await sandbox.runCode(code)).text).toBe("['salt', None, 'true']");
  });

  test("works on the same files as commands do, at home", async () => {
    await sandbox.files.write("shared.txt", "from outside");
    expect((await sandbox.runCode("import os; print(os.getcwd()); open('shared.txt').read()")).text).toBe(
      "from outside",
    );
  });

  test("that ran too long is interrupted, so that the next need not wait", async () => {
    await expect(
      sandbox.runCode("import time\nwhile True: time.sleep(0.1)", { timeoutMs: 700 }),
    ).rejects.toMatchObject({ name: TimeoutError.name });
    expect((await sandbox.runCode("'free'", { timeoutMs: 10_000 })).text).toBe("free");
  });

  test("goes on over a snapshot and a fork: every line once, in order, and its result", async () => {
    const out: string[] = [];
    const counting = sandbox.runCode(
      "import time\nfor n in range(600):\n    print(n, flush=True)\n    time.sleep(0.01)\n'counted'",
      { onStdout: ({ line }) => void out.push(line), timeoutMs: 60_000 },
    );
    const goesOn = async (): Promise<void> => {
      const before = out.length;
      await settles(async () => expect(out.length).toBeGreaterThan(before + 30));
    };
    await goesOn();
    await sandbox.createSnapshot();
    await goesOn();
    const [fork] = (await sandbox.fork()) as Sandbox[];
    await goesOn();
    const { text, error } = await counting;
    expect(error).toBeUndefined();
    expect(text).toBe("counted");
    expect(out.join("")).toBe(Array.from({ length: 600 }, (_, n) => `${n}\n`).join(""));
    await fork?.kill();
  });

  test("that ends its kernel says so, and the next finds a new one", async () => {
    const context = await sandbox.createCodeContext();
    const { error } = await sandbox.runCode("import os; os._exit(1)", { context });
    expect(error?.name).toBe("UnexpectedEndOfExecution");
    expect((await sandbox.runCode("1 + 1", { context })).text).toBe("2");
    await sandbox.removeCodeContext(context);
  });
});

describe("contexts of E2B's code interpreter client", () => {
  test("are made in a folder, kept apart, listed, restarted and removed", async () => {
    const context = await sandbox.createCodeContext({ cwd: "/tmp" });
    expect(context).toMatchObject({ language: "python", cwd: "/tmp" });
    expect((await sandbox.runCode("import os; y = 5; os.getcwd()", { context })).text).toBe("/tmp");
    expect((await sandbox.runCode("y")).error?.value).toBe("name 'y' is not defined");
    expect((await sandbox.listCodeContexts()).map(({ id }) => id)).toContain(context.id);
    await sandbox.restartCodeContext(context);
    expect((await sandbox.runCode("y", { context })).error?.name).toBe("NameError");
    await sandbox.removeCodeContext(context.id);
    expect((await sandbox.listCodeContexts()).map(({ id }) => id)).not.toContain(context.id);
  });

  test("that are not there are not found", async () => {
    const gone = { id: "00000000-0000-0000-0000-000000000000", language: "python", cwd: "/" };
    await expect(sandbox.runCode("1", { context: gone })).rejects.toThrow(`Context ${gone.id} not found`);
    const missing = { name: NotFoundError.name };
    await expect(sandbox.restartCodeContext(gone)).rejects.toMatchObject(missing);
    await expect(sandbox.removeCodeContext(gone)).rejects.toMatchObject(missing);
  });

  test("of a language there is no kernel for are refused", async () => {
    await expect(sandbox.createCodeContext({ language: "cobol" })).rejects.toMatchObject({
      name: "SandboxError",
    });
    await expect(sandbox.runCode("1", { language: "cobol" as "r" })).rejects.toThrow(/400/);
  });

  test("in bash keep their folder and variables", async () => {
    const context = await sandbox.createCodeContext({ language: "bash", cwd: "/tmp" });
    await sandbox.runCode("WORD=kept; cd /var", { context });
    expect((await sandbox.runCode('echo "$WORD $PWD"', { context })).logs.stdout.join("")).toBe(
      "kept /var\n",
    );
    expect((await sandbox.runCode("exit 3", { language: "bash" })).error).toBeDefined();
    await sandbox.removeCodeContext(context);
  });

  test("go on in a fork and after a pause with all they had", async () => {
    const context = await sandbox.createCodeContext();
    await sandbox.runCode("state = {'n': 1}", { context });
    const [fork] = (await sandbox.fork()) as Sandbox[];
    expect((await fork?.runCode("state['n'] += 1; state['n']", { context }))?.text).toBe("2");
    expect((await sandbox.runCode("state['n']", { context })).text).toBe("1");
    await fork?.kill();
    expect(await sandbox.pause()).toBe(true);
    await sandbox.connect();
    expect((await sandbox.runCode("state['n']", { context })).text).toBe("1");
    await sandbox.removeCodeContext(context);
  });

  test("run one execution after the other, in the order they came", async () => {
    const slow = sandbox.runCode("import time; time.sleep(0.5); order = ['slow']");
    await settles(async () => expect((await sandbox.listCodeContexts()).length).toBeGreaterThan(0));
    const quick = sandbox.runCode("order + ['quick']");
    await slow;
    expect((await quick).text).toBe("['slow', 'quick']");
  });
});

describe("JavaScript run by E2B's code interpreter client", () => {
  const js = { language: "javascript" } as const;

  test("gives values, keeps variables, which may be declared anew, and awaits", async () => {
    expect((await sandbox.runCode("const z = 40; function add(a) { return z + a }", js)).results).toEqual([]);
    expect((await sandbox.runCode("add(2)", js)).text).toBe("42");
    expect((await sandbox.runCode("const z = 1; z", js)).text).toBe("1");
    expect((await sandbox.runCode("await (async () => 'awaited')()", js)).text).toBe("awaited");
    expect((await sandbox.runCode("({ a: [1, { b: 2 }] })", { language: "typescript" })).text).toBe(
      "{ a: [ 1, { b: 2 } ] }",
    );
  });

  test("prints, fails and reads variables as any other", async () => {
    const { logs } = await sandbox.runCode("console.log('Hello'); console.error('bad')", js);
    expect(logs).toEqual({ stdout: ["Hello\n"], stderr: ["bad\n"] });
    expect((await sandbox.runCode("null.x", js)).error?.name).toBe("TypeError");
    expect((await sandbox.runCode("let let", js)).error?.name).toBe("SyntaxError");
    const code = "[process.env.FLAVOUR, process.env.OWN, process.cwd()].join()";
    expect((await sandbox.runCode(code, { ...js, envs: { OWN: "x" } })).text).toBe("salt,x,/home/user");
    expect((await sandbox.runCode(code, js)).text).toBe("salt,,/home/user");
  });

  test("is interrupted in a loop and while it awaits, and keeps its variables", async () => {
    await sandbox.runCode("const kept = 'kept'", js);
    for (const code of ["while (true) {}", "await new Promise(() => setTimeout(() => {}, 1e6))"]) {
      await expect(sandbox.runCode(code, { ...js, timeoutMs: 500 })).rejects.toMatchObject({
        name: TimeoutError.name,
      });
      expect((await sandbox.runCode("kept", { ...js, timeoutMs: 10_000 })).text).toBe("kept");
    }
  });

  test("that exits says so, and the next begins anew", async () => {
    expect((await sandbox.runCode("process.exit(3)", js)).error?.name).toBe("SessionEnded");
    expect((await sandbox.runCode("typeof kept", js)).text).toBe("undefined");
  });

  test("draws other random numbers in each fork, and knows whose variables it has", async () => {
    await sandbox.runCode(
      "const { randomUUID, randomInt, randomBytes } = require('crypto'); randomUUID(); 1",
      js,
    );
    const forks = (await sandbox.fork({ count: 2 })) as Sandbox[];
    const code =
      "[Math.random(), randomUUID(), randomInt(2 ** 40), randomBytes(8).toString('hex'), process.env.E2B_SANDBOX_ID].join()";
    const drawn = await Promise.all(
      [sandbox, ...forks].map(async (one) => ((await one.runCode(code, js)).text ?? "").split(",")),
    );
    for (let kind = 0; kind < 5; kind++) expect(new Set(drawn.map((values) => values[kind])).size).toBe(3);
    expect(drawn.map((values) => values[4])).toEqual([sandbox, ...forks].map(({ sandboxId }) => sandboxId));
    await Promise.all(forks.map((fork) => fork.kill()));
  });
});
