import { request as httpRequest } from "node:http";
import { request as httpsRequest } from "node:https";
import { WEBHOOK_HEADERS } from "@torpor/protocol";
import { VERSION } from "../version.ts";
import { webhookSignature } from "./signature.ts";
import type { TargetGuard } from "./target-guard.ts";

export interface WebhookMessage {
  url: string;
  secret: string;
  /** Event id: the same at every try, so that a receiver can tell a repeat. */
  id: string;
  body: string;
  timestampSeconds: number;
}

/** What a try came to: any 2xx is `delivered`, 410 says that nobody wants them any more. */
export type SendOutcome = { kind: "delivered" } | { kind: "gone" } | { kind: "failed"; why: string };

/** A receiver has this long to answer, name resolution included, milliseconds (Standard Webhooks: 15 to 30 s). */
const TIMEOUT_MS = 15_000;

/** Sends one event once. Follows no redirect and reads no answer's body. Never throws. */
export function sendWebhook(
  message: WebhookMessage,
  guard: TargetGuard,
  signal: AbortSignal,
): Promise<SendOutcome> {
  const url = new URL(message.url);
  const refusal = guard.refusal(url);
  if (refusal !== undefined) return Promise.resolve({ kind: "failed", why: refusal });
  const { id, body, timestampSeconds, secret } = message;
  return new Promise((resolve) => {
    const send = url.protocol === "https:" ? httpsRequest : httpRequest;
    const outgoing = send(url, {
      method: "POST",
      agent: false,
      lookup: guard.lookupFor(url),
      signal: AbortSignal.any([signal, AbortSignal.timeout(TIMEOUT_MS)]),
      headers: {
        "content-type": "application/json",
        "content-length": Buffer.byteLength(body),
        "user-agent": `torpor-webhooks/${VERSION}`,
        [WEBHOOK_HEADERS.id]: id,
        [WEBHOOK_HEADERS.timestamp]: String(timestampSeconds),
        [WEBHOOK_HEADERS.signature]: webhookSignature(secret, id, timestampSeconds, body),
      },
    });
    outgoing.once("response", (answer) => {
      const status = answer.statusCode ?? 0;
      answer.on("error", () => {});
      answer.destroy();
      if (status >= 200 && status < 300) resolve({ kind: "delivered" });
      else if (status === 410) resolve({ kind: "gone" });
      else resolve({ kind: "failed", why: `the receiver answered ${status}` });
    });
    outgoing.on("error", (error: NodeJS.ErrnoException) => {
      const isLate = error.name === "AbortError" || error.name === "TimeoutError";
      resolve({
        kind: "failed",
        why: isLate ? `no answer within ${TIMEOUT_MS / 1_000} s` : (error.code ?? error.message),
      });
    });
    outgoing.end(body);
  });
}
