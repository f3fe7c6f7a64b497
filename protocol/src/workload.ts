import { z } from "zod";
import { LIMITS } from "./limits.ts";
import { STATE_KINDS } from "./state.ts";

/** A year: what comes more seldom is no pattern. */
const MAX_SECONDS = 31_536_000;

/** What is known of a workload: all that an advice is made from. What is left out is unknown, which is an answer too. */
export const workloadSchema = z.strictObject({
  survives: z
    .union([z.boolean(), z.array(z.enum(STATE_KINDS)).max(STATE_KINDS.length)])
    .optional()
    .describe("Whether anything must survive between uses, or which kinds of state; an empty list is none."),
  untrusted: z.boolean().optional().describe("Whether the code is somebody's whom you do not trust."),
  interactive: z.boolean().optional().describe("Whether somebody waits for the next answer."),
  single_tenant: z
    .boolean()
    .optional()
    .describe("Whether one sandbox would only ever hold the data of one tenant."),
  idle_gap_seconds: z
    .number()
    .min(0)
    .max(MAX_SECONDS)
    .optional()
    .describe("Usual time from the end of one use to the next."),
  setup_seconds: z
    .number()
    .min(0)
    .max(86_400)
    .optional()
    .describe("How long it takes to make a fresh sandbox useful: packages, data, a login."),
  memory_mb: z
    .number()
    .int()
    .min(LIMITS.minMemoryMb)
    .max(16_777_216)
    .optional()
    .describe("Default that of the sandbox, else 1024."),
  uses_per_day: z.number().min(0.01).max(10_000).optional(),
  use_seconds: z.number().min(0).max(86_400).optional().describe("How long one use takes. Default 60."),
});
export type Workload = z.infer<typeof workloadSchema>;
