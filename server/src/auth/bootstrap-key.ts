import { type Clock, readPrivateFile, writePrivateFile } from "@torpor/base";
import { randomText, type Scope } from "@torpor/protocol";
import type { Owner } from "../config.ts";
import type { KeyStore } from "../store/key-store.ts";
import { apiKeyPrefix, hashApiKey, isApiKey, newApiKey } from "./authenticator.ts";

/** The account of whoever runs the server, and the only one until they make others. Also the tenant of what names none. */
export const OPERATOR_ACCOUNT = "default";
const SCOPES: readonly Scope[] = ["admin", "operator"];

/**
 * The operator's key in `file`, made and written there when there is none.
 *
 * @returns it, and whether it was made. @throws Error when the file cannot be written or holds something else.
 */
export function openBootstrapKey(file: string, owner: Owner | undefined): { key: string; isNew: boolean } {
  const existing = readKey(file);
  const key = existing ?? newApiKey();
  if (existing === undefined) writePrivateFile(file, `${key}\n`, owner);
  return { key, isNew: existing === undefined };
}

/**
 * Makes sure that `key` is the operator's key of this store. The file comes first, so that a crash in between leaves a key
 * that the next start takes in, never one nobody has.
 */
export async function admitBootstrapKey(keys: KeyStore, key: string, clock: Clock): Promise<void> {
  const known = await keys.findByHash(hashApiKey(key));
  if (known !== undefined) {
    // Made before there were accounts to operate. Only whoever runs the server can write the file.
    const isWhole = known.account === OPERATOR_ACCOUNT && known.tenant === null;
    if (isWhole && !known.scopes.includes("operator")) await keys.grant(known, SCOPES);
    return;
  }
  await keys.insert({
    id: `key_${randomText(20)}`,
    account: OPERATOR_ACCOUNT,
    name: "bootstrap",
    prefix: apiKeyPrefix(key),
    hash: hashApiKey(key),
    tenant: null,
    scopes: SCOPES,
    createdAt: clock.now(),
    expiresAt: null,
  });
}

function readKey(file: string): string | undefined {
  const text = readPrivateFile(file)?.toString("utf8").trim();
  if (text === undefined) return undefined;
  if (!isApiKey(text))
    throw new Error(
      `${file} does not hold a Torpor API key; move it away, and the next start writes a new one`,
    );
  return text;
}
