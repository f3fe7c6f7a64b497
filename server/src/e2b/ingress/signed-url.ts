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

/** Reads one of a request line; undefined when it carries no signature. */
export function signedUrl(method: string | undefined, url: string): SignedUrl | undefined {
  if (method !== "GET" && method !== "POST") return undefined;
  const query = new URLSearchParams(url.slice(url.indexOf("?") + 1));
  const signature = query.get("signature");
  if (!url.startsWith("/files?") || signature === null) return undefined;
  return {
    path: query.get("path") ?? "",
    operation: method === "GET" ? "read" : "write",
    username: query.get("username") ?? "",
    signature,
    expiration: query.get("signature_expiration") ?? undefined,
  };
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
