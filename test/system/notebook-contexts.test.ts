import { setTimeout as delay } from "node:timers/promises";
import { beforeAll, describe, expect, test } from "vitest";
import { eventually } from "../src/eventually.ts";
import { Notebook } from "../src/notebook.ts";
import { useInstance } from "../src/use-instance.ts";

const LOST = {
  type: "error",
  name: "UnexpectedEndOfExecution",
  value: "Connection to the execution was closed before the execution was finished",
  traceback: "",
};

const instance = useInstance();
let notebook: Notebook;
let machineId: string;
beforeAll(async () => {
  ({ id: machineId } = await instance().host.create({ template: "code-interpreter", memory_mb: 1024 }));
  notebook = new Notebook(instance().host, machineId);
});

/** Resident memory of the code server and of the default kernel, MiB. */
async function residentMib(): Promise<{ server: number; kernel: number }> {
  const listing = await instance().host.output(machineId, "ps -eo rss=,args=");
  const of = (sign: string): number =>
    Math.max(
      ...listing
        .split("\n")
        .filter((line) => line.includes(sign))
        .map((line) => Number.parseInt(line, 10) / 1024),
    );
  return { server: of("-I /usr/local/lib/torpor/code-server"), kernel: of("start.py python") };
}

describe("contexts", () => {
  test("are made in a folder, listed, kept apart, restarted and deleted", async () => {
    const made = await notebook.createContext({ cwd: "/tmp" });
    expect(made).toMatchObject({ language: "python", cwd: "/tmp" });
    const inIt = { context_id: made.id };
    expect(await notebook.text("import os; y = 1; os.getcwd()", inIt)).toBe("/tmp");
    expect((await notebook.run("y")).error?.name).toBe("NameError");
    expect((await notebook.contexts()).map(({ id }) => id)).toContain(made.id);

    expect((await notebook.call("POST", `/contexts/${made.id}/restart`)).status).toBe(204);
    expect(await notebook.text("'y' in dir()", inIt)).toBe("False");

    expect((await notebook.call("DELETE", `/contexts/${made.id}`)).status).toBe(204);
    expect(await notebook.call("POST", "/execute", { code: "1", ...inIt })).toEqual({
      status: 404,
      text: `Context ${made.id} not found`,
    });
    expect((await notebook.contexts()).map(({ id }) => id)).not.toContain(made.id);
    expect(await instance().host.output(machineId, "pgrep -fc '[s]tart.py python'")).toBe("1");
    expect(await instance().host.output(machineId, "ls /run/torpor/reseed.d | grep -c python")).toBe("1");
  });

  test("follow their folder in bash too", async () => {
    const { id } = await notebook.createContext({ language: "bash", cwd: "/var" });
    expect((await notebook.run("pwd", { context_id: id })).stdout).toBe("/var\n");
    await notebook.call("DELETE", `/contexts/${id}`);
  });

  test.each([
    [
      "an unknown language",
      "/contexts",
      { language: "cobol" },
      400,
      "Language 'cobol' has no kernel in this template. There are: python, javascript, bash.",
    ],
    [
      "a folder that is not there",
      "/contexts",
      { cwd: "/nowhere" },
      400,
      "cwd '/nowhere' is not a directory",
    ],
    [
      "a context and a language",
      "/execute",
      { code: "1", context_id: "x", language: "python" },
      400,
      "Only one of context_id or language",
    ],
    ["no code", "/execute", {}, 400, "Field code must be a string"],
    [
      "a variable that cannot be",
      "/execute",
      { code: "1", env_vars: { "a b": "c" } },
      400,
      "env_vars has a name that no variable can have",
    ],
    ["no object", "/execute", [1], 400, "The body must be a JSON object"],
    ["an unknown context", "/contexts/none/restart", {}, 404, "Context none not found"],
    ["an unknown route", "/none", {}, 404, ""],
  ])("refuse %s in words", async (_name, path, body, status, text) => {
    const answer = await notebook.call("POST", path, body);
    expect(answer.status).toBe(status);
    expect(answer.text).toContain(text);
  });

  test("refuse what a page in a browser inside could send", async () => {
    const answer = await instance().host.call(`/v1/machines/${machineId}/ports/49999/execute`, {
      method: "POST",
      body: '{"code":"1"}',
      headers: { "content-type": "text/plain" },
    });
    expect(answer.status).toBe(415);
  });
});

describe("executions on one context", () => {
  test("take turns in the order they came", async () => {
    await notebook.run("seen = []; busy = 0");
    await Promise.all(
      Array.from({ length: 8 }, async (_, index) => {
        await delay(index * 60);
        return notebook.run(
          `import time\nassert busy == 0\nbusy = 1\ntime.sleep(0.2)\nbusy = 0\nseen.append(${index})`,
        );
      }),
    );
    expect(await notebook.text("seen")).toBe("[0, 1, 2, 3, 4, 5, 6, 7]");
  });

  test("are interrupted when their client leaves, also those that catch the first interrupt or run children", async () => {
    for (const code of [
      "n = 0\nprint('up')\nwhile True: n += 1",
      "import time\nprint('up')\nfor _ in range(2):\n    try: time.sleep(60)\n    except KeyboardInterrupt: caught = True\n",
      "import os\nprint('up', flush=True)\nos.system('sleep 60')",
      "while True: print('y' * 1000)",
    ]) {
      for await (const line of notebook.stream(code)) if (line.type === "stdout") break;
      const left = performance.now();
      expect(await notebook.text("'free'")).toBe("free");
      expect(performance.now() - left, code).toBeLessThan(6000);
    }
    expect(await notebook.text("caught")).toBe("True");
    expect(await instance().host.output(machineId, "pgrep -fc '^sleep 60' || true")).toBe("0");
  });

  test("that wait are not run when their client leaves", async () => {
    const running = notebook.run("import time; time.sleep(2)");
    await delay(300);
    const waiting = await notebook.open("never = 1");
    waiting.destroy();
    await running;
    expect(await notebook.text("'never' in dir()")).toBe("False");
  });

  test("in bash are interrupted as well, and the shell keeps its variables", async () => {
    const bash = { language: "bash" };
    await notebook.run("OWN=1", bash);
    // The second goes on through its interrupts to its end.
    for (const code of ["echo up; sleep 60; echo after", "(trap '' INT; echo up; sleep 3)"]) {
      for await (const line of notebook.stream(code, bash)) if (line.type === "stdout") break;
      expect(await notebook.run("echo $OWN", bash), code).toMatchObject({ stdout: "1\n", error: undefined });
    }
  });
});

describe("a restore", () => {
  /** Does what the guest agent does after a restore, for every registered process; answers what each said. */
  const TELL_ALL = [
    "import base64, glob, json, socket",
    "message = {'entropy_base64': base64.b64encode(bytes(64)).decode(), 'generation': 2, 'sandbox_id': 'sbx', 'env': {'FRESH': 'yes'}}",
    "for path in glob.glob('/run/torpor/reseed.d/*.sock'):",
    "    with socket.socket(socket.AF_UNIX) as s:",
    "        s.settimeout(5); s.connect(path); s.sendall(json.dumps(message).encode() + b'\\n'); print(s.recv(16).decode(), end='')",
  ].join("\n");

  test("reseeds a kernel that is busy, gives it the new environment, and does not wait for it", async () => {
    await notebook.run("import os, random, time; import numpy as np");
    const lines = notebook.stream(
      "random.seed(1); np.random.seed(1); print('up')\nend = time.time() + 3\nwhile time.time() < end: pass\n" +
        "(random.random() == random.Random(bytes(64)).random(), np.random.rand() == np.random.RandomState([0] * 16).rand(), os.environ['FRESH'])",
    );
    let text: string | undefined;
    let answers = "";
    for await (const line of lines) {
      if (line.type === "stdout") {
        const began = performance.now();
        answers = await instance().host.output(machineId, `python3 -c "${TELL_ALL}"`, { user: "root" });
        expect(performance.now() - began).toBeLessThan(2500);
      }
      if (line.type === "result") text = line.text;
    }
    expect(answers).toMatch(/^(ok\n?)+$/);
    expect(text).toBe("(True, True, 'yes')");
  });
});

describe("a kernel that dies", () => {
  test("ends its execution with an error line, and the next finds a new one", async () => {
    await notebook.run("z = 1");
    expect((await notebook.run("import os; os._exit(3)")).lines.at(-1)).toEqual(LOST);
    expect(await notebook.text("'z' in dir()")).toBe("False");
    expect(
      (await notebook.run("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")).lines.at(-1),
    ).toEqual(LOST);
    expect(await notebook.text("1")).toBe("1");
  });

  test("while idle is replaced before anybody asks", async () => {
    const pid = await notebook.text("import os; os.getpid()");
    await instance().host.output(machineId, `kill -9 ${pid}`);
    await eventually("another kernel", async () =>
      (await instance().host.output(machineId, "pgrep -f '[s]tart.py python' || true"))
        .split("\n")
        .some((found) => found !== "" && found !== pid),
    );
    expect(await notebook.text("os.getpid() if 'os' in dir() else 'new'")).toBe("new");
  });

  test("by exit() is followed by a new one", async () => {
    await notebook.run("w = 1");
    await notebook.run("exit()");
    expect(await notebook.text("'w' in dir()")).toBe("False");
  });

  test("takes no other with it when the code server is killed: that comes back by itself", async () => {
    const pid = await instance().host.output(
      machineId,
      "pgrep -f '^/usr/bin/python3 -I /usr/local/lib/torpor/code-server$'",
    );
    await instance().host.output(machineId, `kill -9 ${pid}`);
    const back = await eventually(
      "the code server",
      async () => (await notebook.call("GET", "/health")).text === "OK",
      30_000,
    );
    expect(back).toBe(true);
    expect(await notebook.text("3")).toBe("3");
    expect(await instance().host.output(machineId, "cat /var/log/torpor/code-server.log")).toContain(
      "was ended by killed; starting it again in 200ms",
    );
  });
});

describe("much output", () => {
  test(
    "of 100 MB reaches a slow reader whole, while server and kernel stay small",
    { timeout: 240_000 },
    async () => {
      await notebook.run("1"); // a kernel is there
      const before = await residentMib();
      const incoming = await notebook.open("for i in range(100_000): print('%06d' % i + 'x' * 993)");
      await delay(3000); // nobody reads: the kernel waits
      const waiting = await residentMib();
      expect(waiting.kernel - before.kernel).toBeLessThan(40);
      expect(waiting.server - before.server).toBeLessThan(40);
      let bytes = 0;
      let rest = "";
      let next = 0;
      incoming.setEncoding("utf8");
      for await (const chunk of incoming as AsyncIterable<string>) {
        const lines = (rest + chunk).split("\n");
        rest = lines.pop() ?? "";
        for (const line of lines) {
          const { type, text = "" } = JSON.parse(line) as { type: string; text?: string };
          if (type !== "stdout") continue;
          bytes += text.length;
          for (const [, number] of text.matchAll(/(\d{6})x/g)) expect(Number(number)).toBe(next++);
        }
      }
      expect(bytes).toBe(100_000_000);
      const after = await residentMib();
      expect(after.kernel - before.kernel).toBeLessThan(60);
      expect(after.server - before.server).toBeLessThan(60);
    },
  );

  test("in one result is left out with a word about it", async () => {
    const { stderr, error } = await notebook.run("from IPython.display import HTML\nHTML('x' * (40 << 20))");
    expect(error).toBeUndefined();
    expect(stderr).toContain("A result of 40 MiB was left out");
    expect(await notebook.text("1")).toBe("1");
  });
});
