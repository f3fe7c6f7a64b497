import { CodedError, type ErrorCode } from "@torpor/protocol";
import type { ShowError } from "../http/answer.ts";

/** Where E2B's API has another status than ours. Its clients go by `code` of the body, which is the status. */
const STATUSES: Partial<Record<ErrorCode, number>> = {
  quota_exceeded: 429, // more sandboxes at a time than one may have
  budget_exhausted: 429, // their clients know no 402
};

/** Errors as E2B's REST API has them: `{code, message}`. */
export const showE2bError: ShowError = (error, requestId) => {
  const status = STATUSES[error.code] ?? error.status;
  return {
    status,
    body: { code: status, message: error.message, error_code: error.code, request_id: requestId },
  };
};

/** What of E2B's is not here. @param what the field or feature @param why and what to do instead */
export function notYet(what: string, why: string): CodedError {
  return new CodedError("unsupported", `${what} is not supported by this server: ${why}`);
}

/** The one answer for a template or a snapshot that is not there and for one that is another's. */
export function e2bTemplateNotFound(reference: string): CodedError {
  return new CodedError("template_not_found", `template '${reference.slice(0, 200)}' not found`);
}

/** The one answer for a sandbox that never was, is another's or has ended, as E2B's clients know it. */
export function e2bSandboxNotFound(id: string, cause?: CodedError): CodedError {
  return new CodedError(
    "sandbox_not_found",
    `Sandbox "${id.slice(0, 80)}" doesn't exist or you don't have access to it`,
    cause === undefined ? {} : { cause },
  );
}
