import type { IncomingMessage, ServerResponse } from "node:http";
import type { CodedError } from "@torpor/protocol";
import { sendJson } from "../../http/answer.ts";
import { isPageLoad, refuseVisitor } from "../../ingress/refusal.ts";
import type { VisitTarget } from "./visit-target.ts";

/** Answers a visit that is refused, as E2B's clients expect of its proxy and of the agent behind it. */
export function refuseVisit(
  incoming: IncomingMessage,
  outgoing: ServerResponse,
  error: CodedError,
  target: VisitTarget | undefined,
  requestId: string,
): void {
  if (isPageLoad(incoming) && target?.isOfHost === true) {
    refuseVisitor(incoming, outgoing, error, requestId);
    return;
  }
  const { status, body } = shown(incoming, error, target);
  const retry: Record<string, string> = error.retryable && status === 429 ? { "retry-after": "1" } : {};
  sendJson(incoming, outgoing, status, body, { "cache-control": "no-store", ...retry });
}

function shown(
  incoming: IncomingMessage,
  error: CodedError,
  target: VisitTarget | undefined,
): { status: number; body: unknown } {
  const sandboxId = target?.sandboxId ?? "";
  switch (error.code) {
    case "sandbox_not_found":
    case "sandbox_ended":
      return badGateway({ sandboxId, message: "The sandbox was not found" });
    case "wrong_state":
      return badGateway({ sandboxId, message: "The sandbox is paused; connect to it to resume it" });
    case "port_not_open":
      return badGateway({
        sandboxId,
        message: "The sandbox is running but port is not open",
        port: target?.port ?? 0,
      });
    case "unauthenticated":
      // What speaks Connect reads a word where the others read a number.
      return /^\/\w+\.\w+\//.test(incoming.url ?? "")
        ? { status: 401, body: { code: "unauthenticated", message: error.message } }
        : { status: 401, body: { code: 401, message: error.message } };
    case "quota_exceeded":
    case "budget_exhausted":
      return { status: 429, body: { sandboxId, message: error.message, code: 429 } };
    default:
      return { status: error.status, body: { sandboxId, message: error.message, code: error.status } };
  }
}

function badGateway(body: { sandboxId: string; message: string; port?: number }): {
  status: number;
  body: unknown;
} {
  return { status: 502, body: { ...body, code: 502 } };
}
