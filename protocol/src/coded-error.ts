import { ERROR_CODES, type ErrorCode, type ErrorEnvelope, isErrorCode } from "./error-codes.ts";

export interface CodedErrorOptions {
  /** Machine-readable facts: the field, the limit, the value that was refused. Never a secret. */
  details?: Record<string, unknown>;
  cause?: unknown;
}

/** The one error type that crosses a process boundary. Anything else that is thrown is a bug and maps to `internal`. */
export class CodedError extends Error {
  readonly code: ErrorCode;
  readonly details: Record<string, unknown>;

  constructor(code: ErrorCode, message: string, options: CodedErrorOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = "CodedError";
    this.code = code;
    this.details = options.details ?? {};
  }

  /** HTTP status from the code table. */
  get status(): number {
    return ERROR_CODES[this.code].status;
  }

  /** Whether the same request may succeed if sent again. */
  get retryable(): boolean {
    return ERROR_CODES[this.code].retryable;
  }

  /** Wire form. */
  toEnvelope(requestId: string): ErrorEnvelope {
    return {
      error: {
        code: this.code,
        message: this.message,
        details: this.details,
        request_id: requestId,
        retryable: this.retryable,
      },
    };
  }

  /** Reads an error answer of one of our own processes; an unreadable body gives `fallback`. */
  static fromEnvelope(body: unknown, fallback: ErrorCode, fallbackMessage: string): CodedError {
    const error =
      typeof body === "object" && body !== null ? (body as Partial<ErrorEnvelope>).error : undefined;
    if (typeof error === "object" && error !== null && isErrorCode(error.code)) {
      const message: unknown = error.message; // what the type says is what we hope to have been sent
      return new CodedError(error.code, typeof message === "string" ? message : fallbackMessage, {
        details: error.details ?? {},
      });
    }
    return new CodedError(fallback, fallbackMessage);
  }
}
