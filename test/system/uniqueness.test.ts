import {
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readlinkSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import type { Machine } from "@torpor/protocol";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { run } from "@torpor/base";
import { Instance } from "../src/instance.ts";
import { expectNoLeaks, lookAtMachine, type MachineState } from "../src/leak-check.ts";
import { templateCacheDir } from "../src/repository.ts";
import { useInstance } from "../src/use-instance.ts";

const COPIES = 10;

/** What two clones of one snapshot would share if nobody took care. */
const SECRETS: Record<string, string> = {
  hostname: "hostname",
  "the file /etc/hostname": "cat /etc/hostname",
  "machine-id": "cat /etc/machine-id",
  urandom: "head -c 16 /dev/urandom | od -An -tx1",
  "the shell's RANDOM": "echo $RANDOM $RANDOM $RANDOM",
  "another shell's RANDOM": 'bash -c "echo \\$RANDOM \\$RANDOM \\$RANDOM"',
  "Python's random": "python3 -c 'import random; print(random.random(), random.getrandbits(64))'",
  "a UUID": "python3 -c 'import uuid; print(uuid.uuid4(), uuid.uuid1().time)'",
  "OpenSSL's randomness": "python3 -c 'import ssl; print(ssl.RAND_bytes(16).hex())'",
  "Node's randomness": "node -e 'console.log(Math.random(), crypto.randomUUID())'",
  "a temporary file's name": "mktemp -u",
};

describe("clones of one golden snapshot", () => {
  // Half of them from the pool, prepared ahead, half restored on the spot.
  const torpor = useInstance({ pool: 5 });
  let machines: Machine[];

  beforeAll(async () => {
    machines = await Promise.all(Array.from({ length: COPIES }, () => torpor().host.create()));
  });

  test.each(Object.entries(SECRETS))("share no %s", async (_what, command) => {
    const answers = await Promise.all(machines.map(({ id }) => torpor().host.output(id, command)));
    expect(answers.every((answer) => answer.trim() !== "")).toBe(true);
    expect(new Set(answers).size).toBe(COPIES);
  });

  test("give no two commands of one clone the same random numbers either", async () => {
    const { id } = machines[0] ?? { id: "" };
    const answers = await Promise.all(
      Array.from({ length: 8 }, () => torpor().host.output(id, "echo $RANDOM $RANDOM $RANDOM")),
    );
    expect(new Set(answers).size).toBe(8);
  });

  test("attest completely what was done to make them different", () => {
    for (const { attestation } of machines) {
      expect(attestation).toMatchObject({ generation: 1, complete: true });
      expect(attestation?.steps.filter(({ outcome }) => outcome === "failed")).toEqual([]);
      expect(attestation?.steps.map(({ name }) => name)).toEqual(
        expect.arrayContaining(["entropy", "hostname", "machine_id"]),
      );
    }
  });

  test("come from the pool and from the image alike", () => {
    expect(new Set(machines.map(({ source }) => source)).size).toBeGreaterThan(1);
  });

  test("know the time", async () => {
    const seconds = Number(await torpor().host.output(machines[0]?.id ?? "", "date +%s"));
    expect(Math.abs(seconds - Date.now() / 1000)).toBeLessThan(5);
  });
});

describe("a template whose restore hook fails", () => {
  let templatesDir: string;
  let instance: Instance;
  let before: MachineState;

  beforeAll(async () => {
    before = await lookAtMachine("/nonexistent");
    templatesDir = mkdtempSync(join(tmpdir(), "torpor-test-templates-"));
    const source = templateCacheDir();
    const hash = basename(readlinkSync(join(source, "by-name", "base")));
    mkdirSync(join(templatesDir, "by-name"));
    mkdirSync(join(templatesDir, hash));
    await run(
      [
        "cp",
        "-a",
        "--reflink=auto",
        join(source, hash, "rootfs"),
        join(source, hash, "manifest.json"),
        join(templatesDir, hash),
      ],
      { timeoutMs: 120_000 },
    );
    symlinkSync(join("..", hash), join(templatesDir, "by-name", "base"));
    const hooks = join(templatesDir, hash, "rootfs", "etc", "torpor", "on-restore.d");
    mkdirSync(hooks, { recursive: true });
    writeFileSync(join(hooks, "50-broken"), "#!/bin/sh\necho the reseed failed >&2\nexit 3\n", {
      mode: 0o755,
    });
    instance = await Instance.start({ templatesDir });
    await instance.host.buildTemplate("base"); // the tree is there: packs it, hook and all, and bakes it
  });
  afterAll(async () => {
    try {
      await instance?.stop();
      await expectNoLeaks(instance.stateDir, before);
    } finally {
      await instance?.remove();
      rmSync(templatesDir, { recursive: true, force: true });
    }
  });

  test("fails the create, says which step failed, and leaves no machine", async () => {
    const answer = await instance.host.tryCreate();
    expect(answer.status).toBe(503);
    expect(answer.json).toMatchObject({
      error: { code: "guest_unavailable", details: { attestation: { complete: false } } },
    });
    expect(answer.body.toString("utf8")).toContain("50-broken");
    expect(readdirSync(join(instance.stateDir, "host", "machines"))).toEqual([]);
    expect(await instance.host.list()).toEqual([]);
    expect((await instance.host.events(0)).events).toMatchObject([
      { type: "ended", machine: { state: "ended", reason: "create_failed" } },
    ]);
  });
});
