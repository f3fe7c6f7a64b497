/**
 * The ledger: which tenant held which machine, address, snapshot, image and id, from when to when, and who was refused.
 *
 * An entry is kept as the exact text that was hashed, so that nobody has to encode anything to verify it:
 *
 *     hash = SHA-256 of the UTF-8 bytes of `entry`, as 64 lower-case hexadecimal digits
 *     entry.seq = 1, 2, 3, ... without a gap
 *     entry.prev = hash of the entry before; of the first one the ledger's id, 32 random bytes
 *
 * The order is that of `seq`. `at` is what the server's clock showed: it may run behind the order, and proves nothing.
 */
import { z } from "zod";

const hash = z.string().regex(/^[0-9a-f]{64}$/, "must be 64 hexadecimal digits");

/** What can be bound to a tenant. */
export const LEDGER_RESOURCE_KINDS = ["sandbox", "machine", "address", "snapshot", "image"] as const;

export const ledgerResourceSchema = z.object({
  kind: z.enum(LEDGER_RESOURCE_KINDS),
  id: z.string(),
  /** Of a machine: counts the machines of its sandbox from 1, without a gap. */
  number: z.number().int().optional(),
  /** Of a machine: `pool` (a pristine one that waited), `shell`, `cold`, `snapshot`, `image`. */
  source: z.string().optional(),
  /**
   * Of an address: its host's count of all it gives and takes back, at that moment. Absent where it is not known. The
   * server may hear of two in another order than they happened: for addresses this order counts, and not `seq`.
   */
  turn: z.number().int().optional(),
  /** Of a machine: the snapshot or image whose memory went into it. */
  from: z.string().optional(),
});
export type LedgerResource = z.infer<typeof ledgerResourceSchema>;

/** Why a request was refused, as a denial says it. */
export const DENIAL_REASONS = ["foreign_id", "permission_denied", "key_revoked", "key_expired"] as const;
export type DenialReason = (typeof DENIAL_REASONS)[number];

export const ledgerEntrySchema = z.object({
  v: z.literal(1),
  seq: z.number().int().min(1),
  prev: hash,
  at: z.string(),
  action: z.enum(["bind", "release", "deny"]),
  /** Whose the resources are; of a denial whose they would have been, or the key's own. */
  account: z.string(),
  tenant: z.string().nullable(),
  sandbox_id: z.string().nullable(),
  generation: z.number().int().nullable(),
  /** Addresses are a host's own. */
  host: z.string().nullable(),
  /** Id of an API key, or `system:` and what of ours did it. */
  actor: z.string(),
  reason: z.string(),
  resources: z.array(ledgerResourceSchema),
  /** Of a denial: what was asked. */
  route: z.string().optional(),
  /** Of a denial: how often since the one before, within a minute. */
  count: z.number().int().optional(),
});
export type LedgerEntry = z.infer<typeof ledgerEntrySchema>;

/** One line of an export. What is beside `entry` and `hash` is what the store finds entries by. */
export const ledgerLineSchema = z.object({
  seq: z.number().int(),
  hash: z.string(),
  account: z.string(),
  tenant: z.string().nullable(),
  sandbox_id: z.string().nullable(),
  /** The text that was hashed: JSON of an entry. */
  entry: z.string(),
});
export type LedgerLine = z.infer<typeof ledgerLineSchema>;

/** First line of an export: how far the store says the ledger goes. */
export const ledgerHeadSchema = z.object({ ledger: hash, seq: z.number().int(), hash });
export type LedgerHead = z.infer<typeof ledgerHeadSchema>;

/** Answer of `GET /v1/ledger`: entries with their hashes, newest first. */
export const shownLedgerEntrySchema = ledgerEntrySchema.extend({ hash });
export type ShownLedgerEntry = z.infer<typeof shownLedgerEntrySchema>;

/** A signed statement of how far a ledger went. */
export const ledgerCheckpointSchema = ledgerHeadSchema.extend({
  at: z.string(),
  /** Ed25519, PEM (SPKI). */
  public_key: z.string(),
  /** Of {@link checkpointText}, Base64. */
  signature: z.string(),
});
export type LedgerCheckpoint = z.infer<typeof ledgerCheckpointSchema>;

/** What a checkpoint's signature is of, as UTF-8. */
export function checkpointText({ ledger, seq, hash, at }: LedgerHead & { at: string }): string {
  return `torpor ledger checkpoint 1\n${ledger}\n${seq}\n${hash}\n${at}\n`;
}
