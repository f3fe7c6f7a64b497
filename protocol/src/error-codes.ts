/** Error codes of the public API: HTTP status and whether the same request may succeed if sent again. */
export const ERROR_CODES = {
  invalid_request: { status: 400, retryable: false },
  invalid_path: { status: 400, retryable: false },
  unsupported: { status: 400, retryable: false },
  unauthenticated: { status: 401, retryable: false },
  permission_denied: { status: 403, retryable: false },
  /** A limit of the account or the tenant that waiting does not change; `details` name it, its value and the use. */
  quota_exceeded: { status: 403, retryable: false },
  /** The budget of the account or the tenant is spent; `details.renews_at` says when it begins anew. */
  budget_exhausted: { status: 402, retryable: false },
  not_found: { status: 404, retryable: false },
  sandbox_not_found: { status: 404, retryable: false },
  template_not_found: { status: 404, retryable: false },
  file_not_found: { status: 404, retryable: false },
  process_not_found: { status: 404, retryable: false },
  method_not_allowed: { status: 405, retryable: false },
  conflict: { status: 409, retryable: false },
  already_exists: { status: 409, retryable: false },
  idempotency_mismatch: { status: 409, retryable: false },
  /** A state that does not change by waiting stands in the way; `details.state` names it. */
  wrong_state: { status: 409, retryable: false },
  /** The checksum or manifest of an image does not hold: nothing is restored from it. */
  image_corrupt: { status: 422, retryable: false },
  /** Made by another driver, runtime build or template than this host has. */
  image_incompatible: { status: 422, retryable: false },
  snapshot_not_found: { status: 404, retryable: false },
  idempotency_in_progress: { status: 409, retryable: true },
  sandbox_ended: { status: 410, retryable: false },
  /** The place to resume from is older than what is kept; `details.oldest_id` is the oldest there is. */
  events_expired: { status: 410, retryable: false },
  payload_too_large: { status: 413, retryable: false },
  range_not_satisfiable: { status: 416, retryable: false },
  capacity_exhausted: { status: 429, retryable: true },
  rate_limited: { status: 429, retryable: true },
  client_closed_request: { status: 499, retryable: false },
  internal: { status: 500, retryable: false },
  /** Nothing listens on that port inside the sandbox. */
  port_not_open: { status: 502, retryable: true },
  host_unavailable: { status: 503, retryable: true },
  store_unavailable: { status: 503, retryable: true },
  template_not_ready: { status: 503, retryable: true },
  guest_unavailable: { status: 503, retryable: true },
  deadline_exceeded: { status: 504, retryable: true },
  no_space: { status: 507, retryable: false },
} as const satisfies Record<string, { status: number; retryable: boolean }>;

export type ErrorCode = keyof typeof ERROR_CODES;

/** Body of every error answer. */
export interface ErrorEnvelope {
  error: {
    code: ErrorCode;
    /** What was tried, on what, why it failed and what to do. */
    message: string;
    details: Record<string, unknown>;
    request_id: string;
    retryable: boolean;
  };
}

/** Whether `value` is one of the codes in {@link ERROR_CODES}. */
export function isErrorCode(value: unknown): value is ErrorCode {
  return typeof value === "string" && Object.hasOwn(ERROR_CODES, value);
}
