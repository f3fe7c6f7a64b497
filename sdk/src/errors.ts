import type { ExecResult } from "./exec-result.ts";

/** Facts that every error of this client carries. */
export interface TorporErrorInit {
  /** Machine-readable code: the server's own, or `connection_lost`, `invalid_response`, ... made by the client. */
  code: string;
  /** HTTP status, or null when no answer was received. */
  status?: number | null;
  /** The server's name for the request (`x-request-id`): give it when asking for help. */
  requestId?: string | null;
  /** What the server added: the field, the limit, the refused value. */
  details?: Record<string, unknown>;
  /** Whether the same request may succeed if sent again. */
  retryable?: boolean;
  /** How long the server asked to wait, milliseconds; null when it did not say. */
  retryAfterMs?: number | null;
  cause?: unknown;
}

/**
 * Base of every error this client makes. What a caller passes in stays as it is: an aborted `signal` rejects with
 * its own reason, and an error thrown by an upload's source or an output callback is rethrown unchanged.
 */
export class TorporError extends Error {
  readonly code: string;
  readonly status: number | null;
  readonly requestId: string | null;
  readonly details: Record<string, unknown>;
  readonly retryable: boolean;
  readonly retryAfterMs: number | null;

  constructor(message: string, init: TorporErrorInit) {
    super(message, init.cause === undefined ? undefined : { cause: init.cause });
    this.name = "TorporError";
    this.code = init.code;
    this.status = init.status ?? null;
    this.requestId = init.requestId ?? null;
    this.details = init.details ?? {};
    this.retryable = init.retryable ?? false;
    this.retryAfterMs = init.retryAfterMs ?? null;
  }
}

/** The client lacks what it needs to make a request: no URL, no API key, an unreadable key file. */
export class ConfigurationError extends TorporError {
  override readonly name = "ConfigurationError";
}

/** 401: the API key is missing, unknown, expired or revoked. */
export class AuthenticationError extends TorporError {
  override readonly name = "AuthenticationError";
}

/** 403: the API key is good but lacks the scope or is bound to another tenant. */
export class PermissionError extends TorporError {
  override readonly name = "PermissionError";
}

/** 404: no such sandbox, file, process or template, or it belongs to someone else. `code` says which. */
export class NotFoundError extends TorporError {
  override readonly name = "NotFoundError";
}

/** One problem of a refused request: `path` is the field as it is named on the wire. */
export interface RequestIssue {
  path: string;
  message: string;
}

/** 400, 405, 413, 416: the request is wrong and would be refused again. */
export class InvalidRequestError extends TorporError {
  override readonly name = "InvalidRequestError";

  /** The problems field by field; empty when the server names none. */
  get issues(): RequestIssue[] {
    const issues: unknown = this.details["issues"];
    if (!Array.isArray(issues)) return [];
    return issues.filter(isIssue);
  }
}

function isIssue(value: unknown): value is RequestIssue {
  return (
    typeof value === "object" &&
    value !== null &&
    "path" in value &&
    typeof value.path === "string" &&
    "message" in value &&
    typeof value.message === "string"
  );
}

/** 409: the request contradicts the present state, or an idempotency key was used for something else. */
export class ConflictError extends TorporError {
  override readonly name = "ConflictError";
}

/** 410: the sandbox has ended; `reason` says why (`user`, `ttl_expired`, `oom`, `runtime_crashed`, ...). */
export class SandboxEndedError extends TorporError {
  override readonly name = "SandboxEndedError";

  /** Null when the server does not say. */
  get reason(): string | null {
    const reason = this.details["reason"];
    return typeof reason === "string" ? reason : null;
  }
}

/** 410 `events_expired`: the place to go on from is no longer kept, so events may have been missed: read the state anew. */
export class EventsExpiredError extends TorporError {
  override readonly name = "EventsExpiredError";
}

/** 429 `rate_limited`: too many requests. Thrown once the client's own retries are used up. */
export class RateLimitError extends TorporError {
  override readonly name = "RateLimitError";
}

/**
 * 403 `quota_exceeded`: a limit of the account or the tenant, which waiting does not change; `details` name it.
 * 402 `budget_exhausted`: its budget is spent; `details.renews_at` says when it begins anew.
 */
export class QuotaExceededError extends TorporError {
  override readonly name = "QuotaExceededError";
}

/** 429 `capacity_exhausted`: no room for another sandbox on the machine now. */
export class CapacityError extends TorporError {
  override readonly name = "CapacityError";
}

/** 507: the sandbox's disk is full. */
export class NoSpaceError extends TorporError {
  override readonly name = "NoSpaceError";
}

/** 502, 503: the server, the host or the sandbox's agent cannot answer now. Retried before it is thrown. */
export class UnavailableError extends TorporError {
  override readonly name = "UnavailableError";
}

/** `timeoutMs` passed, or the server answered 504. The request may or may not have taken effect. */
export class TimeoutError extends TorporError {
  override readonly name = "TimeoutError";
}

/** The server could not be reached, or the connection broke before the answer was complete. */
export class ConnectionError extends TorporError {
  override readonly name = "ConnectionError";
}

/** A command run with `check: true` did not exit with 0. */
export class CommandError extends TorporError {
  override readonly name = "CommandError";
  /** All that is known of the command, its output included. */
  readonly result: ExecResult<string | Uint8Array>;

  constructor(message: string, result: ExecResult<string | Uint8Array>) {
    super(message, {
      code: "command_failed",
      details: { outcome: result.outcome, exitCode: result.exitCode },
    });
    this.result = result;
  }
}
