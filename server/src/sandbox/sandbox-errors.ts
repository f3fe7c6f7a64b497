import { CodedError } from "@torpor/protocol";
import type { SandboxRecord } from "../store/sandbox-record.ts";

/** The one answer for an id that does not exist and for one that is another tenant's. */
export function sandboxNotFound(id: string): CodedError {
  return new CodedError(
    "sandbox_not_found",
    `there is no sandbox ${id.slice(0, 80)}: it never existed, or it ended more than 7 days ago; list yours with GET /v1/sandboxes`,
  );
}

/** Work asked of a sandbox that has ended or is ending. */
export function sandboxEnded(record: SandboxRecord): CodedError {
  const reason = record.reason ?? "user";
  const when = record.endedAt === null ? "is ending" : `ended at ${new Date(record.endedAt).toISOString()}`;
  return new CodedError(
    "sandbox_ended",
    `sandbox ${record.id} ${when} (${reason}), so it can do no more work; create a new one`,
    {
      details: { reason, state: record.state },
    },
  );
}
