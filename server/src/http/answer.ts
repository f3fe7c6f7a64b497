import type { IncomingMessage, OutgoingHttpHeaders, ServerResponse } from "node:http";
import type { Log } from "@torpor/base";
import { CodedError } from "@torpor/protocol";
import { storeFailure } from "../store/store-failure.ts";

/** A client that still sends its body when it has been answered is read this far, so that it sees the answer. */
const MAX_DRAIN_BYTES = 4 * 1024 * 1024;
const MAX_DRAIN_MS = 1_000;

/** Sends a JSON answer. Resolves once it is handed to the connection. */
export function sendJson(
  incoming: IncomingMessage,
  outgoing: ServerResponse,
  status: number,
  value: unknown,
  headers: OutgoingHttpHeaders = {},
): void {
  sendText(incoming, outgoing, status, typeof value === "string" ? value : JSON.stringify(value), {
    "content-type": "application/json",
    ...headers,
  });
}

/** Sends a complete text answer with its length. Once an answer has begun, a second one cannot be sent: it is cut off. */
export function sendText(
  incoming: IncomingMessage,
  outgoing: ServerResponse,
  status: number,
  text: string,
  headers: OutgoingHttpHeaders,
): void {
  if (outgoing.writableEnded) return; // refused meanwhile, in full
  if (outgoing.headersSent || outgoing.destroyed) {
    outgoing.destroy();
    return;
  }
  const body = Buffer.from(text, "utf8");
  const unread = !incoming.complete && incoming.method !== "GET" && incoming.method !== "HEAD";
  outgoing.writeHead(status, {
    ...headers,
    "content-length": body.length,
    ...(unread ? { connection: "close" } : {}),
  });
  if (!unread) {
    outgoing.end(incoming.method === "HEAD" ? undefined : body);
    return;
  }
  outgoing.write(body);
  drain(incoming, () => outgoing.end());
}

/**
 * Reads on for a moment before the connection is closed: closing it with unread bytes would reset it, and the client
 * might lose the answer that is already on its way.
 */
function drain(incoming: IncomingMessage, done: () => void): void {
  let bytes = 0;
  let finished = false;
  const finish = (): void => {
    if (finished) return;
    finished = true;
    clearTimeout(timer);
    done();
  };
  const timer = setTimeout(finish, MAX_DRAIN_MS);
  incoming.on("data", (chunk: Buffer) => {
    bytes += chunk.length;
    if (bytes > MAX_DRAIN_BYTES) finish();
  });
  incoming.once("end", finish).once("close", finish).once("error", finish);
  incoming.resume();
}

/** Anything thrown as the one error type. What is not ours is a bug: logged in full, told as `internal`. */
export function toCodedError(error: unknown, log: Log, requestId: string): CodedError {
  if (error instanceof CodedError) return error;
  const outage = storeFailure(error);
  if (outage !== undefined) {
    log.error({ op: "store", outcome: outage.code, requestId, err: error });
    return outage;
  }
  log.error({ op: "request", outcome: "bug", requestId, err: error });
  return new CodedError(
    "internal",
    `the server failed in a way it should not; its log has the details under request ${requestId}`,
    { cause: error },
  );
}

/** What an error looks like to those who asked, where that is not the envelope of the API. */
export type ShowError = (error: CodedError, requestId: string) => { status: number; body: unknown };

const showEnvelope: ShowError = (error, requestId) => ({
  status: error.status,
  body: error.toEnvelope(requestId),
});

/** Sends an error, as `show` has it or in the envelope, with the headers its code asks for. */
export function sendError(
  incoming: IncomingMessage,
  outgoing: ServerResponse,
  error: CodedError,
  requestId: string,
  headers: OutgoingHttpHeaders = {},
  redact: (text: string) => string = (text) => text,
  show: ShowError = showEnvelope,
): void {
  const extra: OutgoingHttpHeaders = { ...headers };
  if (error.code === "unauthenticated") extra["www-authenticate"] = 'Bearer realm="torpor"';
  const seconds = error.details["retry_after_seconds"];
  if (error.retryable && error.status !== 409)
    extra["retry-after"] = typeof seconds === "number" ? String(seconds) : "1";
  const { status, body } = show(error, requestId);
  sendJson(incoming, outgoing, status, redact(JSON.stringify(body)), extra);
}
