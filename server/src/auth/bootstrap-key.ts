import {
  chownSync,
  closeSync,
  constants,
  fchmodSync,
  fsyncSync,
  openSync,
  readFileSync,
  renameSync,
  writeSync,
} from "node:fs";
import { dirname } from "node:path";
import type { Clock } from "@torpor/base";
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
  if (existing === undefined) writeKey(file, key, owner);
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
  let text: string;
  try {
    const descriptor = openSync(file, constants.O_RDONLY | constants.O_NOFOLLOW);
    try {
      text = readFileSync(descriptor, "utf8").trim();
    } finally {
      closeSync(descriptor);
    }
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
  if (!isApiKey(text))
    throw new Error(
      `${file} does not hold a Torpor API key; move it away, and the next start writes a new one`,
    );
  return text;
}

function writeKey(file: string, key: string, owner: Owner | undefined): void {
  const temporary = `${file}.new`;
  const descriptor = openSync(
    temporary,
    constants.O_WRONLY | constants.O_CREAT | constants.O_TRUNC | constants.O_NOFOLLOW,
    0o600,
  );
  try {
    fchmodSync(descriptor, 0o600);
    writeSync(descriptor, `${key}\n`);
    fsyncSync(descriptor);
  } finally {
    closeSync(descriptor);
  }
  if (owner !== undefined) chownSync(temporary, owner.uid, owner.gid);
  renameSync(temporary, file);
  const directory = openSync(dirname(file), constants.O_RDONLY);
  try {
    fsyncSync(directory);
  } finally {
    closeSync(directory);
  }
}
