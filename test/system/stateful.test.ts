import { Sandbox, type SandboxCreateOptions } from "@torpor/sdk";
import { describe, expect, test } from "vitest";
import { eventually } from "../src/eventually.ts";
import { FAKE_INTERNET, FakeInternet } from "../src/fake-internet.ts";
import { installRedis, REDIS_CLIENT, type RedisClientState } from "../src/redis.ts";
import { useInstance } from "../src/use-instance.ts";

const COUNTER =
  "import time\nn = 0\nwhile True:\n    n += 1\n    open('/tmp/n', 'w').write(str(n))\n    time.sleep(0.1)\n";

describe("a stateful sandbox through the API", () => {
  const torpor = useInstance({ server: true, pool: 1, shells: 1 });
  const connection = (): { url: string; apiKey: string } => ({ url: torpor().url, apiKey: torpor().apiKey });
  const persistent = (options: SandboxCreateOptions = {}): Promise<Sandbox> =>
    Sandbox.create({
      template: "code-interpreter",
      persistent: true,
      tenant: "acme",
      ...connection(),
      ...options,
    });

  test("falls asleep when idle, and 20 requests at once share the wake into the same processes", async () => {
    await using sandbox = await persistent({ idleTimeoutSeconds: 2 });
    await sandbox.files.write("/tmp/counter.py", COUNTER);
    const { pid } = await sandbox.start("exec python3 /tmp/counter.py", { timeoutSeconds: 600 });
    // A command in the background holds it awake, so the counter is let go of before it may sleep.
    expect((await sandbox.lifecycle()).idle.seconds).toBe(2);
    await sandbox.exec(`setsid python3 /tmp/counter.py >/dev/null 2>&1 & echo $! > /tmp/pid; kill ${pid}`);
    const counter = (await sandbox.files.read("/tmp/pid")).trim();
    await eventually(
      "it to fall asleep",
      async () => (await sandbox.refresh()).state === "hibernated",
      60_000,
    );
    expect(sandbox.info).toMatchObject({ generation: 1, idleAt: null });
    expect(sandbox.info.image?.sizeBytes).toBeGreaterThan(1_000_000);
    const answers = await Promise.all(
      Array.from({ length: 20 }, () => sandbox.exec("cat /tmp/pid; cat /tmp/n")),
    );
    for (const { stdout } of answers) expect(stdout.split("\n")[0]).toBe(counter);
    expect(await sandbox.refresh()).toMatchObject({ state: "running", generation: 2 });
    const count = async (): Promise<number> => Number(await sandbox.files.read("/tmp/n"));
    const before = await count();
    await eventually("the counter to go on", async () => (await count()) > before, 10_000);
  });

  test("redis goes on in the same process, with its client on the same connection", async () => {
    await using sandbox = await persistent({ template: "base" });
    const redis = await installRedis(sandbox);
    await sandbox.exec(`setsid ${redis} --save '' --dir /tmp > /tmp/redis.log 2>&1 < /dev/null &`);
    await sandbox.files.write("/workspace/client.py", REDIS_CLIENT);
    await sandbox.exec(
      "for i in $(seq 100); do grep -q 'Ready to accept' /tmp/redis.log && break; sleep 0.1; done; setsid python3 /workspace/client.py > /workspace/client.log 2>&1 < /dev/null &",
    );
    const look = async (): Promise<RedisClientState> =>
      JSON.parse(await sandbox.files.read("/workspace/redis.json")) as RedisClientState;
    const before = await eventually("the client to be under way", async () => {
      const seen = await look();
      return seen.count > 20 ? seen : undefined;
    });
    await sandbox.hibernate();
    await sandbox.wake();
    const after = await eventually("the client to go on", async () => {
      const seen = await look();
      return seen.count > before.count + 50 || seen.failed !== null ? seen : undefined;
    });
    expect(after).toMatchObject({ failed: null, connection: before.connection, server: before.server });
  });

  test("advice counts with what creates, sleeps and wakes took on this machine", async () => {
    const { facts, breakEven } = await Sandbox.advise({
      interactive: true,
      setupSeconds: 30,
      ...connection(),
    });
    for (const name of ["createSeconds", "hibernateSeconds", "wakeSeconds", "imageBytes"] as const) {
      expect(facts[name]).toMatchObject({ measured: true, source: "template" });
      expect(facts[name].value).toBeGreaterThan(0);
    }
    expect(breakEven.sleepBeatsAwakeSeconds).toBeGreaterThanOrEqual(
      facts.hibernateSeconds.value + facts.wakeSeconds.value,
    );
  });

  test("what a hibernation will end is foretold by name: a connection to the outside, and nothing else", async () => {
    const internet = await FakeInternet.open();
    try {
      await using sandbox = await persistent({ template: "base" });
      const program = `import socket, time; s = socket.create_connection(("${FAKE_INTERNET.webServer}", 80)); time.sleep(1000)`;
      await sandbox.files.write("/tmp/connect.py", program);
      await sandbox.exec("setsid python3 /tmp/connect.py > /dev/null 2>&1 < /dev/null &");
      const { hibernate, fork, pause } = await eventually("its connection to be listed", async () => {
        const { forecast } = await sandbox.state();
        return forecast.hibernate.connections.lost.some((name) => name.includes("->")) ? forecast : undefined;
      });
      expect(hibernate.connections.lost).toEqual([
        expect.stringMatching(new RegExp(`^tcp .* -> ${FAKE_INTERNET.webServer}:80$`)),
      ]);
      expect(fork.connections.lost).toEqual(hibernate.connections.lost);
      expect(pause.connections.lost).toEqual([]);
      await sandbox.hibernate();
      const after = await sandbox.state({ wake: true });
      expect(after.connections.external.filter(({ state }) => state === "ESTAB")).toEqual([]);
    } finally {
      await internet.close();
    }
  });

  test("a fork's children are their own, and what ran in the background goes on in all", async () => {
    await using sandbox = await persistent();
    await sandbox.files.write("/tmp/counter.py", COUNTER);
    const { pid } = await sandbox.start("exec python3 /tmp/counter.py", { timeoutSeconds: 600 });
    const { children } = await sandbox.fork({ count: 2 });
    expect(children).toHaveLength(2);
    const all = [sandbox, ...children];
    const names = await Promise.all(
      all.map(async (one) => (await one.exec("hostname; cat /etc/machine-id")).stdout),
    );
    expect(new Set(names).size).toBe(3);
    for (const one of all) {
      const count = async (): Promise<number> => Number(await one.files.read("/tmp/n"));
      const before = await count();
      await eventually("the counter to go on", async () => (await count()) > before);
      expect((await one.exec(`cat /proc/${pid}/cmdline`)).stdout).toContain("counter.py");
    }
    for (const child of children) {
      expect(child.info).toMatchObject({ persistent: true, tenant: "acme", idleTimeoutSeconds: 300 });
      await child.destroy();
    }
  });

  test("a command in the foreground that a hibernation cuts is told so", async () => {
    await using sandbox = await persistent();
    const chunks: string[] = [];
    const running = sandbox.exec("echo begun; sleep 300", { onStdout: (chunk) => chunks.push(chunk) });
    await eventually("output", () => chunks.length > 0, 20_000);
    await sandbox.hibernate();
    const result = await running;
    expect(result).toMatchObject({ outcome: "lost", stdout: "begun\n" });
    expect(result.message).toContain("hibernated");
    expect((await sandbox.exec("echo again")).stdout).toBe("again\n");
  });

  test("the forecast of a hibernation comes true", async () => {
    await using sandbox = await persistent();
    await sandbox.exec("echo x > /workspace/mine; setsid python3 -m http.server 8123 >/dev/null 2>&1 &");
    await sandbox.runCode("answer = 42");
    const listens = "python3 -c \"import socket; socket.create_connection(('127.0.0.1', 8123), 5)\"";
    await eventually(
      "the server to listen",
      async () => (await sandbox.exec(listens)).exitCode === 0,
      20_000,
    );
    const state = await sandbox.state();
    const { files, memory, connections } = state.forecast.hibernate;
    expect([files.survives, memory.survives]).toEqual(["all", "all"]);
    expect([connections.survives, connections.lost]).toEqual(["all", []]);
    expect(state.files.sample.map(({ path }) => path)).toContain("/workspace/mine");
    const server = state.memory.processes.find(({ command }) => command.includes("http.server"));
    expect(server).toBeDefined();
    await sandbox.hibernate();
    await expect(sandbox.state()).rejects.toMatchObject({ code: "wrong_state" });
    const after = await sandbox.state({ wake: true });
    expect(after.generation).toBe(2);
    expect(after.memory.processes.map(({ pid }) => pid)).toContain(server?.pid);
    expect((await sandbox.exec(listens)).exitCode).toBe(0);
    expect((await sandbox.exec("cat /workspace/mine")).stdout).toBe("x\n");
    expect((await sandbox.runCode("answer")).text).toBe("42");
  });
});
