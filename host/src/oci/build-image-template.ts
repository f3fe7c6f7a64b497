import { createHash } from "node:crypto";
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { type Clock, run, Scope } from "@torpor/base";
import { CodedError } from "@torpor/protocol";
import { type Cgroup, type CgroupTree, joining } from "../cgroup.ts";
import { type BuildProgress, monotone } from "../template/build-progress.ts";
import { makeUnfinishedDir } from "../template/building-dir.ts";
import { fileSha256, jsonHash } from "../template/content-hash.ts";
import type { RootSurroundings } from "../driver/driver.ts";
import type { TemplateManifest } from "../template/manifest.ts";
import { removeTree } from "../template/mounts.ts";
import { lockTemplate } from "../template/template-lock.ts";
import type { StoredTemplate, TemplateStore } from "../template/template-store.ts";
import { type BuildSpace, openBuildSpace } from "./build-space.ts";
import { finishImageRoot } from "./finish-image-root.ts";
import { type ImageConfig, parseImageConfig, requireLayers, requireRunnable } from "./image-config.ts";
import { tooLarge } from "./image-failure.ts";
import { ImageRoot } from "./image-root.ts";
import type { ImageSource } from "./image-source.ts";
import { openToolGroup } from "./tool-group.ts";
import { ImageTools, type RegistryAccess } from "./image-tools.ts";

/** Part of every hash: raise it when another root is made from the same image. */
const IMAGE_BUILDER_VERSION = 2;

export interface ImageTemplateOptions {
  /** The image as it was asked for. */
  image: string;
  source: ImageSource;
  access: RegistryAccess;
  /** Whose the template is alone, where it was given out to somebody's password; null where it is anybody's. */
  owner: string | null;
  store: TemplateStore;
  guestBinaryPath: string;
  bashPath: string;
  /** Driver, version and way of running, of the golden snapshot that is made. */
  driverVersion: string;
  /** The golden snapshot's name below the template. */
  goldenName: string;
  /** The most that copy and unpacked tree may take together. */
  sizeBytes: number;
  /** Asked before each step. @throws CodedError `no_space` when there is no room for it any more */
  checkRoom: () => void;
  clock: Clock;
  cgroups: Pick<CgroupTree, "group">;
  /** Packs the root and makes its golden snapshot in `goldenDir`. */
  bake: (
    root: { dir: string; within: RootSurroundings },
    goldenDir: string,
    settings: TemplateManifest,
    signal: AbortSignal | undefined,
  ) => Promise<void>;
  onProgress: (progress: BuildProgress) => void;
  signal?: AbortSignal | undefined;
}

/**
 * Makes a template from a container image: copied by skopeo, unpacked by umoci, completed, packed and photographed. It is
 * known by the digest of the image's configuration, so that the same image, from wherever and packed however, is made once.
 * The folder appears by one rename; whatever stops it before leaves nothing that looks finished. It counts as used now, and
 * as long as its lock is held nobody can find it unused.
 *
 * @throws CodedError saying what is wrong with the image or the host; the signal's reason when aborted
 */
export async function buildImageTemplate(
  options: ImageTemplateOptions,
): Promise<{ template: StoredTemplate; cached: boolean }> {
  const group = openToolGroup(options.cgroups);
  try {
    return await buildIn(group, options);
  } catch (error) {
    if (options.signal?.aborted !== true && group.usage().oomKills > 0) throw tooLarge(options.image);
    throw error;
  } finally {
    await group.destroy();
  }
}

async function buildIn(
  group: Cgroup,
  options: ImageTemplateOptions,
): Promise<{ template: StoredTemplate; cached: boolean }> {
  const { store, image, source, sizeBytes, checkRoom, clock, signal } = options;
  const startedAt = Date.now();
  const report = monotone(options.onProgress);
  report({ stage: "prepare", label: "Looking at the image", fraction: 0 });
  await using scope = new Scope();
  const buildDir = await makeUnfinishedDir(store.templatesDir, "building");
  scope.defer(() => removeTree(buildDir));
  const { space, close } = await openBuildSpace(buildDir, sizeBytes, group.joinFiles);
  scope.defer(close);
  const tools = new ImageTools({ image, space, access: options.access, signal });
  await tools.open();

  const pinned = await pin(tools, source);
  const configText = await tools.readConfig(pinned);
  const config = parseImageConfig(image, configText);
  requireRunnable(image, config);
  const configDigest = `sha256:${createHash("sha256").update(configText).digest("hex")}`;
  const guestSha256 = await fileSha256(options.guestBinaryPath);
  const hash = jsonHash({
    imageBuilderVersion: IMAGE_BUILDER_VERSION,
    configDigest,
    guestSha256,
    driverVersion: options.driverVersion,
    owner: options.owner,
  });
  const onWait = (): void =>
    report({ stage: "prepare", label: "Waiting for another build of it", fraction: 0.5 });
  scope.defer(
    await lockTemplate(store.templatesDir, hash, { onWait, ...(signal === undefined ? {} : { signal }) }),
  );
  const known = await store.find(hash);
  if (known !== undefined) {
    await store.markUsed(hash, clock.now());
    report({ stage: "commit", label: "Already built", fraction: 1 });
    return { template: known, cached: true };
  }

  const { root, bytes: unpackedBytes } = await unpack(tools, space, pinned, options, config, report);
  report({ stage: "finish", label: "Adding the guest agent", fraction: 0 });
  const defaults = await finishImageRoot(root, { ...options, config });
  const manifest: TemplateManifest = {
    formatVersion: 1,
    name: "image",
    hash,
    description: `Image ${image}`,
    architecture: config.architecture,
    builderVersion: IMAGE_BUILDER_VERSION,
    driverVersion: options.driverVersion,
    guestSha256,
    // Nothing in it is newer, unless the image itself is from the future.
    sourceDateEpoch: Math.ceil(Date.now() / 1_000),
    image: { reference: image, configDigest },
    sizeBytes: unpackedBytes,
    entryCount: 0,
    packages: [],
    ...defaults,
    services: [],
    builtAt: new Date().toISOString(),
    buildSeconds: 0,
  };
  report({ stage: "finish", label: "Packing, and making the golden snapshot", fraction: 0.3 });
  const finishedDir = join(buildDir, "template");
  await mkdir(finishedDir, { mode: 0o700 });
  checkRoom();
  await options.bake(
    { dir: join(space.inside, "rootfs"), within: { mountsOf: space.pid, joinFiles: space.joinFiles } },
    join(finishedDir, "golden", options.goldenName),
    manifest,
    signal,
  );
  signal?.throwIfAborted();
  manifest.buildSeconds = Math.round((Date.now() - startedAt) / 100) / 10;
  await writeFile(join(finishedDir, "manifest.json"), `${JSON.stringify(manifest, null, 2)}\n`);
  report({ stage: "commit", label: "Writing to disk", fraction: 0 });
  await store.commitBuilt(finishedDir, hash);
  await store.markUsed(hash, clock.now());
  report({ stage: "commit", label: "Done", fraction: 1 });
  const template = await store.find(hash);
  if (template === undefined) throw new Error(`template ${hash} is gone right after it was made`);
  return { template, cached: false };
}

/** A registry's tag may move between two questions; what its digest stands for cannot. */
async function pin(tools: ImageTools, source: ImageSource): Promise<ImageSource> {
  if (source.kind !== "registry" || source.reference.includes("@")) return source;
  const digest = createHash("sha256")
    .update(await tools.readManifest(source))
    .digest("hex");
  const slash = source.reference.lastIndexOf("/");
  const colon = source.reference.indexOf(":", slash + 1);
  const name = colon === -1 ? source.reference : source.reference.slice(0, colon);
  return { kind: "registry", reference: `${name}@sha256:${digest}` };
}

/** @returns the unpacked tree and its bytes */
async function unpack(
  tools: ImageTools,
  space: BuildSpace,
  source: ImageSource,
  { image, sizeBytes, checkRoom, signal }: ImageTemplateOptions,
  config: ImageConfig,
  report: (progress: BuildProgress) => void,
): Promise<{ root: ImageRoot; bytes: number }> {
  report({ stage: "download", label: `Copying ${image}`, fraction: 0 });
  checkRoom();
  await tools.copy(source);
  report({ stage: "download", label: "Copied", fraction: 1 });
  signal?.throwIfAborted();
  const copied = parseImageConfig(image, await tools.readConfig(tools.copied));
  if (copied.diffIds.join() !== config.diffIds.join())
    throw new CodedError(
      "invalid_request",
      `image '${image}' was changed while it was read; build from it again`,
    );
  requireLayers(image, copied, await tools.readManifest(tools.copied));
  report({ stage: "unpack", label: "Unpacking its layers", fraction: 0 });
  checkRoom();
  await tools.unpack();
  const dir = join(space.outside, "rootfs");
  const root = await ImageRoot.open(dir, image);
  // They would be no devices of anybody's in a sandbox, and are none here, where devices do not count.
  await run(
    joining(space.joinFiles, ["find", dir, "-xdev", "(", "-type", "b", "-o", "-type", "c", ")", "-delete"]),
    { timeoutMs: 600_000 },
  );
  // As long as its files say they are, holes included: so large is what is packed.
  const { stdout } = await run(
    joining(space.joinFiles, [
      "du",
      "--summarize",
      "--apparent-size",
      "--block-size=1",
      "--one-file-system",
      dir,
    ]),
    { timeoutMs: 600_000 },
  );
  const bytes = Number.parseInt(stdout, 10);
  if (!(bytes <= sizeBytes)) throw tooLarge(image);
  report({ stage: "unpack", label: "Unpacked", fraction: 1 });
  return { root, bytes };
}
