import { z } from "zod";

/** Body of every error answer, for the reference. */
export const errorSchema = z
  .object({
    error: z.object({
      code: z.string(),
      message: z.string(),
      details: z.record(z.string(), z.unknown()),
      request_id: z.string(),
      retryable: z.boolean(),
    }),
  })
  .describe("Every failure: what was tried, on what, why it failed and what to do.");
