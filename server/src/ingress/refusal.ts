import type { IncomingMessage, ServerResponse } from "node:http";
import { CodedError, type ErrorCode } from "@torpor/protocol";
import { sendError, sendText } from "../http/answer.ts";

const TITLES: Partial<Record<ErrorCode, string>> = {
  unauthenticated: "This preview needs its link",
  not_found: "There is no such preview",
  port_not_open: "Nothing answers here yet",
  wrong_state: "The sandbox is asleep",
  sandbox_ended: "The sandbox has ended",
  rate_limited: "Too many connections",
};

/** Answers a visitor: a browser that opens a page gets one, everything else the error envelope. */
export function refuseVisitor(
  incoming: IncomingMessage,
  outgoing: ServerResponse,
  refusal: CodedError,
  requestId: string,
): void {
  const error = asVisitorsSeeIt(refusal);
  const headers = { "cache-control": "no-store", "referrer-policy": "no-referrer" };
  if (!isPageLoad(incoming)) {
    sendError(incoming, outgoing, error, requestId, headers);
    return;
  }
  const title = TITLES[error.code] ?? "The preview cannot be shown";
  sendText(incoming, outgoing, error.status, page(title, error.message, requestId), {
    ...headers,
    "content-type": "text/html; charset=utf-8",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'",
    "x-content-type-options": "nosniff",
  });
}

/** What a visitor can do about it, and no address of what lies behind the preview. */
function asVisitorsSeeIt(error: CodedError): CodedError {
  const { cause: _cause, ...details } = error.details;
  if (error.code === "wrong_state")
    return new CodedError(
      error.code,
      "the sandbox is asleep, and this link does not wake it; its owner can make a link that wakes it, or wake it",
      { details },
    );
  if (error.code === "host_unavailable")
    return new CodedError(error.code, "the sandbox cannot be reached now; try again shortly");
  return new CodedError(error.code, error.message, { details });
}

/** Whether a browser opens this as a page, as opposed to what a page or a program asks for. */
export function isPageLoad({ method, headers }: IncomingMessage): boolean {
  if (method !== "GET") return false;
  const mode = headers["sec-fetch-mode"];
  return mode === undefined ? headers.accept?.includes("text/html") === true : mode === "navigate";
}

function page(title: string, message: string, requestId: string): string {
  return `<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>${escaped(title)}</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:36rem;margin:20vh auto 0;padding:0 1rem;color:#222;background:#fff}small{color:#777}@media(prefers-color-scheme:dark){body{color:#ddd;background:#111}}</style>
<h1>${escaped(title)}</h1><p>${escaped(message)}</p><small>Torpor, request ${escaped(requestId)}</small></html>
`;
}

function escaped(text: string): string {
  return text
    .replaceAll("&", "&amp;")
    .replaceAll("<", "&lt;")
    .replaceAll(">", "&gt;")
    .replaceAll('"', "&quot;");
}
