import { CodedError } from "@torpor/protocol";
import type { KeyRecord } from "../store/key-store.ts";

/** Why a key is no longer good at `now` (Unix milliseconds); undefined while it is. */
export function keyRefusal(key: KeyRecord, now: number): CodedError | undefined {
  if (key.revokedAt !== null)
    return new CodedError(
      "unauthenticated",
      `the API key ${key.prefix}… (${key.name}) has been revoked; use another`,
    );
  if (key.expiresAt !== null && key.expiresAt <= now)
    return new CodedError(
      "unauthenticated",
      `the API key ${key.prefix}… (${key.name}) expired at ${new Date(key.expiresAt).toISOString()}; create a new one`,
    );
  return undefined;
}
