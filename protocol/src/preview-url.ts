import { z } from "zod";

/** Longest life of a preview URL: 30 days. */
const MAX_PREVIEW_SECONDS = 2_592_000;

/** Body of `POST /v1/sandboxes/{id}/ports/{port}/url`. */
export const createPreviewUrlSchema = z.strictObject({
  expires_in_seconds: z
    .number()
    .int()
    .min(1)
    .max(MAX_PREVIEW_SECONDS)
    .default(3_600)
    .describe(
      "Counted from now; at most 30 days. Default 3,600. Never later than the API key that makes it expires.",
    ),
  auto_wake: z
    .boolean()
    .default(false)
    .describe("Whether a visit wakes the sandbox, where the sandbox's own auto_wake lets it. Default false."),
});
export type CreatePreviewUrlRequest = z.output<typeof createPreviewUrlSchema>;

export const previewUrlSchema = z.object({
  id: z.string(),
  sandbox_id: z.string(),
  port: z.number().int(),
  /** Host name and port of the sandbox's own web origin. */
  host: z.string(),
  auto_wake: z.boolean(),
  created_at: z.string(),
  expires_at: z.string(),
  revoked_at: z.string().nullable(),
});
export type PreviewUrl = z.infer<typeof previewUrlSchema>;

/** Answer of a create: the only time the token is shown. */
export const createdPreviewUrlSchema = previewUrlSchema.extend({
  url: z.string().describe("To be opened in a browser: the token is in its query."),
  token: z.string().describe("For programs: send it as `X-Torpor-Token` to `host`."),
});
export type CreatedPreviewUrl = z.infer<typeof createdPreviewUrlSchema>;
