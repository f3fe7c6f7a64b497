import type { IncomingMessage } from "node:http";
import { CodedError, type ErrorCode } from "@torpor/protocol";

/** Error bodies are short; more than this is not one. */
const MAX_ERROR_BYTES = 256 * 1024;

/** A refusal of the guest agent, before a route has given it a meaning of its own. */
export class GuestRefusal extends CodedError {
  /** Connect's code, or the HTTP status as text for the agent's plain HTTP endpoints. */
  readonly guestCode: string;

  constructor(code: ErrorCode, message: string, guestCode: string) {
    super(code, message);
    this.name = "GuestRefusal";
    this.guestCode = guestCode;
  }
}

const BY_CONNECT_CODE: Readonly<Record<string, ErrorCode>> = {
  canceled: "client_closed_request",
  invalid_argument: "invalid_request",
  deadline_exceeded: "deadline_exceeded",
  not_found: "file_not_found",
  already_exists: "already_exists",
  permission_denied: "permission_denied",
  resource_exhausted: "capacity_exhausted",
  failed_precondition: "conflict",
  aborted: "conflict",
  out_of_range: "invalid_request",
  unimplemented: "unsupported",
  unavailable: "guest_unavailable",
  locked: "guest_unavailable",
  /** The agent's word for a user name that does not exist. */
  unauthenticated: "invalid_request",
};

const BY_STATUS: Readonly<Record<number, ErrorCode>> = {
  400: "invalid_path",
  401: "invalid_request",
  403: "permission_denied",
  404: "file_not_found",
  405: "unsupported",
  406: "unsupported",
  409: "conflict",
  413: "payload_too_large",
  416: "range_not_satisfiable",
  423: "guest_unavailable",
  429: "capacity_exhausted",
  502: "guest_unavailable",
  503: "guest_unavailable",
  504: "deadline_exceeded",
  507: "no_space",
};

/** A Connect error of the guest as one of ours. */
export function connectError(code: string, message: string, status?: number): GuestRefusal {
  const mapped = status === 507 ? "no_space" : (BY_CONNECT_CODE[code] ?? "internal");
  return new GuestRefusal(mapped, message, code);
}

/** Reads an answer of 400 and above: the host's envelope, the guest's Connect error, or the guest's plain HTTP error. */
export async function answerError(answer: IncomingMessage, tried: string): Promise<CodedError> {
  const status = answer.statusCode ?? 500;
  const chunks: Buffer[] = [];
  let bytes = 0;
  try {
    for await (const chunk of answer as AsyncIterable<Buffer>) {
      bytes += chunk.length;
      chunks.push(chunk);
      if (bytes > MAX_ERROR_BYTES) break;
    }
  } catch {
    // the status alone must do
  }
  const text = Buffer.concat(chunks).toString("utf8");
  const fallback = BY_STATUS[status] ?? "internal";
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch {
    const said = text.trim().slice(0, 300);
    return new GuestRefusal(fallback, said === "" ? `the answer was ${status}` : said, String(status));
  }
  if (typeof body === "object" && body !== null) {
    if ("error" in body)
      return CodedError.fromEnvelope(body, fallback, `${tried} was answered with ${status}`);
    if ("code" in body) {
      const message = "message" in body ? String(body.message) : `${tried} was answered with ${status}`;
      if (typeof body.code === "string") return connectError(body.code, message, status);
      return new GuestRefusal(fallback, message, String(status));
    }
  }
  return new GuestRefusal(fallback, `${tried} was answered with ${status}`, String(status));
}
