import { type ChildProcess, spawn } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import { once } from "node:events";
import { setTimeout as delay } from "node:timers/promises";
import { Sandbox } from "@torpor/sdk";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { repositoryRoot } from "../src/repository.ts";
import { useInstance } from "../src/use-instance.ts";

const MIB = 1024 * 1024;
const FILE_BYTES = 50 * 1000 * 1000;
const sha256 = (...chunks: Uint8Array[]): string => {
  const hash = createHash("sha256");
  for (const chunk of chunks) hash.update(chunk);
  return hash.digest("hex");
};

describe("output and input of any length pass whole", { timeout: 120_000 }, () => {
  const torpor = useInstance({ server: true, pool: 2, shells: 1 });
  let sandbox: Sandbox;
  let expected: string;

  beforeAll(async () => {
    sandbox = await Sandbox.create({ template: "base", url: torpor().url, apiKey: torpor().apiKey });
    const { stdout } = await sandbox.exec(
      `head -c ${FILE_BYTES} /dev/urandom > /workspace/big && sha256sum < /workspace/big`,
    );
    expected = stdout.slice(0, 64);
  });
  afterAll(async () => {
    await sandbox?.destroy();
  });

  const cli = (...args: string[]): ChildProcess =>
    spawn(process.execPath, ["--conditions=source", "--import", "tsx", "cli/src/main.ts", ...args], {
      cwd: repositoryRoot,
      env: { ...process.env, TORPOR_URL: torpor().url, TORPOR_API_KEY: torpor().apiKey },
      stdio: "pipe",
    });
  const text = async (stream: AsyncIterable<Buffer> | null): Promise<string> => {
    let all = "";
    for await (const chunk of stream ?? []) all += String(chunk);
    return all;
  };
  const hashOf = async (child: ChildProcess): Promise<object> => {
    const said = text(child.stderr);
    const ended = once(child, "close");
    const hash = createHash("sha256");
    for await (const chunk of child.stdout ?? []) hash.update(chunk as Buffer);
    const [exitCode] = await ended;
    return { exitCode: exitCode as unknown, hash: hash.digest("hex"), said: await said };
  };

  test("of torpor exec, byte for byte", async () => {
    expect(await hashOf(cli("exec", sandbox.id, "--", "cat", "/workspace/big"))).toEqual({
      exitCode: 0,
      hash: expected,
      said: "",
    });
  });

  test("of torpor run", async () => {
    const child = cli("run", "-t", "base", "--", "head", "-c", String(12 * MIB), "/dev/zero");
    expect(await hashOf(child)).toEqual({ exitCode: 0, hash: sha256(Buffer.alloc(12 * MIB)), said: "" });
  });

  test("of torpor exec to a reader that stops for longer than a part of the stream may take", async () => {
    const child = cli("exec", sandbox.id, "--", "cat", "/workspace/big");
    const first = (await once(child.stdout as NodeJS.ReadableStream, "readable")) as unknown;
    expect(first).toBeDefined();
    await delay(6_500); // the guest gives a part's reader 5 s to ask for the next
    expect(await hashOf(child)).toEqual({ exitCode: 0, hash: expected, said: "" });
  });

  test("ends a command whose reader has gone", async () => {
    const child = cli("exec", sandbox.id, "--", "yes", "nobody reads this");
    await once(child.stdout as NodeJS.ReadableStream, "data");
    child.stdout?.destroy();
    await once(child, "close");
    await expect
      .poll(async () => (await sandbox.processes()).filter(({ cmd }) => cmd === "yes"), { timeout: 10_000 })
      .toEqual([]);
  });

  test("of a program with the SDK, streamed and by callbacks; what is kept is bounded and says so", async () => {
    const chunks: Uint8Array[] = [];
    for await (const event of sandbox.execStream(["cat", "/workspace/big"], { bytes: true }))
      if (event.type === "stdout") chunks.push(event.data);
    expect(sha256(...chunks)).toBe(expected);
    const pieces: Uint8Array[] = [];
    const result = await sandbox.exec("cat /workspace/big >&2", {
      bytes: true,
      maxOutputBytes: MIB,
      onStderr: (piece) => pieces.push(piece),
    });
    expect(sha256(...pieces)).toBe(expected);
    expect(result).toMatchObject({ truncated: true, stderrBytes: FILE_BYTES, exitCode: 0 });
    expect(result.stderr.byteLength).toBe(MIB);
  });

  test("of a command in the background, whose newest output can be followed", async () => {
    const command = await sandbox.start("head -c 9000000 /dev/zero; echo the end");
    let tail = "";
    await using output = command.attach();
    for await (const event of output)
      if (event.type === "stdout") tail = (tail + event.data).slice(-20);
      else if (event.type === "end") expect(event.stdoutBytes).toBe(9_000_008);
    expect(tail.endsWith("\0the end\n")).toBe(true);
  });

  test("as input of torpor exec -i, as it comes", async () => {
    const child = cli("exec", "-i", sandbox.id, "--", "tee", "/workspace/copy");
    const input = randomBytes(20 * MIB);
    child.stdin?.write("first");
    const [echo] = (await once(child.stdout as NodeJS.ReadableStream, "data")) as [Buffer];
    expect(echo.toString()).toBe("first"); // before the end of the input
    child.stdin?.end(input);
    expect(await hashOf(child)).toEqual({ exitCode: 0, hash: sha256(input), said: "" });
  });

  test("and an archive unpacks from it", async () => {
    const child = cli("exec", "-i", sandbox.id, "--", "tar", "-x", "-C", "/workspace");
    const tar = spawn("tar", ["-c", "-C", repositoryRoot, "docs"], { stdio: ["ignore", "pipe", "inherit"] });
    tar.stdout.pipe(child.stdin as NodeJS.WritableStream);
    expect(await hashOf(child)).toMatchObject({ exitCode: 0, said: "" });
    expect((await sandbox.exec("cat /workspace/docs/ARCHITECTURE.md")).stdout).toContain("# Architecture");
  });

  test("as input that is sent again under its key: what the command has of it already does not come twice", async () => {
    const command = await sandbox.start("sleep 1; cat > /workspace/fed", { keepStdinOpen: true });
    const input = randomBytes(2 * MIB);
    const path = `/v1/sandboxes/${sandbox.id}/processes/${command.execId}/stdin?close=true`;
    const send = (signal: AbortSignal | null): Promise<Response> =>
      fetch(`${torpor().url}${path}`, {
        method: "POST",
        headers: { authorization: `Bearer ${torpor().apiKey}`, "idempotency-key": "fed" },
        body: input,
        signal,
      });
    // The pipe takes the first pieces and a part of one: then its sender leaves.
    await expect(send(AbortSignal.timeout(400))).rejects.toThrow();
    expect((await send(null)).status).toBe(200);
    await command.wait();
    const { stdout } = await sandbox.exec("sha256sum < /workspace/fed");
    expect(stdout.slice(0, 64)).toBe(sha256(input));
    expect((await send(null)).status).toBe(200); // it has been done, also when the command is over
  });

  test("and input is left alone when the command does not want it", async () => {
    const child = cli("exec", "-i", sandbox.id, "--", "sh", "-c", "echo done; exit 3");
    // Its input stays open: it ends all the same.
    expect(await hashOf(child)).toEqual({ exitCode: 3, hash: sha256(Buffer.from("done\n")), said: "" });
  });
});
