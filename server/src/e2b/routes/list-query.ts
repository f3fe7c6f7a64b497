import { SANDBOX_STATES, type SandboxState } from "@torpor/protocol";
import { z } from "zod";

/** `limit` of E2B's lists. */
export const e2bPageLimit = z.coerce
  .number({ error: "must be a whole number" })
  .int("must be a whole number")
  .min(1)
  .max(100)
  .default(100)
  .describe("Items on a page, 1 to 100.");

/** What E2B's states are in ours. What is being made is not listed yet, and what has ended no more. */
export const STATES: Readonly<Record<"running" | "paused", readonly SandboxState[]>> = {
  paused: ["paused", "hibernated"],
  running: SANDBOX_STATES.filter(
    (state) => !["creating", "paused", "hibernated", "failed", "destroying", "destroyed"].includes(state),
  ),
};

const states = z
  .string()
  .default("running,paused")
  .transform((text, context) => {
    const found: SandboxState[] = [];
    for (const word of text.split(",")) {
      if (word === "running" || word === "paused") found.push(...STATES[word]);
      else context.addIssue({ code: "custom", message: "must be running, paused, or both with a comma" });
    }
    return found;
  })
  .describe("`running`, `paused`, or both separated by a comma.");

const startedAfter = z
  .string()
  .transform((text, context) => {
    const at = Date.parse(text);
    if (Number.isNaN(at)) context.addIssue({ code: "custom", message: "must be a time as RFC 3339 has it" });
    return at;
  })
  .describe("RFC 3339: those of that millisecond and later.");

/** Query of the second list. */
export const listV2Query = z.object({
  metadata: z.string().max(20_000).optional().describe("Pairs `key=value` joined by `&`, encoded twice."),
  state: states,
  startedAfter: startedAfter.optional(),
  template: z.string().max(256).optional(),
  order: z.enum(["asc", "desc"]).default("desc").describe("By the time of the create."),
  limit: e2bPageLimit,
  nextToken: z.string().max(512).optional(),
});

/** Reads `metadata`: pairs as in a form, whose names and values are encoded once more, as E2B's clients do. */
export function metadataPairs(text: string | undefined): Record<string, string> {
  return Object.fromEntries(
    [...new URLSearchParams(text ?? "")].map(([key, value]) => [decoded(key), decoded(value)]),
  );
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // of a client that encodes once less
  }
}
