import type { FileEntryWire } from "./wire.ts";

/** A file, directory or link inside a sandbox. */
export interface FileEntry {
  name: string;
  path: string;
  /** Of the target, when the entry is a link that resolves. */
  type: "file" | "dir" | "symlink" | "other";
  sizeBytes: number;
  /** Permission bits, e.g. 0o644. */
  mode: number;
  /** As `ls -l` writes them. */
  permissions: string;
  owner: string;
  group: string;
  modifiedAt: Date;
  /** Fully resolved target; null when the entry is no link. */
  symlinkTarget: string | null;
}

export function fileEntryFromWire(wire: FileEntryWire): FileEntry {
  return {
    name: wire.name,
    path: wire.path,
    type: wire.type,
    sizeBytes: wire.size,
    mode: wire.mode,
    permissions: wire.permissions,
    owner: wire.owner,
    group: wire.group,
    modifiedAt: new Date(wire.modified_at),
    symlinkTarget: wire.symlink_target,
  };
}
