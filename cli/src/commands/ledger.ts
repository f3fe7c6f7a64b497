import { createReadStream, readFileSync, writeFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { Command } from "commander";
import type { LedgerEntry } from "@torpor/sdk";
import type { LedgerVerdict } from "@torpor/protocol";
import { clientFor } from "../api/client.ts";
import { wireForm } from "../api/wire-form.ts";
import { type CliContext, invocationOf } from "../context.ts";
import { ExitWith, UsageError } from "../failure.ts";
import { auditLines, readCheckpoint } from "../ledger/audit-lines.ts";
import { renderTable } from "../output/table.ts";
import type { Style } from "../output/style.ts";
import { writeAll } from "../terminal/write-all.ts";
import { parseNumber } from "./create.ts";

interface VerifyFlags {
  file?: string;
  checkpoint?: string;
  publicKey?: string;
}

/** `torpor ledger verify|show|export|checkpoint`. */
export function registerLedger(program: Command, context: CliContext): void {
  const ledger = program
    .command("ledger")
    .summary("who held which machine, and proof of it")
    .description(
      "The ledger records, in a chain of hashes, which tenant held which machine, address, snapshot, image and id, and who was refused.",
    );
  ledger
    .command("verify")
    .summary("check the whole ledger")
    .description(
      "Checks that no entry was changed, dropped, doubled or moved, and what the ledger is to prove: that no machine, snapshot, image or id ever served two tenants, no machine two sandboxes, and no address two at once. Reads all of it from the server (with the operator's key), or from a file without any server. Exit code 1 when something does not hold.",
    )
    .option("--file <export>", "read this file ('torpor ledger export') instead of asking a server")
    .option("--checkpoint <file>", "the ledger must hold this checkpoint ('torpor ledger checkpoint')")
    .option("--public-key <file>", "PEM of the key the checkpoint was signed with, from where you trust it")
    .action(async (flags: VerifyFlags, command: Command) => {
      const invocation = invocationOf(context, command);
      const checkpoints = checkpointOf(flags);
      const lines = flags.file === undefined ? clientFor(invocation).ledger.export() : jsonLines(flags.file);
      const verdict = await auditLines(lines, checkpoints);
      invocation.answer(wireForm(verdict), () =>
        renderVerdict(verdict, checkpoints.length, invocation.style),
      );
      if (!verdict.ok) throw new ExitWith(1);
    });
  ledger
    .command("show")
    .summary("show entries, the newest first")
    .option("--sandbox <id>", "about this sandbox only")
    .option("--tenant <tenant>", "of this tenant only")
    .option("--limit <count>", "at most so many (default: 200)", parseNumber)
    .action(async (flags: { sandbox?: string; tenant?: string; limit?: number }, command: Command) => {
      const invocation = invocationOf(context, command);
      const { sandbox: sandboxId, tenant, limit = 200 } = flags;
      if (!Number.isInteger(limit) || limit < 1)
        throw new UsageError(`--limit must be a whole number above 0; it is ${limit}`);
      const entries: LedgerEntry[] = [];
      const pageSize = Math.min(limit, 200);
      for await (const entry of clientFor(invocation).ledger.list({ sandboxId, tenant, pageSize })) {
        entries.push(entry);
        if (entries.length === limit) break;
      }
      invocation.answer(wireForm({ items: entries }), () =>
        entries.length === 0 ? "No entries." : renderEntries(entries),
      );
    });
  ledger
    .command("export")
    .summary("write the whole ledger as JSON lines")
    .description("Writes the whole ledger to standard output, for 'torpor ledger verify --file'.")
    .action(async (_flags: unknown, command: Command) => {
      const invocation = invocationOf(context, command);
      for await (const line of clientFor(invocation).ledger.export())
        await writeAll(context.stdout, Buffer.from(`${JSON.stringify(line)}\n`));
    });
  ledger
    .command("checkpoint")
    .summary("get a signed statement of how far the ledger goes")
    .description(
      "Writes the checkpoint to standard output. Keep it, and the public key, where nobody who can change the ledger can change them: then history before it cannot be rewritten unseen.",
    )
    .option("--public-key-out <file>", "write the public key there, PEM")
    .action(async (flags: { publicKeyOut?: string }, command: Command) => {
      const invocation = invocationOf(context, command);
      const checkpoint = await clientFor(invocation).ledger.checkpoint();
      if (flags.publicKeyOut !== undefined) writeFileSync(flags.publicKeyOut, checkpoint.public_key);
      invocation.answer(checkpoint, () => JSON.stringify(checkpoint, null, 2));
    });
}

function checkpointOf({ checkpoint, publicKey }: VerifyFlags): ReturnType<typeof readCheckpoint>[] {
  if (checkpoint === undefined && publicKey === undefined) return [];
  if (checkpoint === undefined || publicKey === undefined)
    throw new UsageError(
      "--checkpoint and --public-key go together: a signature is checked with a key that you trust",
    );
  return [readCheckpoint(readText(checkpoint), readText(publicKey))];
}

function readText(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch (error) {
    throw new UsageError(`${path} cannot be read: ${error instanceof Error ? error.message : String(error)}`);
  }
}

async function* jsonLines(path: string): AsyncGenerator<unknown, void, undefined> {
  const input = createReadStream(path);
  const failed = new Promise<never>((_resolve, reject) =>
    input.once("error", (error) => reject(new UsageError(`${path} cannot be read: ${error.message}`))),
  );
  const opened = new Promise<void>((resolve) => input.once("open", () => resolve()));
  await Promise.race([opened, failed]);
  failed.catch(() => {}); // what breaks later ends the lines, which then do not reach the head
  for await (const line of createInterface({ input, crlfDelay: Number.POSITIVE_INFINITY })) {
    if (line.trim() === "") continue;
    try {
      yield JSON.parse(line);
    } catch {
      yield undefined; // no entry: the audit finds what is missing
    }
  }
}

function renderVerdict(verdict: LedgerVerdict, checkpoints: number, style: Style): string {
  const { bound, held, findings, moreFindings } = verdict;
  const count = (number: number, one: string, many = `${one}s`): string =>
    `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
  const facts = [
    `${count(verdict.entries, "entry", "entries")}: ${count(verdict.bindings, "binding")}, ${count(verdict.releases, "release")}, ${count(verdict.denials, "refused request")}`,
    `${count(verdict.tenants, "tenant")}, ${count(bound.sandboxes, "sandbox", "sandboxes")}, ${count(bound.machines, "machine")} (${bound.poolMembers.toLocaleString("en")} from the pool), ${count(bound.snapshots, "snapshot")}, ${count(bound.images, "hibernation image")}`,
    `held now: ${count(held.sandboxes, "sandbox", "sandboxes")}, ${count(held.machines, "machine")}, ${count(held.addresses, "address", "addresses")}, ${count(held.snapshots, "snapshot")}, ${count(held.images, "image")}`,
    `head ${verdict.entries === 0 ? "(empty)" : verdict.lastHash}`,
  ];
  if (!verdict.ok) {
    if (moreFindings > 0) findings.push({ seq: 0, message: `and ${moreFindings} more` });
    const lines = findings.map(({ message }) => `  ${message}`);
    return [style.red("The ledger does not hold:"), ...lines, ...facts].join("\n");
  }
  const proof = checkpoints === 0 ? "" : ", and the checkpoint is in it";
  return [
    style.green(`The ledger holds: the chain is whole${proof}.`),
    "No machine, snapshot, image or id ever served two tenants; no machine two sandboxes; no address two at once.",
    ...facts,
  ].join("\n");
}

function renderEntries(entries: readonly LedgerEntry[]): string {
  return renderTable(
    ["SEQ", "AT", "ACTION", "TENANT", "SANDBOX", "GEN", "WHAT", "BY", "WHY"],
    entries.map((entry) => [
      String(entry.seq),
      entry.at.toISOString().replace("T", " ").slice(0, 19),
      entry.action,
      entry.tenant ?? "-",
      entry.sandboxId ?? "-",
      entry.generation === null ? "-" : String(entry.generation),
      whatOf(entry),
      entry.actor,
      entry.reason,
    ]),
  );
}

function whatOf({ action, resources, route, count }: LedgerEntry): string {
  const things = resources.map(
    ({ kind, id, source }) => `${kind} ${id}${source === undefined ? "" : ` (${source})`}`,
  );
  if (action === "deny")
    things.unshift(`${route ?? ""}${count === null || count === 1 ? "" : ` ${count} times`}`);
  return things.join(", ");
}
