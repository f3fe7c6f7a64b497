import { decodeBase64 } from "./base64.ts";
import { TorporError } from "./errors.ts";
import { type SandboxEvent, sandboxEventFromWire } from "./sandbox-event.ts";
import type { EventWire } from "./wire.ts";

/** A delivery older or newer than this is refused, seconds: what was recorded once cannot be played back later. */
const TOLERANCE_SECONDS = 300;

/**
 * The event of a webhook's request, once its signature is proven (Standard Webhooks 1.0). Deliveries come at least once:
 * tell repeats by `id`.
 *
 * @param body the request's body as it came, not parsed and written again
 * @param headers those of the request, by lower-case name, or a `Headers`
 * @param secret `whsec_…`, as the webhook's creation showed it
 * @throws TorporError `webhook_invalid` when it is not from the server, or not from the last 5 minutes
 */
export async function verifyWebhook(
  body: string,
  headers: Headers | Readonly<Record<string, string | string[] | undefined>>,
  secret: string,
): Promise<SandboxEvent> {
  const header = (name: string): string => {
    const value = headers instanceof Headers ? headers.get(name) : headers[name];
    if (typeof value === "string" && value !== "") return value;
    throw invalid(`it has no ${name} header`);
  };
  const id = header("webhook-id");
  const timestamp = header("webhook-timestamp");
  const ageSeconds = Date.now() / 1_000 - Number(timestamp);
  if (!/^\d+$/.test(timestamp) || Math.abs(ageSeconds) > TOLERANCE_SECONDS)
    throw invalid(`its webhook-timestamp is not within ${TOLERANCE_SECONDS} s of now`);
  const algorithm = { name: "HMAC", hash: "SHA-256" };
  const keyBytes = keyOf(secret);
  const key = await crypto.subtle.importKey("raw", keyBytes, algorithm, false, ["verify"]);
  const signed = new TextEncoder().encode(`${id}.${timestamp}.${body}`);
  // Several are sent while a secret is changed; one that holds is enough.
  for (const signature of header("webhook-signature").split(" ")) {
    const [version, value = ""] = signature.split(",", 2);
    if (version !== "v1") continue;
    let bytes: Uint8Array<ArrayBuffer>;
    try {
      bytes = decodeBase64(value);
    } catch {
      continue; // no base64: not ours
    }
    if (await crypto.subtle.verify("HMAC", key, bytes, signed))
      return sandboxEventFromWire(JSON.parse(body) as EventWire);
  }
  throw invalid("its signature is not made with this secret");
}

function keyOf(secret: string): Uint8Array<ArrayBuffer> {
  let key: Uint8Array<ArrayBuffer>;
  try {
    key = decodeBase64(secret.replace(/^whsec_/, ""));
  } catch {
    throw invalid("the secret is not whsec_ and base64");
  }
  if (key.length === 0) throw invalid("the secret is empty, so that anybody could have signed it");
  return key;
}

function invalid(why: string): TorporError {
  return new TorporError(`the webhook's request cannot be trusted: ${why}`, { code: "webhook_invalid" });
}
