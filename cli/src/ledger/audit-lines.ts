import { createHash, createPublicKey, verify } from "node:crypto";
import {
  checkpointText,
  LedgerAudit,
  type LedgerCheckpoint,
  ledgerCheckpointSchema,
  type LedgerHead,
  ledgerHeadSchema,
  ledgerLineSchema,
  type LedgerVerdict,
} from "@torpor/protocol";
import { UsageError } from "../failure.ts";

/**
 * Audits an export: its first line says how far it goes, the others are its entries. Memory grows with what was ever bound,
 * some 300 bytes each, and not with the entries' size.
 *
 * @throws UsageError when it is no export of a ledger at all
 */
export async function auditLines(
  lines: AsyncIterable<unknown>,
  checkpoints: readonly LedgerHead[],
): Promise<LedgerVerdict> {
  const audit = new LedgerAudit(sha256, checkpoints);
  let head: LedgerHead | undefined;
  for await (const line of lines) {
    if (head === undefined) {
      const parsed = ledgerHeadSchema.safeParse(line);
      if (!parsed.success)
        throw new UsageError("the first line does not say how far the ledger goes: is it an export of one?");
      head = parsed.data;
      continue;
    }
    const parsed = ledgerLineSchema.safeParse(line);
    // What is no entry leaves a gap behind, which the audit finds.
    if (parsed.success) audit.add(parsed.data);
  }
  if (head === undefined) throw new UsageError("there is nothing in it: is it an export of a ledger?");
  return audit.finish(head);
}

/**
 * Reads a checkpoint and makes sure that it was signed with that key.
 *
 * @param publicKey PEM; what the checkpoint itself names would prove nothing
 * @throws UsageError when it is none, or was signed with another key or changed
 */
export function readCheckpoint(text: string, publicKey: string): LedgerCheckpoint {
  let checkpoint: LedgerCheckpoint;
  try {
    checkpoint = ledgerCheckpointSchema.parse(JSON.parse(text));
  } catch {
    throw new UsageError("the checkpoint cannot be read: it is to be what 'torpor ledger checkpoint' wrote");
  }
  let isSigned = false;
  try {
    const signature = Buffer.from(checkpoint.signature, "base64");
    isSigned = verify(null, Buffer.from(checkpointText(checkpoint)), createPublicKey(publicKey), signature);
  } catch (cause) {
    throw new UsageError(
      `the public key cannot be used (${cause instanceof Error ? cause.message : String(cause)}): it is to be a PEM file as 'torpor ledger checkpoint --public-key-out' writes`,
    );
  }
  if (!isSigned)
    throw new UsageError(
      "the checkpoint was not signed with this key, or was changed since: nothing that it says can be relied on",
    );
  return checkpoint;
}

function sha256(text: string): string {
  return createHash("sha256").update(text, "utf8").digest("hex");
}
