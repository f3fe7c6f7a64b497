import type { Log } from "@torpor/base";
import { CodedError, randomText } from "@torpor/protocol";
import type { Driver, MachineHandle, MachinePlace } from "../driver/driver.ts";
import type { ImageManifest, ImageStore } from "../image/image-store.ts";
import type { MachineEntry } from "../journal.ts";
import { checkImageFits, type Headroom } from "./capacity.ts";
import { GuestClient } from "./guest-client.ts";
import type { SnapshotOptions } from "./snapshots.ts";

/** Awaited with the place of a machine before an image goes into it. */
export type OnPlace = (place: MachinePlace) => Promise<void> | void;

/** Where images are restored to. */
export interface RestoreTarget {
  /**
   * Restores an image that stands on this template, into an empty machine where one waits. On an error nothing stays.
   *
   * @param onPlace awaited before the image goes into its place
   */
  restore(
    templateHash: string,
    diskMib: number,
    imageDir: string,
    signal: AbortSignal,
    onPlace: OnPlace,
  ): Promise<MachineHandle>;
}

export interface SleepOptions {
  driver: Driver;
  images: ImageStore;
  target: RestoreTarget;
  clear: (slot: number) => Promise<void>;
  headroom: () => Headroom;
  log: Log;
}

/** How long each hook before a freeze may take. */
const HOOK_TIMEOUT_MS = 10_000;
/** One that hangs would not run its hooks either: it is not waited for as long as they may take. */
const ANSWER_TIMEOUT_MS = 10_000;
const UP_TIMEOUT_MS = 60_000;

/** A machine restored from an image, still locked. */
export interface Restored {
  handle: MachineHandle;
  guest: GuestClient;
}

/** Writes machines to images and restores them from images. Knows nothing of who holds what. */
export class Sleep {
  readonly #options: SleepOptions;

  constructor(options: SleepOptions) {
    this.#options = options;
  }

  /**
   * Locks the guest and writes its memory and files to an image. The machine still stands afterwards, locked: the caller
   * ends it or unlocks it, from when `onCopied` is called, while the image is still being checked and made durable.
   *
   * @throws what failed; no image stays then
   */
  async write(
    entry: MachineEntry,
    machine: { handle: MachineHandle; guest: GuestClient },
    image: Pick<ImageManifest, "id" | "kind" | "name"> & Pick<SnapshotOptions, "defaults">,
    signal: AbortSignal,
    onCopied: () => void = () => {},
  ): Promise<ImageManifest> {
    const { driver, images, headroom } = this.#options;
    const { spec } = entry;
    // Memory in use bounds the image from above, but for what was written to disk inside: checked again by the file system.
    checkImageFits(driver.stats(machine.handle).memoryBytes / 1048576, headroom());
    // A hook that takes its time must not hold up a destroy.
    const cut = (): void => machine.guest.close();
    signal.addEventListener("abort", cut, { once: true });
    try {
      await machine.guest.health(ANSWER_TIMEOUT_MS);
      await machine.guest.freeze(entry.hostKey, HOOK_TIMEOUT_MS);
    } finally {
      signal.removeEventListener("abort", cut);
    }
    signal.throwIfAborted();
    const { name, version, acceleration, growingFiles } = driver.info;
    const { id, kind, defaults } = image;
    return images.commit(
      {
        id,
        kind,
        name: image.name,
        machine_id: entry.id,
        tenant: spec.tenant,
        generation: entry.generation,
        template: spec.template,
        template_hash: entry.templateHash,
        driver: name,
        driver_version: version,
        acceleration,
        cpu: spec.cpu,
        memory_mb: spec.memory_mb,
        disk_mb: spec.disk_mb,
        network: spec.network,
        host_key: entry.hostKey,
        settings: { ...entry.settings, ...defaults, env: { ...entry.settings.env, ...defaults?.env } },
      },
      async (dataDir) => {
        await driver.checkpoint(machine.handle, dataDir, signal);
        // It is to wake from this image: nothing may happen inside that the image does not know of.
        if (image.kind === "hibernation") await driver.pause(machine.handle);
        onCopied();
      },
      growingFiles,
    );
  }

  /**
   * Restores an image and waits for the guest's first answer. The image's checksums are read
   * meanwhile; the machine is handed out only when they hold.
   *
   * @param onPlace awaited, with the machine's place, before the image goes into it: what is restored goes on at once, long
   *   before its agent is unlocked, and must find its network policy in force
   * @throws CodedError `image_corrupt`, `image_incompatible`, or what failed; nothing stays then
   */
  async restore(manifest: ImageManifest, signal: AbortSignal, onPlace: OnPlace): Promise<Restored> {
    const { images, target, clear } = this.#options;
    this.checkCompatible(manifest);
    const damaged = new AbortController();
    const verified = images.verify(manifest);
    verified.catch((error: unknown) => damaged.abort(error)); // looked at below, also when the restore fails first
    const either = AbortSignal.any([signal, damaged.signal]);
    let handle: MachineHandle | undefined;
    let guest: GuestClient | undefined;
    try {
      const imageDir = images.dataDir(manifest.id);
      handle = await target.restore(manifest.template_hash, manifest.disk_mb, imageDir, either, onPlace);
      guest = new GuestClient(handle.place.address);
      const { locked } = await guest.waitUntilUp(UP_TIMEOUT_MS, either);
      if (!locked)
        throw new CodedError("internal", `the machine restored from image ${manifest.id} is not locked`);
      await verified;
      return { handle, guest };
    } catch (error) {
      guest?.close();
      if (handle !== undefined) await clear(handle.place.slot);
      await verified; // a damaged image is the better explanation of a failed restore
      throw error;
    }
  }

  /** @throws CodedError `image_incompatible` saying what differs */
  checkCompatible(manifest: ImageManifest): void {
    const { name, version, acceleration } = this.#options.driver.info;
    const made = `${manifest.driver} ${manifest.driver_version} (${manifest.acceleration})`;
    const has = `${name} ${version} (${acceleration})`;
    if (made !== has) {
      throw new CodedError(
        "image_incompatible",
        `image ${manifest.id} was made by ${made} and this host runs ${has}; a snapshot restores only under the build that made it. Install that build, or make the sandbox anew`,
        { details: { made_by: made, host_has: has } },
      );
    }
  }
}

/** A new id of a hibernation image. */
export function newImageId(): string {
  return `img${randomText(23)}`;
}
