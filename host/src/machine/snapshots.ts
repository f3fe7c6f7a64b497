import { CodedError, type MachineSnapshot, type SnapshotDefaults } from "@torpor/protocol";
import type { ImageManifest, ImageStore } from "../image/image-store.ts";

export interface SnapshotOptions {
  name?: string | null;
  /** Machines that will be made from it at once, see protocol `createSnapshotSchema`. Default 0. */
  copies?: number;
  /** What machines made from it start with, see there. Default: as in the machine itself. */
  defaults?: SnapshotDefaults | undefined;
}

/** Wire form of a snapshot's manifest, without its secrets. */
export function toSnapshot(manifest: ImageManifest): MachineSnapshot {
  const {
    id,
    name,
    machine_id,
    tenant,
    generation,
    template,
    template_hash,
    driver,
    driver_version,
    cpu,
    memory_mb,
    disk_mb,
    network,
    size_bytes,
    created_at,
  } = manifest;
  return {
    id,
    name,
    machine_id,
    tenant,
    generation,
    template,
    template_hash,
    driver,
    driver_version,
    cpu,
    memory_mb,
    disk_mb,
    network,
    size_bytes,
    created_at,
  };
}

export function snapshotNotFound(id: string): CodedError {
  return new CodedError("snapshot_not_found", `no snapshot ${id} on this host`);
}

/** @throws CodedError `snapshot_not_found`; `image_corrupt` when its manifest cannot be read */
export async function requireSnapshot(images: ImageStore, id: string): Promise<ImageManifest> {
  const manifest = await images.find(id);
  if (manifest === undefined || manifest.kind === "hibernation") throw snapshotNotFound(id);
  return manifest;
}
