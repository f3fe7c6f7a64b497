import { LedgerAudit, type LedgerHead, type LedgerLine, type LedgerVerdict } from "@torpor/protocol";
import { OperatorScope } from "../src/auth/tenant-scope.ts";
import { LedgerStore, sha256 } from "../src/store/ledger-store.ts";
import type { Database } from "../src/store/open-database.ts";

const operator = OperatorScope.fromVerifiedKey("key_test");

/** The whole ledger of a store, as an export of it would have it. */
export async function ledgerOf(database: Database): Promise<{ head: LedgerHead; lines: LedgerLine[] }> {
  const ledger = new LedgerStore(database);
  const head = await ledger.head(operator);
  const lines = await ledger.lines(operator, { after: 0, to: head.seq, limit: 1_000_000 });
  return { head, lines: [...lines, ...(await ledger.strays(operator))] };
}

/** What an audit says of lines. */
export function audit(
  lines: readonly LedgerLine[],
  head?: LedgerHead,
  checkpoints: readonly LedgerHead[] = [],
): LedgerVerdict {
  const ledger = new LedgerAudit(sha256, checkpoints);
  for (const line of lines) ledger.add(line);
  return ledger.finish(head);
}

/** What an audit says of a store's ledger. */
export async function auditOf(database: Database): Promise<LedgerVerdict> {
  const { head, lines } = await ledgerOf(database);
  return audit(lines, head);
}
