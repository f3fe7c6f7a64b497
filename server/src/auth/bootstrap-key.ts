import { type Clock, readPrivateFile, writePrivateFile } from "@torpor/base";
import { randomText, type Scope } from "@torpor/protocol";
import type { Owner } from "../config.ts";
import type { KeyStore } from "../store/key-store.ts";
import { apiKeyPrefix, hashApiKey, isApiKey, newApiKey } from "./authenticator.ts";

/** The account of whoever runs the server, and the only one until they make others. Also the tenant of what names none. */
export const OPERATOR_ACCOUNT = "default";
const SCOPES: readonly Scope[] = ["admin", "operator"];

/**
 * Makes sure that the key in `file` is the operator's key of this store: written on the first start, found on later ones.
 * The file comes first, so that a crash in between leaves a key that the next start takes in, never one nobody has.
 *
 * @returns whether a new key was made. @throws Error when the file cannot be written or holds something else.
 */
export async function bootstrapKey(
  keys: KeyStore,
  file: string,
  owner: Owner | undefined,
  clock: Clock,
): Promise<boolean> {
  const existing = readKey(file);
  const key = existing ?? newApiKey();
  if (existing === undefined) writePrivateFile(file, `${key}\n`, owner);
  const known = await keys.findByHash(hashApiKey(key));
  if (known !== undefined) {
    // Made before there were accounts to operate. Only whoever runs the server can write the file.
    const isWhole = known.account === OPERATOR_ACCOUNT && known.tenant === null;
    if (isWhole && !known.scopes.includes("operator")) await keys.grant(known, SCOPES);
    return false;
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
  return true;
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
