import { z } from "zod";

export const templateSchema = z.object({
  name: z.string(),
  /** Content hash of recipe, guest agent and driver. */
  hash: z.string(),
  description: z.string(),
  size_bytes: z.number().int(),
  built_at: z.string(),
  /** Drivers with a golden snapshot to restore from. */
  golden: z.array(z.string()),
});
export type Template = z.infer<typeof templateSchema>;

/** One NDJSON line of a template build. The last line is `done` or `error`. */
export type TemplateBuildEvent =
  | { type: "progress"; stage: string; label: string; fraction: number }
  | { type: "done"; template: Template; cached: boolean }
  | { type: "error"; code: string; message: string; details?: Record<string, unknown> };
