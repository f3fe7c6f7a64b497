import {
  AuthenticationError,
  CapacityError,
  ConflictError,
  EventsExpiredError,
  InvalidRequestError,
  NoSpaceError,
  NotFoundError,
  PermissionError,
  QuotaExceededError,
  RateLimitError,
  SandboxEndedError,
  TimeoutError,
  TorporError,
  type TorporErrorInit,
  UnavailableError,
} from "./errors.ts";
import { parseRetryAfterMs } from "./retry-delay.ts";

/** An error answer is read up to here, bytes: envelopes are small, a proxy's page need not be. */
const MAX_ERROR_BODY_BYTES = 256 * 1024;
/** How much of an unreadable answer is quoted, characters. */
const QUOTED_CHARACTERS = 200;

type ErrorClass = new (message: string, init: TorporErrorInit) => TorporError;

/** By code first: an error in the middle of a stream has no status. */
const CLASS_BY_CODE: Readonly<Record<string, ErrorClass>> = {
  invalid_request: InvalidRequestError,
  invalid_path: InvalidRequestError,
  unsupported: InvalidRequestError,
  method_not_allowed: InvalidRequestError,
  payload_too_large: InvalidRequestError,
  range_not_satisfiable: InvalidRequestError,
  unauthenticated: AuthenticationError,
  permission_denied: PermissionError,
  quota_exceeded: QuotaExceededError,
  budget_exhausted: QuotaExceededError,
  not_found: NotFoundError,
  sandbox_not_found: NotFoundError,
  template_not_found: NotFoundError,
  file_not_found: NotFoundError,
  process_not_found: NotFoundError,
  snapshot_not_found: NotFoundError,
  conflict: ConflictError,
  wrong_state: ConflictError,
  image_corrupt: ConflictError,
  image_incompatible: ConflictError,
  already_exists: ConflictError,
  idempotency_mismatch: ConflictError,
  idempotency_in_progress: ConflictError,
  sandbox_ended: SandboxEndedError,
  events_expired: EventsExpiredError,
  capacity_exhausted: CapacityError,
  rate_limited: RateLimitError,
  port_not_open: UnavailableError,
  host_unavailable: UnavailableError,
  store_unavailable: UnavailableError,
  template_not_ready: UnavailableError,
  guest_unavailable: UnavailableError,
  deadline_exceeded: TimeoutError,
  no_space: NoSpaceError,
};

/** For codes of a later version, and for answers of something else. */
const CLASS_BY_STATUS: Readonly<Record<number, ErrorClass>> = {
  400: InvalidRequestError,
  401: AuthenticationError,
  402: QuotaExceededError,
  403: PermissionError,
  404: NotFoundError,
  405: InvalidRequestError,
  409: ConflictError,
  410: SandboxEndedError,
  413: InvalidRequestError,
  416: InvalidRequestError,
  422: ConflictError,
  429: RateLimitError,
  502: UnavailableError,
  503: UnavailableError,
  504: TimeoutError,
  507: NoSpaceError,
};

/** The error of the right class for a code and status of the wire. */
function makeError(message: string, init: TorporErrorInit): TorporError {
  const byCode = Object.hasOwn(CLASS_BY_CODE, init.code) ? CLASS_BY_CODE[init.code] : undefined;
  const Class = byCode ?? CLASS_BY_STATUS[init.status ?? 0] ?? TorporError;
  return new Class(message, init);
}

/**
 * Reads an answer that is not 2xx into a typed error. An answer that is no error envelope (a proxy's page, a broken
 * body) is judged by its status and quoted.
 */
export async function errorFromResponse(
  response: Response,
  method: string,
  path: string,
): Promise<TorporError> {
  const requestId = response.headers.get("x-request-id");
  const retryAfterMs = parseRetryAfterMs(response.headers.get("retry-after"), Date.now());
  const text = await readCapped(response);
  const envelope = parseEnvelope(text);
  if (envelope) {
    return makeError(envelope.message, {
      code: envelope.code,
      status: response.status,
      requestId: requestId ?? envelope.requestId,
      details: envelope.details,
      retryable: envelope.retryable ?? isRetryableStatus(response.status),
      retryAfterMs,
    });
  }
  return makeError(foreignAnswerMessage(response, method, path, text), {
    code: `http_${response.status}`,
    status: response.status,
    requestId,
    retryable: isRetryableStatus(response.status),
    retryAfterMs,
  });
}

/** An error the server met after a stream had begun, which is a line of its own: an envelope, or what is in one. */
export function errorFromLine(line: Record<string, unknown>): TorporError {
  const { code, message, details } = isRecord(line["error"]) ? line["error"] : line;
  return makeError(typeof message === "string" ? message : "the server ended the stream with an error", {
    code: typeof code === "string" ? code : "internal",
    details: isRecord(details) ? details : {},
  });
}

function foreignAnswerMessage(response: Response, method: string, path: string, text: string): string {
  const what = `${method} ${path} was answered ${response.status}`;
  const isRedirect = response.type === "opaqueredirect" || (response.status >= 300 && response.status < 400);
  if (isRedirect) {
    const location = response.headers.get("location");
    const target = location === null ? "another address" : location;
    return `${what}, a redirect to ${target}: redirects are not followed, set the URL to the final address`;
  }
  const quoted = text.length > QUOTED_CHARACTERS ? `${text.slice(0, QUOTED_CHARACTERS)}...` : text;
  const body = quoted.trim() === "" ? "an empty body" : JSON.stringify(quoted);
  return `${what} by something that does not speak Torpor's API (${body}): check the URL and any proxy in between`;
}

function isRetryableStatus(status: number): boolean {
  return status === 429 || status === 502 || status === 503 || status === 504;
}

interface ParsedEnvelope {
  code: string;
  message: string;
  details: Record<string, unknown>;
  requestId: string | null;
  retryable: boolean | undefined;
}

function parseEnvelope(text: string): ParsedEnvelope | undefined {
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch {
    return undefined;
  }
  const error = isRecord(body) ? body["error"] : undefined;
  if (!isRecord(error) || typeof error["code"] !== "string") return undefined;
  const { code, message, details, request_id: requestId, retryable } = error;
  return {
    code,
    message: typeof message === "string" && message !== "" ? message : code,
    details: isRecord(details) ? details : {},
    requestId: typeof requestId === "string" ? requestId : null,
    retryable: typeof retryable === "boolean" ? retryable : undefined,
  };
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

async function readCapped(response: Response): Promise<string> {
  if (!response.body) return "";
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  let bytes = 0;
  try {
    while (bytes < MAX_ERROR_BODY_BYTES) {
      const { done, value } = await reader.read();
      if (done) return text + decoder.decode();
      bytes += value.byteLength;
      text += decoder.decode(value, { stream: true });
    }
  } catch {
    // The status is known already and is worth more than the rest of the body.
    return text;
  }
  await reader.cancel().catch(() => {});
  return text;
}
