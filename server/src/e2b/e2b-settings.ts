import { z } from "zod";

/** What a sandbox made through E2B's API has that ours has no words for. Kept with its record. */
export const e2bSettingsSchema = z.object({
  /** Whether anybody who knows its address reaches its ports; otherwise it takes the traffic token. */
  publicTraffic: z.boolean(),
  /** The Host that programs inside see, with `${PORT}` for the port; null for the one asked for. */
  maskRequestHost: z.string().nullable(),
  /** How long it lives from a wake by traffic, seconds. */
  wakeTtlSeconds: z.number().int().positive(),
  /** What it was made from, as its create named it. */
  template: z.string(),
});
export type E2bSettings = z.infer<typeof e2bSettingsSchema>;
