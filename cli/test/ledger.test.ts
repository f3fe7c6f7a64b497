import { createHash, generateKeyPairSync, sign } from "node:crypto";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { checkpointText, type LedgerEntry, type LedgerHead, type LedgerLine } from "@torpor/protocol";
import { capturedCli, type CapturedRun } from "./captured-cli.ts";

const LEDGER = "ab".repeat(32);
const { privateKey, publicKey } = generateKeyPairSync("ed25519");
const PEM = publicKey.export({ type: "spki", format: "pem" }) as string;

const sha256 = (text: string): string => createHash("sha256").update(text).digest("hex");

/** A chain of entries that each bind a sandbox, but for what a test says. */
function chain(count: number): { head: LedgerHead; lines: LedgerLine[] } {
  const lines: LedgerLine[] = [];
  for (let seq = 1; seq <= count; seq += 1) {
    const id = `s${seq}`;
    const owner = { account: "default", tenant: `tenant-${seq % 3}`, sandbox_id: id };
    const entry = JSON.stringify({
      v: 1,
      seq,
      prev: lines.at(-1)?.hash ?? LEDGER,
      at: "2026-01-01T00:00:00.000Z",
      action: "bind",
      ...owner,
      generation: 1,
      host: "h",
      actor: "key_1",
      reason: "create",
      resources: [{ kind: "sandbox", id }],
    } satisfies LedgerEntry);
    lines.push({ seq, hash: sha256(entry), ...owner, entry });
  }
  return { head: { ledger: LEDGER, seq: count, hash: lines.at(-1)?.hash ?? LEDGER }, lines };
}

describe("torpor ledger verify, without a server", () => {
  let directory: string;
  beforeEach(() => {
    directory = mkdtempSync(join(tmpdir(), "torpor-cli-ledger-"));
    writeFileSync(join(directory, "k.pem"), PEM);
  });
  afterEach(() => rmSync(directory, { recursive: true, force: true }));

  async function verify({ head, lines }: ReturnType<typeof chain>, ...args: string[]): Promise<CapturedRun> {
    const file = join(directory, "export.ndjson");
    writeFileSync(file, [head, ...lines].map((line) => `${JSON.stringify(line)}\n`).join(""));
    return await capturedCli(["ledger", "verify", "--file", file, ...args]);
  }

  function checkpoint(head: LedgerHead, publicKeyFile = "k.pem"): string[] {
    const stated = { ...head, at: "2026-01-02T00:00:00.000Z" };
    const signature = sign(null, Buffer.from(checkpointText(stated)), privateKey).toString("base64");
    const file = join(directory, "cp.json");
    writeFileSync(file, JSON.stringify({ ...stated, public_key: PEM, signature }));
    return ["--checkpoint", file, "--public-key", join(directory, publicKeyFile)];
  }

  it("says that a whole one holds, and what it proves", async () => {
    const { exitCode, stdout } = await verify(chain(5));
    expect(exitCode).toBe(0);
    expect(stdout).toContain("The ledger holds: the chain is whole.");
    expect(stdout).toContain("5 entries: 5 bindings, 0 releases");
    expect((await verify(chain(0))).exitCode).toBe(0);
  });

  it("names the entry that was changed, and ends with 1", async () => {
    const whole = chain(5);
    const [, second] = whole.lines;
    if (second === undefined) throw new Error("no second");
    second.entry = second.entry.replace("tenant-2", "tenant-1");
    const { exitCode, stdout } = await verify(whole);
    expect(exitCode).toBe(1);
    expect(stdout).toContain("entry 2 was changed");
    const json = JSON.parse((await verify(whole, "--json")).stdout) as { ok: boolean; findings: unknown[] };
    expect(json.ok).toBe(false);
    expect(json.findings.length).toBeGreaterThan(0);
  });

  it("finds by a checkpoint what was rewritten or cut off to its end", async () => {
    const whole = chain(5);
    expect((await verify(whole, ...checkpoint(whole.head))).exitCode).toBe(0);
    const later = chain(9);
    expect((await verify(later, ...checkpoint(chain(5).head))).exitCode).toBe(0);
    const cut = await verify(chain(3), ...checkpoint(whole.head));
    expect(cut).toMatchObject({ exitCode: 1, stdout: expect.stringContaining("the end was cut off") });
    const rewritten = await verify(whole, ...checkpoint({ ...whole.head, hash: sha256("another") }));
    expect(rewritten).toMatchObject({
      exitCode: 1,
      stdout: expect.stringContaining("history was rewritten"),
    });
    const other = await verify(whole, ...checkpoint({ ...whole.head, ledger: "cd".repeat(32) }));
    expect(other).toMatchObject({ exitCode: 1, stdout: expect.stringContaining("the checkpoint is of") });
  });

  it("relies on no checkpoint that was not signed with the given key, and on no file that is none", async () => {
    const whole = chain(2);
    const other = generateKeyPairSync("ed25519").publicKey.export({ type: "spki", format: "pem" });
    writeFileSync(join(directory, "other.pem"), other);
    const unsigned = await verify(whole, ...checkpoint(whole.head, "other.pem"));
    expect(unsigned).toMatchObject({
      exitCode: 2,
      stderr: expect.stringContaining("not signed with this key"),
    });
    expect((await verify(whole, ...checkpoint(whole.head, "cp.json"))).exitCode).toBe(2);
    expect((await verify(whole, "--checkpoint", join(directory, "cp.json"))).exitCode).toBe(2);
    for (const file of ["k.pem", "missing"]) {
      const run = await capturedCli(["ledger", "verify", "--file", join(directory, file)]);
      expect(run.exitCode).toBe(2);
    }
  });
});
