import { expect, it } from "vitest";
import * as sdk from "@torpor/sdk";
import { FakeServer, SANDBOX_ID, sendError } from "./fake-server.ts";

it.each([
  [400, "invalid_request", sdk.InvalidRequestError],
  [400, "invalid_path", sdk.InvalidRequestError],
  [401, "unauthenticated", sdk.AuthenticationError],
  [403, "permission_denied", sdk.PermissionError],
  [403, "quota_exceeded", sdk.QuotaExceededError],
  [404, "sandbox_not_found", sdk.NotFoundError],
  [405, "method_not_allowed", sdk.InvalidRequestError],
  [409, "idempotency_mismatch", sdk.ConflictError],
  [410, "sandbox_ended", sdk.SandboxEndedError],
  [413, "payload_too_large", sdk.InvalidRequestError],
  [416, "range_not_satisfiable", sdk.InvalidRequestError],
  [429, "capacity_exhausted", sdk.CapacityError],
  [429, "rate_limited", sdk.RateLimitError],
  [500, "internal", sdk.TorporError],
  [503, "guest_unavailable", sdk.UnavailableError],
  [504, "deadline_exceeded", sdk.TimeoutError],
  [507, "no_space", sdk.NoSpaceError],
  [418, "a_code_of_the_future", sdk.TorporError],
  [503, "constructor", sdk.UnavailableError],
])("%i %s becomes its own class", async (status, code, Class) => {
  await using server = await FakeServer.start();
  const details = {
    reason: "oom",
    issues: [{ path: "ttl_seconds", message: "must be at least 1" }, "nonsense"],
  };
  server.on("GET", "/v1/sandboxes/{id}", ({ response }) => {
    sendError(response, status, code, "what, why, what to do", { details, headers: { "retry-after": "7" } });
  });
  const error = await server
    .client({ maxRetries: 0 })
    .sandboxes.get(SANDBOX_ID)
    .catch((caught: unknown) => caught);
  expect(error).toBeInstanceOf(Class);
  if (!(error instanceof sdk.TorporError)) throw error;
  expect(error.name).toBe(Class.name);
  expect(error).toMatchObject({
    code,
    status,
    details,
    message: "what, why, what to do",
    requestId: "req-1",
  });
  expect(error.retryAfterMs).toBe(7000);
  if (error instanceof sdk.SandboxEndedError) expect(error.reason).toBe("oom");
  if (error instanceof sdk.InvalidRequestError) {
    expect(error.issues).toEqual([{ path: "ttl_seconds", message: "must be at least 1" }]);
  }
});
