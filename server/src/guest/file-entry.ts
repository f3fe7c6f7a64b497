import type { FileEntry } from "@torpor/protocol";

/** EntryInfo as the guest writes it: proto3 JSON, where 64-bit numbers are text and defaults are left out. */
export interface GuestEntry {
  name?: string;
  type?: string;
  path?: string;
  size?: string | number;
  mode?: number;
  permissions?: string;
  owner?: string;
  group?: string;
  modifiedTime?: string;
  symlinkTarget?: string;
}

const TYPES: Readonly<Record<string, FileEntry["type"]>> = {
  FILE_TYPE_FILE: "file",
  FILE_TYPE_DIRECTORY: "dir",
  FILE_TYPE_SYMLINK: "symlink",
};

/** The guest's entry as the API shows it. */
export function toFileEntry(entry: GuestEntry): FileEntry {
  return {
    name: entry.name ?? "",
    path: entry.path ?? "",
    type: TYPES[entry.type ?? ""] ?? "other",
    size: Number(entry.size ?? 0),
    mode: entry.mode ?? 0,
    permissions: entry.permissions ?? "",
    owner: entry.owner ?? "",
    group: entry.group ?? "",
    modified_at: entry.modifiedTime ?? "",
    symlink_target: entry.symlinkTarget ?? null,
  };
}
