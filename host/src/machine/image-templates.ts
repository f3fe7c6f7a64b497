import { lstat, readdir } from "node:fs/promises";
import { join } from "node:path";
import type { Clock, Gate } from "@torpor/base";
import { CodedError, type ImageCredentials } from "@torpor/protocol";
import type { CgroupTree } from "../cgroup.ts";
import type { Driver } from "../driver/driver.ts";
import { buildImageTemplate, type ImageTemplateOptions } from "../oci/build-image-template.ts";
import { type ImageReference, listedRegistry, parseImageReference } from "../oci/image-reference.ts";
import { type ImageSource, parseImageSource } from "../oci/image-source.ts";
import type { ImagesFolder } from "../oci/images-folder.ts";
import type { RegistryAccess } from "../oci/image-tools.ts";
import type { BuildProgress, StoredTemplate, TemplateStore } from "../template/index.ts";
import { goldenName } from "./golden.ts";
import type { ImageRoom } from "./image-room.ts";

export interface ImageTemplatesOptions {
  store: TemplateStore;
  driver: Driver;
  clock: Clock;
  folder: ImagesFolder;
  /** Registries that are asked, by host and port; `default` for the one that names without any are looked for at. */
  registries: readonly string[];
  registryAccess: Omit<RegistryAccess, "credentials">;
  guestBinaryPath: string;
  bashPath: string;
  /** The most that one may take, copy and tree together; all that nobody needs may take as much on the disk. */
  maxMib: number;
  room: ImageRoom;
  cgroups: Pick<CgroupTree, "group">;
  /** Images that are read at once. */
  gate: Gate;
  bake: ImageTemplateOptions["bake"];
}

/** What was asked for. */
export type WantedImage =
  /** By an operator: also a path on this machine. */
  | { image: string; by: "operator" }
  /** By a tenant, to whom alone belongs what was given out for its credentials. */
  | { image: string; by: "tenant"; credentials: ImageCredentials | null; owner: string };

/** The stored template of an image that nothing stands on is removed when nobody has built from it for this long. */
const UNUSED_MS = 7 * 24 * 60 * 60_000;
/** More than so many that nothing stands on are not kept: the longest unused go first. */
const MAX_UNUSED = 20;
/** But those that were asked for a moment ago stay while the disk is not full: a sandbox is about to be made. */
const FRESH_MS = 10 * 60_000;

/** Templates made from container images: found, made, and forgotten when nobody needs them. */
export class ImageTemplates {
  readonly #options: ImageTemplatesOptions;

  constructor(options: ImageTemplatesOptions) {
    this.#options = options;
  }

  /** @throws CodedError saying where the image was looked for and why it is not to be had */
  async make(
    wanted: WantedImage,
    onProgress: (progress: BuildProgress) => void,
    signal?: AbortSignal,
  ): Promise<{ template: StoredTemplate; cached: boolean }> {
    const { driver, gate, registryAccess, room, maxMib } = this.#options;
    const { source, registry } = await this.#find(wanted);
    const credentials =
      source.kind === "registry" && wanted.by === "tenant" && wanted.credentials !== null
        ? { ...wanted.credentials, registry: loginRegistry(wanted.image, registry) }
        : null;
    onProgress({ stage: "prepare", label: "Waiting for its turn", fraction: 0 });
    return await gate.run(async () => {
      signal?.throwIfAborted();
      const { bytes, release } = room.reserve(wanted.image, maxMib);
      return await buildImageTemplate({
        ...this.#options,
        sizeBytes: bytes,
        checkRoom: () => room.check(wanted.image),
        image: wanted.image,
        source,
        access: { ...registryAccess, credentials },
        owner: credentials === null || wanted.by === "operator" ? null : wanted.owner,
        driverVersion: `${driver.info.name}/${driver.info.version}/${driver.info.acceleration}`,
        goldenName: goldenName(driver),
        onProgress,
        signal,
      }).finally(release);
    });
  }

  async #find(wanted: WantedImage): Promise<{ source: ImageSource; registry: string | undefined }> {
    const path = wanted.by === "operator" ? await parseImageSource(wanted.image) : undefined;
    if (path !== undefined) return { source: path, registry: undefined };
    const reference = parseImageReference(wanted.image);
    const local = await this.#options.folder.find(reference);
    if (local !== undefined) return { source: local, registry: undefined };
    this.#requireAsked(reference);
    return { source: { kind: "registry", reference: reference.asked }, registry: reference.registry };
  }

  #requireAsked({ text, registry }: ImageReference): void {
    const { registries } = this.#options;
    if (registries.map(listedRegistry).includes(listedRegistry(registry))) return;
    const why =
      listedRegistry(registry) === "default"
        ? "no registry is asked for names without one or with docker.io (TORPOR_IMAGE_REGISTRIES leaves out 'default')"
        : `the registry ${registry} is none that this host asks: the operator lists those in TORPOR_IMAGE_REGISTRIES`;
    throw new CodedError(
      "template_not_found",
      `image '${text}' cannot be built from: it is not among the local images, and ${why}. Have the operator put it into this host's folder of images (TORPOR_IMAGES), as an OCI layout or a docker-archive of that name`,
    );
  }

  /**
   * The hashes of those that nothing stands on and that can go: nobody has asked for them in a while, or the ones that were
   * asked for since are enough, in number or bytes. Where the disk is full all can, the longest unused first.
   */
  async unused(inUse: ReadonlySet<string>): Promise<string[]> {
    const { store, clock, room, maxMib } = this.#options;
    const unused: { hash: string; unusedMs: number; bytes: number }[] = [];
    for (const { hash, manifest, names } of await store.list(() => {})) {
      if (manifest.image === undefined || names.length > 0 || inUse.has(hash)) continue;
      const bytes = await folderBytes(join(store.templatesDir, hash));
      unused.push({ hash, unusedMs: clock.now() - (await store.lastUse(hash)), bytes });
    }
    unused.sort((a, b) => a.unusedMs - b.unusedMs);
    let bytesKept = 0;
    return unused
      .filter(({ unusedMs, bytes }, index) => {
        bytesKept += bytes;
        if (room.isTight) return true;
        const isTooMuch = index >= MAX_UNUSED || bytesKept > maxMib * 1024 ** 2;
        return unusedMs > UNUSED_MS || (isTooMuch && unusedMs > FRESH_MS);
      })
      .map(({ hash }) => hash)
      .reverse();
  }
}

/** What a folder without links takes on the disk. */
async function folderBytes(dir: string): Promise<number> {
  let bytes = 0;
  for (const entry of await readdir(dir, { withFileTypes: true, recursive: true }))
    if (entry.isFile()) bytes += (await lstat(join(entry.parentPath, entry.name))).blocks * 512;
  return bytes;
}

/** Where the credentials are good. @throws CodedError `invalid_request` */
function loginRegistry(image: string, registry: string | undefined): string {
  if (registry !== undefined) return registry;
  throw new CodedError(
    "invalid_request",
    `image '${image}' cannot be built from: a username and a password are for one registry; name it in front of the image, as in registry.example.com/${image}`,
  );
}
