import { createHash, randomBytes } from "node:crypto";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { run } from "@torpor/base";
import {
  CommandError,
  InvalidRequestError,
  NotFoundError,
  Sandbox,
  type SandboxCreateOptions,
  SandboxEndedError,
  TimeoutError,
} from "@torpor/sdk";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { eventually } from "../src/eventually.ts";
import { repositoryRoot } from "../src/repository.ts";
import { useInstance } from "../src/use-instance.ts";

const MIB = 1024 * 1024;
const sha256 = (bytes: Uint8Array): string => createHash("sha256").update(bytes).digest("hex");

describe("a program with the SDK", () => {
  const torpor = useInstance({ server: true, pool: 3, shells: 1 });
  let sandbox: Sandbox;

  function connection(): { url: string; apiKey: string } {
    return { url: torpor().url, apiKey: torpor().apiKey };
  }
  function create(options: SandboxCreateOptions = {}): Promise<Sandbox> {
    return Sandbox.create({ template: "base", ...connection(), ...options });
  }

  beforeAll(async () => {
    sandbox = await create({
      ttlSeconds: 3600,
      metadata: { purpose: "tests" },
      env: { GREETING: "good morning" },
    });
  });
  afterAll(async () => {
    await sandbox?.destroy();
  });

  test("runs the lines of the README as they are written", async () => {
    const lines = /```ts\n([\s\S]*?)```/.exec(readFileSync(join(repositoryRoot, "README.md"), "utf8"))?.[1];
    expect(lines).toContain("Sandbox.create");
    const directory = join(repositoryRoot, ".torpor", `readme-${process.pid}`);
    mkdirSync(directory, { recursive: true });
    try {
      const program = join(directory, "program.mts");
      writeFileSync(program, lines ?? "");
      const { url, apiKey } = connection();
      const { stdout } = await run([process.execPath, "--conditions=source", "--import", "tsx", program], {
        cwd: repositoryRoot,
        env: { ...process.env, TORPOR_URL: url, TORPOR_API_KEY: apiKey },
      });
      expect(stdout).toBe("hello from linux\n 0\n");
    } finally {
      rmSync(directory, { recursive: true });
    }
    const left: string[] = [];
    for await (const other of Sandbox.list({ state: "running", ...connection() })) left.push(other.id);
    expect(left).toEqual([sandbox.id]);
  });

  test("creates, finds, lists and destroys, and reads the record of what has ended", async () => {
    const made = await create({ name: "short-lived", metadata: { purpose: "one" } });
    expect(made.info).toMatchObject({
      state: "running",
      template: "base",
      name: "short-lived",
      reason: null,
      generation: 1,
      attestation: { complete: true },
    });
    expect((await Sandbox.get(made.id, connection())).id).toBe(made.id);
    const found: string[] = [];
    for await (const { id } of Sandbox.list({ metadata: { purpose: "one" }, ...connection() }))
      found.push(id);
    expect(found).toEqual([made.id]);
    expect(await made.destroy()).toBe(true);
    expect(await made.destroy()).toBe(false);
    const ended = await Sandbox.get(made.id, connection());
    expect(ended.info).toMatchObject({ state: "destroyed", reason: "user" });
    await expect(ended.exec("true")).rejects.toMatchObject({
      name: "SandboxEndedError",
      reason: "user",
      status: 410,
    });
    await expect(Sandbox.get(`s${"a".repeat(25)}`, connection())).rejects.toThrow(NotFoundError);
  });

  test("destroys what an `await using` block leaves, also when the block throws", async () => {
    let id = "";
    await expect(
      (async () => {
        await using inside = await create();
        id = inside.id;
        throw new Error("from the block");
      })(),
    ).rejects.toThrow("from the block");
    expect((await Sandbox.get(id, connection())).info.state).toBe("destroyed");
  });

  test("execs: streams apart, exit codes as they are, environment, directory, user and input", async () => {
    const result = await sandbox.exec(
      'echo "$GREETING, $NAME"; echo to stderr >&2; pwd; id -un; cat; exit 7',
      { env: { NAME: "world" }, cwd: "/tmp", stdin: "from stdin" },
    );
    expect(result).toMatchObject({
      outcome: "exited",
      exitCode: 7,
      signal: null,
      stdout: "good morning, world\n/tmp\nuser\nfrom stdin",
      stderr: "to stderr\n",
      truncated: false,
    });
    expect(await sandbox.exec(["printf", "%s|", "a b", "$HOME", "*"])).toMatchObject({
      stdout: "a b|$HOME|*|",
      exitCode: 0,
    });
    expect((await sandbox.exec("id -un", { user: "root" })).stdout).toBe("root\n");
    await expect(sandbox.exec("exit 3", { check: true })).rejects.toThrow(CommandError);
  });

  test("is told the truth of how a command ended", async () => {
    expect(await sandbox.exec("kill -SEGV $$")).toMatchObject({
      outcome: "signalled",
      signal: "SIGSEGV",
      exitCode: null,
    });
    const late = await sandbox.exec("echo early; trap '' TERM; sleep 60 & sleep 60; echo late", {
      timeoutSeconds: 0.5,
    });
    expect(late).toMatchObject({ outcome: "timed_out", stdout: "early\n" });
    await eventually(
      "the whole process group to be gone",
      async () => (await sandbox.exec("pgrep -c -x sleep")).stdout === "0\n",
    );
    const hungry = await create({ memoryMb: 256 });
    const { outcome, message } = await hungry.exec(["python3", "-c", "x = bytearray(2_000_000_000)"]);
    expect([outcome, message]).toEqual(["oom", expect.stringContaining("memory_mb")]);
    expect(await hungry.exec("exit 1")).toMatchObject({ outcome: "exited", exitCode: 1 });
    await hungry.destroy();
    const much = await sandbox.exec("head -c 100000 /dev/zero", { maxOutputBytes: 1000, bytes: true });
    expect(much).toMatchObject({ truncated: true, stdoutBytes: 100_000 });
    expect(much.stdout).toHaveLength(1000);
  });

  test("gets output byte for byte, as bytes or as text that is never cut in a character", async () => {
    const bytes = await sandbox.exec(
      "python3 -c 'import sys; sys.stdout.buffer.write(bytes(range(256)) * 300)'",
      { bytes: true },
    );
    expect(sha256(bytes.stdout)).toBe(
      sha256(Buffer.from(Array.from({ length: 256 * 300 }, (_, index) => index % 256))),
    );
    const text = await sandbox.exec(`python3 -c 'import sys
for i in range(200): sys.stdout.buffer.write("äöü€𝄞".encode()[:7]); sys.stdout.buffer.flush(); sys.stdout.buffer.write("äöü€𝄞".encode()[7:])'`);
    expect(text.stdout).toBe("äöü€𝄞".repeat(200));
  });

  test("streams output as it comes, and ends a command it no longer wants", async () => {
    const chunks: string[] = [];
    const stream = sandbox.execStream("for i in 1 2 3; do echo line $i; sleep 0.2; done");
    const times: number[] = [];
    for await (const event of stream) {
      if (event.type !== "stdout") continue;
      chunks.push(event.data);
      times.push(performance.now());
    }
    expect(chunks.join("")).toBe("line 1\nline 2\nline 3\n");
    expect((times.at(-1) ?? 0) - (times[0] ?? 0)).toBeGreaterThan(250);
    expect(await stream.result).toMatchObject({ outcome: "exited", exitCode: 0 });
    const abort = new AbortController();
    const unwanted = sandbox.exec("sleep 1234", { signal: abort.signal });
    await eventually("it to run", async () => (await sandbox.exec("pgrep -f 'sleep 1234'")).exitCode === 0);
    abort.abort(new Error("changed my mind"));
    await expect(unwanted).rejects.toThrow("changed my mind");
    await eventually(
      "it to be gone",
      async () => (await sandbox.exec(["pgrep", "-x", "sleep"])).exitCode === 1,
    );
  });

  test("leaves a command running, finds it again with all it said, and ends it", async () => {
    const command = await sandbox.start("echo begun; sleep 0.3; echo went on; sleep 500");
    await eventually("both lines", async () => {
      let said = "";
      const attached = sandbox.attach(command.execId);
      attached.result.catch(() => {});
      for await (const event of attached) {
        if (event.type === "stdout") said += event.data;
        if (said.endsWith("on\n")) break;
      }
      return said === "begun\nwent on\n";
    });
    expect((await sandbox.processes()).map(({ pid }) => pid)).toContain(command.pid);
    expect(await sandbox.kill(command.execId)).toBe(true);
    await eventually(
      "it to be gone",
      async () => !(await sandbox.processes()).some(({ pid }) => pid === command.pid),
    );
    expect(await sandbox.kill(command.execId)).toBe(false);
  });

  test("runs 20 commands at once, each with its own output", async () => {
    const results = await Promise.all(
      Array.from({ length: 20 }, (_, index) =>
        sandbox.exec(`echo ${index}; echo error ${index} >&2; exit ${index}`),
      ),
    );
    expect(results.map(({ stdout, stderr, exitCode }) => [stdout, stderr, exitCode])).toEqual(
      Array.from({ length: 20 }, (_, index) => [`${index}\n`, `error ${index}\n`, index]),
    );
  });

  test("handles files: text, bytes, directories, moves, and knows what is not there", async () => {
    const { files } = sandbox;
    await files.write("/workspace/deep/er/hello.txt", "grüß dich\n");
    expect(await files.read("/workspace/deep/er/hello.txt")).toBe("grüß dich\n");
    expect(await files.read("/workspace/deep/er/hello.txt", { offset: 2, length: 3 })).toBe(
      Buffer.from("grüß").subarray(2, 5).toString(),
    );
    expect(
      (await sandbox.exec("cat deep/er/hello.txt; stat -c %U deep/er/hello.txt", { cwd: "/workspace" }))
        .stdout,
    ).toBe("grüß dich\nuser\n");
    await files.write("~/run.sh", "#!/bin/sh\necho it ran\n", { mode: 0o755 });
    expect((await sandbox.exec("~/run.sh")).stdout).toBe("it ran\n");
    await files.mkdir("/workspace/deep/other");
    await files.move("/workspace/deep/er/hello.txt", "/workspace/deep/other/moved.txt");
    expect((await files.list("/workspace/deep", { depth: 3 })).map(({ path }) => path)).toEqual([
      "/workspace/deep/er",
      "/workspace/deep/other",
      "/workspace/deep/other/moved.txt",
    ]);
    expect(await files.stat("/workspace/deep/other/moved.txt")).toMatchObject({
      type: "file",
      sizeBytes: 12,
    });
    expect([
      await files.exists("/workspace/deep/er/hello.txt"),
      await files.remove("/workspace/deep"),
      await files.remove("/workspace/deep"),
    ]).toEqual([false, true, false]);
    await expect(files.read("/workspace/deep/other/moved.txt")).rejects.toMatchObject({
      name: "NotFoundError",
      code: "file_not_found",
    });
  });

  test("carries 64 MiB up and down without changing a byte", async () => {
    const content = randomBytes(64 * MIB);
    await sandbox.files.write("/workspace/big", content);
    expect(
      (await sandbox.exec("sha256sum /workspace/big | cut -d' ' -f1; stat -c %s /workspace/big")).stdout,
    ).toBe(`${sha256(content)}\n${64 * MIB}\n`);
    const back = createHash("sha256");
    let bytes = 0;
    for await (const chunk of await sandbox.files.readStream("/workspace/big")) {
      back.update(chunk);
      bytes += chunk.length;
    }
    expect([back.digest("hex"), bytes]).toEqual([sha256(content), 64 * MIB]);
    await sandbox.files.remove("/workspace/big");
  });

  test("leaves the old content whole when a write is broken off", async () => {
    await sandbox.files.write("/workspace/dear/precious", "the old content");
    const broken = new ReadableStream<Uint8Array>({
      start: (controller) => controller.enqueue(randomBytes(MIB)),
      pull: (controller) => controller.error(new Error("the source broke")),
    });
    await expect(sandbox.files.write("/workspace/dear/precious", broken)).rejects.toThrow("the source broke");
    expect(await sandbox.files.read("/workspace/dear/precious")).toBe("the old content");
    await eventually(
      "no unfinished file to be left",
      async () => (await sandbox.files.list("/workspace/dear")).length === 1,
    );
  });

  test("sees changes of a directory from the moment it watches", async () => {
    await sandbox.files.mkdir("/workspace/watched");
    const watcher = await sandbox.files.watch("/workspace/watched");
    await sandbox.exec("echo 1 > /workspace/watched/new.txt");
    for await (const change of watcher) {
      expect(change).toEqual({ type: "create", name: "new.txt" });
      break;
    }
  });

  test("ends at its TTL, and not before a TTL that was set longer", async () => {
    const [short, longer] = await Promise.all([create({ ttlSeconds: 2 }), create({ ttlSeconds: 2 })]);
    await longer.setTtl(600);
    await eventually("the end", async () => (await short.refresh()).state === "destroyed");
    expect(short.info).toMatchObject({ reason: "ttl_expired" });
    await expect(short.exec("true")).rejects.toThrow(SandboxEndedError);
    expect((await longer.exec("echo alive")).stdout).toBe("alive\n");
    expect(await short.destroy()).toBe(false);
    await longer.destroy();
  });

  test("has no network when it asked for none", async () => {
    await using offline = await create({ network: "none" });
    expect(
      (await offline.exec("python3 -c 'import socket; socket.create_connection((\"198.51.100.10\", 80), 2)'"))
        .stderr,
    ).toMatch(/refused|unreachable|timed out/i);
  });

  test("gets 32 sandboxes asked for at once, all usable, none failed", async () => {
    const made = await Promise.all(Array.from({ length: 32 }, () => create({ memoryMb: 256 })));
    try {
      expect(new Set(made.map(({ id }) => id)).size).toBe(32);
      const said = await Promise.all(made.map((one) => one.exec("hostname")));
      expect(said.map(({ stdout }) => stdout.trim())).toEqual(made.map(({ id }) => id));
    } finally {
      await Promise.all(made.map((one) => one.destroy()));
    }
  });

  test("undoes a create that it no longer wants", async () => {
    const abort = new AbortController();
    const metadata = { purpose: `aborted-${Date.now()}` };
    const unwanted = create({ signal: abort.signal, metadata, diskMb: 300 }); // another disk than the pool's: it takes its time
    setTimeout(() => abort.abort(new Error("changed my mind")), 100);
    await expect(unwanted).rejects.toThrow("changed my mind");
    await eventually("no such sandbox to live", async () => {
      for await (const { info } of Sandbox.list({ metadata, ...connection() }))
        if (info.state !== "destroyed" && info.state !== "failed") return false;
      return (await torpor().host.list()).length === 1;
    });
  });

  test("keeps sandbox and key safe from a wrong request", async () => {
    await expect(Sandbox.create({ ...connection(), template: "no-such-template" })).rejects.toMatchObject({
      name: "NotFoundError",
      code: "template_not_found",
    });
    await expect(create({ ttlSeconds: -1 })).rejects.toThrow(InvalidRequestError);
    await expect(create({ cpu: 1000 })).rejects.toThrow(/cpu/);
    await expect(Sandbox.create({ url: torpor().url, apiKey: "tp_wrong" })).rejects.toMatchObject({
      name: "AuthenticationError",
      status: 401,
    });
    await expect(sandbox.exec("sleep 5", { timeoutMs: 200 })).rejects.toThrow(TimeoutError);
  });
});
