import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import type { Log } from "@torpor/base";
import { CodedError, randomText } from "@torpor/protocol";
import type { Driver, MachineHandle, MachineLimits, MachinePlace } from "../driver/driver.ts";
import type { ImageManifest, ImageStore } from "../image/image-store.ts";
import type { MachineEntry } from "../journal.ts";
import type { Router } from "../network/router.ts";
import { checkImageFits, type Headroom } from "./capacity.ts";
import { loadChanges, saveChanges } from "./guest-changes.ts";
import { GuestClient, type GuestPreparation, newHostKey } from "./guest-client.ts";
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
  /** So many images that stand on this template are about to be restored: what they need is begun meanwhile. */
  expectRestores(templateHash: string, diskMib: number, count: number): void;
  /** Boots a template anew, as it was built. On an error nothing stays. @param onPlace as of {@link RestoreTarget.restore} */
  boot(
    templateHash: string,
    diskMib: number,
    limits: MachineLimits,
    signal: AbortSignal,
    onPlace: OnPlace,
  ): Promise<MachineHandle>;
  /** What a template is like. @throws CodedError `image_incompatible` when it is gone */
  templateOf(templateHash: string): Promise<BootedTemplate>;
}

/** What is to be known of a template that is booted. */
export interface BootedTemplate {
  /** Nothing in it is newer, Unix seconds. */
  newestUnix: number;
  /** What its agent is told before it is anybody's. */
  preparation: GuestPreparation;
}

export interface SleepOptions {
  driver: Driver;
  images: ImageStore;
  target: RestoreTarget;
  clear: (slot: number) => Promise<void>;
  router: Pick<Router, "withoutAttempts">;
  headroom: () => Headroom;
  log: Log;
}

/** How long each hook before a freeze may take. */
const HOOK_TIMEOUT_MS = 10_000;
/** One that hangs would not run its hooks either: it is not waited for as long as they may take. */
const ANSWER_TIMEOUT_MS = 10_000;
const UP_TIMEOUT_MS = 60_000;

/** From the second on, connections that are being made are refused; what was about to be made then may come between. */
const CHECKPOINT_TRIES = 4;

/** The one file of an image without memory. */
const CHANGES = "changes";
/** Names, owners and attributes of the files lie in memory while it runs and not on its disk. */
const CHANGES_OVERHEAD_MIB = 1024;
/** For a notebook kernel that starts anew; whoever waits for a wake waits for it. */
const SERVICES_TIMEOUT_MS = 60_000;
const PREPARE_TIMEOUT_MS = SERVICES_TIMEOUT_MS + 15_000;

/** A machine restored from an image, still locked. */
export interface Restored {
  handle: MachineHandle;
  guest: GuestClient;
  /** What its next init must name: none but the host may say whose it is. */
  previousHostKey: string;
}

/** Writes machines to images and restores them from images. Knows nothing of who holds what. */
export class Sleep {
  readonly #options: SleepOptions;

  constructor(options: SleepOptions) {
    this.#options = options;
  }

  /**
   * Locks the guest and writes its memory and files, or its files alone, to an image. The machine still stands afterwards, locked: the caller
   * ends it or unlocks it, from when `onCopied` is called, while the image is still being checked and made durable.
   *
   * @throws what failed; no image stays then
   */
  async write(
    entry: MachineEntry,
    machine: { handle: MachineHandle; guest: GuestClient },
    image: Pick<ImageManifest, "id" | "kind" | "name" | "memory"> & Pick<SnapshotOptions, "defaults">,
    signal: AbortSignal,
    onCopied: () => void = () => {},
  ): Promise<ImageManifest> {
    const { driver, images, headroom, target, router } = this.#options;
    const { spec } = entry;
    // Memory in use bounds the image from above, but for what was written to disk inside: checked again by the file system.
    checkImageFits(image.memory ? driver.stats(machine.handle).memoryBytes / 1048576 : 0, headroom());
    const template = image.memory ? undefined : await target.templateOf(entry.templateHash);
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
    const { slot } = machine.handle.place;
    // It is to wake from this image: nothing may happen inside that the image does not know of.
    const copied = async (): Promise<void> => {
      if (image.kind === "hibernation") await driver.pause(machine.handle);
      onCopied();
    };
    const copy = (dataDir: string): Promise<void> =>
      driver.checkpoint(machine.handle, dataDir, { signal, onCopied: copied });
    const commit = (refusing: boolean): Promise<ImageManifest> =>
      images.commit(
        {
          id,
          kind,
          name: image.name,
          memory: image.memory,
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
          if (template === undefined)
            await (refusing ? router.withoutAttempts(slot, () => copy(dataDir)) : copy(dataDir));
          else {
            await mkdir(dataDir);
            await saveChanges(machine.guest, join(dataDir, CHANGES), {
              hostKey: entry.hostKey,
              newestUnix: template.newestUnix,
              maxBytes: (spec.disk_mb + CHANGES_OVERHEAD_MIB) * 1048576,
              checkRoom: () => checkImageFits(0, headroom()),
              signal,
            });
            machine.guest.close();
            await copied();
          }
        },
        image.memory ? growingFiles : [CHANGES],
      );
    for (let tries = 1; ; tries++) {
      try {
        return await commit(tries > 1);
      } catch (error) {
        const isConnecting = error instanceof CodedError && error.code === "guest_unavailable";
        if (!image.memory || !isConnecting || tries === CHECKPOINT_TRIES) throw error;
      }
    }
  }

  /** A machine is being written of which so many copies will be made at once: what those need is begun meanwhile. */
  expectCopies({ templateHash, spec }: MachineEntry, count: number): void {
    this.#options.target.expectRestores(templateHash, spec.disk_mb, count);
  }

  /**
   * Restores an image and waits until its machine takes connections; its agent, locked when the image was written, answers
   * nothing but an init. The image's checksums are read meanwhile; the machine is handed out only when they hold.
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
      await guest.waitUntilReachable(UP_TIMEOUT_MS, either);
      await verified;
      return { handle, guest, previousHostKey: manifest.host_key };
    } catch (error) {
      guest?.close();
      if (handle !== undefined) await clear(handle.place.slot);
      await verified; // a damaged image is the better explanation of a failed restore
      throw error;
    }
  }

  /**
   * Boots the template of an image that holds files alone, and gives it those files. What the template runs is started
   * anew, on them; one that does not come up keeps nothing back.
   *
   * @param onPlace as of {@link Sleep.restore}
   * @throws CodedError `image_corrupt`, `image_incompatible`, or what failed; nothing stays then
   */
  async boot(manifest: ImageManifest, signal: AbortSignal, onPlace: OnPlace): Promise<Restored> {
    const { images, target, clear, log } = this.#options;
    const { id, template_hash: hash, disk_mb: diskMib, cpu, memory_mb: memoryMib } = manifest;
    const { preparation } = await target.templateOf(hash);
    const verified = images.verify(manifest);
    verified.catch(() => {}); // looked at below, also when the boot fails first
    let handle: MachineHandle | undefined;
    let guest: GuestClient | undefined;
    try {
      handle = await target.boot(hash, diskMib, { cpu, memoryMib }, signal, onPlace);
      guest = new GuestClient(handle.place.address);
      const { locked } = await guest.waitUntilUp(UP_TIMEOUT_MS, signal);
      if (!locked) throw new CodedError("internal", `the machine booted for image ${id} is not locked`);
      await verified;
      // What is started below is the sandbox's own, and runs before init.
      const hostKey = newHostKey();
      const loaded = await loadChanges(guest, join(images.dataDir(id), CHANGES), { hostKey, signal });
      if (loaded.skipped > 0)
        log.warn({ op: "image.boot", outcome: "skipped", sandboxId: manifest.machine_id, ...loaded });
      await prepareServices(guest, preparation, hostKey, signal);
      return { handle, guest, previousHostKey: hostKey };
    } catch (error) {
      guest?.close();
      if (handle !== undefined) await clear(handle.place.slot);
      await verified;
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

async function prepareServices(
  guest: GuestClient,
  preparation: GuestPreparation,
  hostKey: string,
  signal: AbortSignal,
): Promise<void> {
  const cut = (): void => guest.close();
  signal.addEventListener("abort", cut, { once: true });
  try {
    await guest.prepare(
      { ...preparation, services_timeout_ms: SERVICES_TIMEOUT_MS, services_may_fail: true },
      { timeoutMs: PREPARE_TIMEOUT_MS, hostKey },
    );
  } finally {
    signal.removeEventListener("abort", cut);
  }
}

/** A new id of a hibernation image. */
export function newImageId(): string {
  return `img${randomText(23)}`;
}
