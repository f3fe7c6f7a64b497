import { z } from "zod";

/** `manifest.json` beside a built root: what is in it, and what it was made from. Written last, before the commit. */
export const manifestSchema = z.object({
  formatVersion: z.literal(1),
  name: z.string(),
  /** Content hash of recipe, guest agent and driver; also the folder's name. */
  hash: z.string().regex(/^[0-9a-f]{64}$/),
  description: z.string(),
  /** Debian's code name; left out for one made from an image. */
  suite: z.string().optional(),
  architecture: z.string(),
  builderVersion: z.number().int(),
  driverVersion: z.string(),
  guestSha256: z.string(),
  sourceDateEpoch: z.number().int(),
  /** Digest of every file's path, mode, owner, time and content; see `digestTree`. Left out for one made from an image. */
  treeDigest: z.string().optional(),
  /** Made from a container image: its name when that was first done, and the digest of its configuration. */
  image: z.object({ reference: z.string(), configDigest: z.string() }).optional(),
  /** Disk space of the root. */
  sizeBytes: z.number().int(),
  entryCount: z.number().int(),
  packages: z.array(z.object({ name: z.string(), version: z.string() })),
  /** Environment of every process the guest agent starts, before the sandbox's own. */
  env: z.record(z.string(), z.string()),
  user: z.string(),
  workdir: z.string(),
  services: z
    .array(
      z.object({
        name: z.string(),
        command: z.array(z.string()),
        user: z.string().optional(),
        ready: z.object({ port: z.number().int(), path: z.string() }).optional(),
      }),
    )
    .default([]),
  /** RFC 3339, UTC. */
  builtAt: z.string(),
  buildSeconds: z.number(),
});
export type TemplateManifest = z.infer<typeof manifestSchema>;
