import type { Clock, Gate } from "@torpor/base";
import { CodedError, type ImageCredentials } from "@torpor/protocol";
import type { Driver } from "../driver/driver.ts";
import { buildImageTemplate, type ImageTemplateOptions } from "../oci/build-image-template.ts";
import { type ImageReference, parseImageReference } from "../oci/image-reference.ts";
import { type ImageSource, parseImageSource } from "../oci/image-source.ts";
import type { ImagesFolder } from "../oci/images-folder.ts";
import type { RegistryAccess } from "../oci/image-tools.ts";
import type { BuildProgress, StoredTemplate, TemplateStore } from "../template/index.ts";
import { goldenName } from "./golden.ts";

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
  maxMib: number;
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
/** Not even those of them that were asked for a moment ago: a sandbox is about to be made. */
const FRESH_MS = 60 * 60_000;

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
    const { store, driver, gate, registryAccess } = this.#options;
    const { source, registry } = await this.#find(wanted);
    const credentials =
      source.kind === "registry" && wanted.by === "tenant" && wanted.credentials !== null
        ? { ...wanted.credentials, registry: loginRegistry(wanted.image, registry) }
        : null;
    onProgress({ stage: "prepare", label: "Waiting for its turn", fraction: 0 });
    const made = await gate.run(async () => {
      signal?.throwIfAborted();
      return await buildImageTemplate({
        ...this.#options,
        image: wanted.image,
        source,
        access: { ...registryAccess, credentials },
        owner: credentials === null || wanted.by === "operator" ? null : wanted.owner,
        driverVersion: `${driver.info.name}/${driver.info.version}/${driver.info.acceleration}`,
        goldenName: goldenName(driver),
        onProgress,
        signal,
      });
    });
    await store.markUsed(made.template.hash, this.#options.clock.now());
    return made;
  }

  async #find(wanted: WantedImage): Promise<{ source: ImageSource; registry: string | undefined }> {
    const path = wanted.by === "operator" ? await parseImageSource(wanted.image) : undefined;
    if (path !== undefined) return { source: path, registry: undefined };
    const reference = parseImageReference(wanted.image);
    const local = await this.#options.folder.find(reference);
    if (local !== undefined) return { source: local, registry: undefined };
    this.#requireAsked(reference);
    return { source: { kind: "registry", reference: reference.text }, registry: reference.registry };
  }

  #requireAsked({ text, registry }: ImageReference): void {
    const { registries } = this.#options;
    if (registries.includes(registry ?? "default")) return;
    const why =
      registry === undefined
        ? "no registry is asked for names without one (TORPOR_IMAGE_REGISTRIES leaves out 'default')"
        : `the registry ${registry} is none that this host asks: the operator lists those in TORPOR_IMAGE_REGISTRIES`;
    throw new CodedError(
      "template_not_found",
      `image '${text}' cannot be built from: it is not among the local images, and ${why}. Have the operator put it into this host's folder of images (TORPOR_IMAGES), as an OCI layout or a docker-archive of that name`,
    );
  }

  /** The hashes of those that nothing stands on and nobody has asked for in a while: they can go. */
  async unused(inUse: ReadonlySet<string>): Promise<string[]> {
    const { store, clock } = this.#options;
    const unused: { hash: string; unusedMs: number }[] = [];
    for (const { hash, manifest, names } of await store.list(() => {})) {
      if (manifest.image === undefined || names.length > 0 || inUse.has(hash)) continue;
      unused.push({ hash, unusedMs: clock.now() - (await store.lastUse(hash)) });
    }
    unused.sort((a, b) => a.unusedMs - b.unusedMs);
    return unused
      .filter(({ unusedMs }, index) => unusedMs > UNUSED_MS || (index >= MAX_UNUSED && unusedMs > FRESH_MS))
      .map(({ hash }) => hash);
  }
}

/** Where the credentials are good. @throws CodedError `invalid_request` */
function loginRegistry(image: string, registry: string | undefined): string {
  if (registry !== undefined) return registry;
  throw new CodedError(
    "invalid_request",
    `image '${image}' cannot be built from: a username and a password are for one registry; name it in front of the image, as in registry.example.com/${image}`,
  );
}
