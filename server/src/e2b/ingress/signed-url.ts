import { createHash, timingSafeEqual } from "node:crypto";

/** What a signed URL for a file says: `v1_` and base64(sha256("path:read|write:user:token[:expiry]")), without `=`. */
export interface SignedUrl {
  path: string;
  operation: "read" | "write";
  username: string;
  signature: string;
  /** Unix seconds, as it is written; undefined for one that does not expire. */
  expiration: string | undefined;
}

const SIGNED_NAMES = ["path", "username", "signature", "signature_expiration"];
/** `v1_` and base64 of 32 bytes. */
const SIGNATURE = /^v1_[A-Za-z0-9+/]{43}$/;

/** Reads one of a request line; undefined when it carries no signature, or names twice what is signed. */
export function signedUrl(method: string | undefined, url: string): SignedUrl | undefined {
  if (method !== "GET" && method !== "POST") return undefined;
  const query = new URLSearchParams(url.slice(url.indexOf("?") + 1));
  const signature = query.get("signature");
  if (!url.startsWith("/files?") || signature === null) return undefined;
  if (SIGNED_NAMES.some((name) => query.getAll(name).length > 1)) return undefined;
  return {
    path: query.get("path") ?? "",
    operation: method === "GET" ? "read" : "write",
    username: query.get("username") ?? "",
    signature,
    expiration: query.get("signature_expiration") ?? undefined,
  };
}

/**
 * Path and query that say what was verified and nothing else. The agent reads a query by other rules than ours (a second
 * `?`, `;`, broken escapes), so what the client wrote is not passed on.
 */
export function signedPath({ path, username, signature, expiration }: SignedUrl): string {
  const query = new URLSearchParams({ path });
  if (username !== "") query.set("username", username);
  query.set("signature", signature);
  if (expiration !== undefined) query.set("signature_expiration", expiration);
  return `/files?${query.toString()}`;
}

/** Whether it has the form of a signature at all: any other was made with no token. */
export function isSignature({ signature }: SignedUrl): boolean {
  return SIGNATURE.test(signature);
}

/** Whether the signature was made with that token. It says nothing of its expiry. */
export function isSignedWith(
  { path, operation, username, signature, expiration }: SignedUrl,
  token: string,
): boolean {
  const text = [path, operation, username, token, ...(expiration === undefined ? [] : [expiration])].join(
    ":",
  );
  const made = `v1_${createHash("sha256").update(text).digest("base64").replace(/=+$/, "")}`;
  const [given, right] = [Buffer.from(signature), Buffer.from(made)];
  return given.length === right.length && timingSafeEqual(given, right);
}

/** Whether its time is over. What is no number never was in time. */
export function isExpired({ expiration }: SignedUrl, nowMs: number): boolean {
  return expiration !== undefined && !(Number(expiration) >= Math.floor(nowMs / 1_000));
}
