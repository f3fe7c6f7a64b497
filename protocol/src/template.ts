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

/** What stands in a machine's spec for a template made from an image that has no name of its own: only servers know it. */
export const imageTemplateSchema = z.string().regex(/^image:[0-9a-f]{64}$/);

/** Name and password at a registry. */
export const imageCredentialsSchema = z.strictObject({
  username: z.string().min(1).max(1_024),
  password: z
    .string()
    .min(1)
    .max(64 * 1024),
});
export type ImageCredentials = z.infer<typeof imageCredentialsSchema>;

/** Asks the host for a template made from an image. */
export const imageRequestSchema = z.strictObject({
  /** A name such as `python:3.12`: looked for among the host's local images, then at a registry. */
  image: z.string().min(1).max(1_024),
  credentials: imageCredentialsSchema.nullable().default(null),
  /** Whose an image is that was given out for those credentials. */
  owner: z.string().min(1).max(512),
});
export type ImageRequest = z.input<typeof imageRequestSchema>;

/** What a build of a named template can be told. */
export const buildTemplateSchema = z.strictObject({
  image: z
    .string()
    .min(1)
    .max(4_096)
    .optional()
    .describe(
      "Made from this container image instead of a recipe: `oci:DIR[:IMAGE]`, `docker-archive:FILE[:IMAGE]`, `oci-archive:FILE[:IMAGE]` or a bare path, on the host's machine; else the name of an image, local or at a registry.",
    ),
});
