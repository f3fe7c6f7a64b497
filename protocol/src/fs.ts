import { z } from "zod";
import { guestPathSchema } from "./exec.ts";

export const FILE_TYPES = ["file", "dir", "symlink", "other"] as const;

/** One file system entry as `fs/stat` and `fs/dir` show it. */
export const fileEntrySchema = z.object({
  name: z.string(),
  path: z.string(),
  /** Of the target, when the entry is a symlink that resolves. */
  type: z.enum(FILE_TYPES),
  size: z.number().int(),
  /** Permission bits, e.g. 0o644 = 420. */
  mode: z.number().int(),
  /** As `ls -l` writes them, e.g. `-rw-r--r--`. */
  permissions: z.string(),
  owner: z.string(),
  group: z.string(),
  modified_at: z.string(),
  /** Fully resolved target, or null when the entry is no symlink. */
  symlink_target: z.string().nullable(),
});
export type FileEntry = z.infer<typeof fileEntrySchema>;

/** Body of `POST .../fs/move`. */
export const moveSchema = z.strictObject({ source: guestPathSchema, destination: guestPathSchema });

/**
 * One change seen by `GET .../fs/watch` (NDJSON). `name` is relative to the watched directory. `missed`, of `.`, says that
 * a snapshot or a fork cut the watch off for a moment, and changes in it may not have been told.
 */
export interface FileChange {
  type: "create" | "write" | "remove" | "rename" | "chmod" | "missed";
  name: string;
}
