import { expect, it } from "vitest";
import { inCommandLineWords } from "../src/command-line-words.ts";

it.each([
  ["list yours with GET /v1/sandboxes", "list yours with 'torpor ls'"],
  ["list yours with GET /v1/snapshots", "list yours with 'torpor snapshot ls'"],
  ["wake it first with POST /v1/sandboxes/s1/wake", "wake it first with 'torpor wake s1'"],
  ["list them with GET /v1/sandboxes/s1/urls", "list them with 'torpor port ls s1'"],
  ["set its limits with PATCH /v1/accounts/acme", "set its limits with 'torpor account set-limits acme'"],
  ["of itself; ask with ?wake=true to wake it", "of itself; add --wake to wake it"],
  [
    "follow it with GET /v1/sandboxes/s1/processes/e1/output",
    "follow it with GET /v1/sandboxes/s1/processes/e1/output",
  ],
])("%s", (said, expected) => {
  expect(inCommandLineWords(said)).toBe(expected);
});

it("names an option where the API names a field, and only where it does", () => {
  const issues = [
    { path: "tenant", message: "is required: a session belongs to one tenant" },
    { path: "ttl_seconds", message: "must be at least 1" },
    { path: "metadata", message: "is too large" },
  ];
  const message = issues.map((issue) => `${issue.path} ${issue.message}`).join("; ");
  expect(inCommandLineWords(message, { issues })).toBe(
    "--tenant is required: a session belongs to one tenant; --ttl must be at least 1; metadata is too large",
  );
  expect(inCommandLineWords("tenant is unknown", {})).toBe("tenant is unknown");
});
