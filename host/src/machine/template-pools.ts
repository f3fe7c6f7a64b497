import type { Clock, Gate, Log } from "@torpor/base";
import {
  CodedError,
  type ImageCredentials,
  imageTemplateSchema,
  type PoolStatus,
  type Template,
  type TemplateBuildEvent,
} from "@torpor/protocol";
import type { Driver, MachineHandle, MachineLimits, MachinePlace, MachineRoot } from "../driver/driver.ts";
import {
  type BuildProgress,
  buildTemplate,
  listRecipes,
  loadRecipe,
  type StoredTemplate,
  TEMPLATE_NAME,
  type TemplateStore,
} from "../template/index.ts";
import { bakeGolden, findGolden, findRoot, goldenName, templatePreparation } from "./golden.ts";
import type { GuestPreparation } from "./guest-client.ts";
import { ImageTemplates, type ImageTemplatesOptions } from "./image-templates.ts";
import type { MachineSource } from "./machine-parts.ts";
import type { BootedTemplate, OnPlace, RestoreTarget } from "./sleep.ts";
import { Pool, type PristineMachine } from "./pool.ts";
import type { Slots } from "./slots.ts";

export interface TemplatePoolsOptions {
  store: TemplateStore;
  driver: Driver;
  slots: Slots;
  clock: Clock;
  log: Log;
  restoreGate: Gate;
  readyTarget: number;
  shellTarget: number;
  shellDemandMs: number;
  diskMib: number;
  limits: MachineLimits;
  /** What waiting copies are given ahead. */
  preparation: () => GuestPreparation & { machine_id: string };
  /** Folders with recipes. */
  recipeDirs: readonly string[];
  guestBinaryPath: string;
  cacheDir: string;
  /** Archive to build from; default: the machine's own apt configuration. */
  mirror?: string | undefined;
  /** How templates are made from container images. */
  images: Pick<
    ImageTemplatesOptions,
    "folder" | "registries" | "registryAccess" | "bashPath" | "maxMib" | "room" | "cgroups" | "gate"
  >;
}

const IMAGE = "image:";

interface OpenPool {
  template: StoredTemplate;
  pool: Pool;
}

/** Templates ready to make machines from: each name's current build, its golden snapshot and its pool. */
export class TemplatePools implements MachineSource, RestoreTarget {
  readonly #options: TemplatePoolsOptions;
  /** By template name. */
  readonly #open = new Map<string, Promise<OpenPool>>();
  /** Hashes of templates that machines are being made from, each as often. */
  readonly #making: string[] = [];
  /** Hashes of templates that are about to be removed: no pool of them is opened. */
  readonly #removing = new Set<string>();
  readonly #images: ImageTemplates;

  constructor(options: TemplatePoolsOptions) {
    this.#options = options;
    this.#images = new ImageTemplates({
      ...options,
      ...options.images,
      bake: async ({ dir, within }, goldenDir, settings, signal) => {
        await bakeGolden({ ...options, rootfsDir: dir, within, settings, goldenDir, signal });
      },
    });
  }

  /** Opens a pool for every template that has a golden snapshot of this driver; others wait for their first build. */
  async start(): Promise<void> {
    const { store, driver, log } = this.#options;
    const templates = await store.list((hash, error) =>
      log.error({ op: "template.list", template: hash, err: error }),
    );
    for (const template of templates) {
      if ((await findGolden(template.goldenDir(goldenName(driver)), driver)) === undefined) continue;
      for (const name of template.names)
        this.#pool(name).catch((error: unknown) =>
          log.error({ op: "pool.open", template: name, err: error }),
        );
    }
  }

  async acquire(
    name: string,
    diskMib: number,
    signal: AbortSignal,
  ): Promise<PristineMachine & { template: StoredTemplate }> {
    const { template, pool } = await this.#pool(name);
    this.#making.push(template.hash);
    try {
      return { ...(await pool.acquire(diskMib, signal)), template };
    } finally {
      // Once whoever asked has noted what it stands on, which it does as soon as it has it.
      setImmediate(() => this.#making.splice(this.#making.indexOf(template.hash), 1));
    }
  }

  /** A create is about to be asked for, see {@link Pool.expect}. */
  expect(name: string, diskMib: number): void {
    void this.#open.get(name)?.then(
      ({ pool }) => pool.expect(diskMib),
      () => {}, // whoever asks for it is told
    );
  }

  /** From the pool that serves this build of a template, else made on the spot: an older build has no pool any more. */
  async restore(
    templateHash: string,
    diskMib: number,
    imageDir: string,
    signal: AbortSignal,
    onPlace: OnPlace,
  ): Promise<MachineHandle> {
    const { driver, limits } = this.#options;
    const pool = await this.#poolOf(templateHash);
    if (pool !== undefined) return pool.restore(diskMib, imageDir, signal, onPlace);
    const root = await this.#rootOf(templateHash);
    return this.#inNewPlace(diskMib, onPlace, (place) => driver.start(root, place, limits, imageDir, signal));
  }

  expectRestores(templateHash: string, diskMib: number, count: number): void {
    this.#options.slots.expect(count);
    void this.#poolOf(templateHash).then((pool) => pool?.expectRestores(count, diskMib));
  }

  async boot(
    templateHash: string,
    diskMib: number,
    limits: MachineLimits,
    signal: AbortSignal,
    onPlace: OnPlace,
  ): Promise<MachineHandle> {
    const root = await this.#rootOf(templateHash);
    const { driver } = this.#options;
    return this.#inNewPlace(diskMib, onPlace, (place) => driver.boot(root, place, limits, signal));
  }

  /** The one that serves this build of a template, if there is one. */
  async #poolOf(templateHash: string): Promise<Pool | undefined> {
    for (const opening of this.#open.values()) {
      const open = await opening.catch(() => undefined);
      if (open?.template.hash === templateHash) return open.pool;
    }
    return undefined;
  }

  /** Not by the golden snapshot, which may be none that this Torpor makes new machines from. */
  async #rootOf(templateHash: string): Promise<MachineRoot> {
    const { store, driver } = this.#options;
    const template = await store.find(templateHash);
    const root = template === undefined ? undefined : findRoot(template.goldenDir(goldenName(driver)));
    if (root === undefined) throw templateGone(templateHash);
    return root;
  }

  async templateOf(templateHash: string): Promise<BootedTemplate> {
    const template = await this.#options.store.find(templateHash);
    if (template === undefined) throw templateGone(templateHash);
    const { manifest } = template;
    // What a recipe sets may be in the future; what was built then was not.
    const newestUnix = Math.min(manifest.sourceDateEpoch, Math.ceil(Date.parse(manifest.builtAt) / 1000));
    return { newestUnix, preparation: templatePreparation(manifest) };
  }

  #inNewPlace(
    diskMib: number,
    onPlace: OnPlace,
    start: (place: MachinePlace) => Promise<MachineHandle>,
  ): Promise<MachineHandle> {
    const { slots, restoreGate } = this.#options;
    return restoreGate.run(async () => {
      const place = await slots.make(diskMib, "internet");
      try {
        await onPlace(place);
        return await start(place);
      } catch (error) {
        await slots.clear(place.slot);
        throw error;
      }
    });
  }

  async status(): Promise<PoolStatus[]> {
    const settled = await Promise.allSettled(this.#open.values());
    return settled.flatMap((outcome) =>
      outcome.status === "fulfilled" && !outcome.value.pool.status.template.startsWith(IMAGE)
        ? [outcome.value.pool.status]
        : [],
    );
  }

  #pool(name: string): Promise<OpenPool> {
    let opening = this.#open.get(name);
    if (opening === undefined) {
      opening = this.#openPool(name);
      opening.catch(() => this.#open.delete(name)); // the next create looks again
      this.#open.set(name, opening);
    }
    return opening;
  }

  async #openPool(name: string): Promise<OpenPool> {
    const {
      store,
      driver,
      slots,
      clock,
      log,
      readyTarget,
      shellTarget,
      shellDemandMs,
      diskMib,
      limits,
      restoreGate,
      preparation,
    } = this.#options;
    const isUnnamedImage = imageTemplateSchema.safeParse(name).success;
    const template = isUnnamedImage ? await store.find(name.slice(IMAGE.length)) : await store.resolve(name);
    if (template === undefined)
      throw new CodedError(
        "template_not_found",
        "the template of this image is not on the host any more; build it again",
      );
    if (this.#removing.has(template.hash))
      throw new CodedError("template_not_found", `template ${name} is being removed; build it again`);
    const golden = await findGolden(template.goldenDir(goldenName(driver)), driver);
    if (golden === undefined) {
      throw new CodedError(
        "template_not_ready",
        `template ${name} has no golden snapshot made by ${driver.info.name} ${driver.info.version}; run \`torpor template build ${name}\``,
        { details: { template: name } },
      );
    }
    const pool = new Pool({
      template: { name, golden },
      driver,
      slots,
      clock,
      log,
      // A template is built from it now and then: nothing waits for that.
      readyTarget: isUnnamedImage ? 0 : readyTarget,
      shellTarget: isUnnamedImage ? 0 : shellTarget,
      shellDemandMs,
      diskMib,
      limits,
      restoreGate,
      preparation,
    });
    pool.start();
    return { template, pool };
  }

  /** Builds a template and bakes its golden snapshot, telling how far it is. What exists already is not made again. */
  async build(
    name: string,
    report: (event: TemplateBuildEvent) => void,
    signal?: AbortSignal,
  ): Promise<{ template: Template; cached: boolean }> {
    const { driver, guestBinaryPath, cacheDir, recipeDirs, store, mirror } = this.#options;
    const recipe = await loadRecipe(name, recipeDirs);
    const built = await buildTemplate({
      recipe,
      guestBinaryPath,
      driverVersion: `${driver.info.name}/${driver.info.version}`,
      templatesDir: store.templatesDir,
      cacheDir,
      ...(mirror === undefined ? {} : { mirror }),
      onProgress: (progress) => report({ type: "progress", ...progress }),
      ...(signal === undefined ? {} : { signal }),
    });
    report({ type: "progress", stage: "golden", label: "Baking the golden snapshot", fraction: 0 });
    const baked = await this.#bakeMissing(built, signal);
    report({ type: "progress", stage: "golden", label: "Baking the golden snapshot", fraction: 1 });
    await this.#replacePool(name, built.hash);
    return { template: await this.#describe(built), cached: built.cached && !baked };
  }

  /** As {@link TemplatePools.build}, from a container image that an operator names. */
  async buildFromImage(
    name: string,
    image: string,
    report: (event: TemplateBuildEvent) => void,
    signal?: AbortSignal,
  ): Promise<{ template: Template; cached: boolean }> {
    if (!TEMPLATE_NAME.test(name))
      throw new CodedError(
        "invalid_request",
        `'${name.slice(0, 80)}' cannot be a template's name: use lower-case letters, digits and hyphens`,
      );
    const { store, recipeDirs } = this.#options;
    if ((await listRecipes(recipeDirs)).includes(name))
      throw new CodedError(
        "already_exists",
        `template ${name} is made from a recipe of that name; choose another name for the image`,
      );
    const { template, cached } = await this.#images.make(
      { image, by: "operator" },
      progressOf(report),
      signal,
    );
    await store.commitName(name, template.hash);
    await this.#replacePool(name, template.hash);
    return { template: { ...(await this.#describe(template)), name }, cached };
  }

  /** The template of an image that a tenant builds from: it has no name but the one in the answer, and no waiting machines. */
  async prepareImage(
    wanted: { image: string; credentials: ImageCredentials | null; owner: string },
    report: (event: TemplateBuildEvent) => void,
    signal?: AbortSignal,
  ): Promise<{ template: Template; cached: boolean }> {
    const { template, cached } = await this.#images.make(
      { ...wanted, by: "tenant" },
      progressOf(report),
      signal,
    );
    return { template: { ...(await this.#describe(template)), name: `${IMAGE}${template.hash}` }, cached };
  }

  /**
   * Removes templates of images that nobody needs any more.
   *
   * @param templatesInUse asked again for each, when nobody can build from it meanwhile
   */
  async sweepImages(templatesInUse: () => Promise<ReadonlySet<string>>): Promise<void> {
    for (const hash of await this.#images.unused(await templatesInUse()))
      await this.#removeUnused(
        hash,
        hash,
        async () => !(await this.#images.unused(await templatesInUse())).includes(hash),
      ).catch((error: unknown) => {
        if (!(error instanceof CodedError && error.code === "conflict")) throw error;
      });
  }

  /**
   * Removes a template unless it is needed, which is asked once more when nothing can be made from it any more.
   *
   * @throws CodedError `conflict` when it is needed
   */
  async #removeUnused(nameOrHash: string, hash: string, isNeeded: () => Promise<boolean>): Promise<void> {
    const inUse = async (): Promise<boolean> => (await isNeeded()) || this.#making.includes(hash);
    try {
      await this.#options.store.remove(nameOrHash, {
        inUse: async () => {
          if (await inUse()) return true;
          this.#removing.add(hash);
          for (const [name, opening] of this.#open) {
            const open = await opening.catch(() => undefined);
            if (open?.template.hash === hash) await this.#close(name);
          }
          return inUse();
        },
      });
    } finally {
      this.#removing.delete(hash);
    }
  }

  async #close(name: string): Promise<void> {
    const open = await this.#open.get(name)?.catch(() => undefined);
    this.#open.delete(name);
    await open?.pool.stop();
  }

  async #bakeMissing(template: StoredTemplate, signal: AbortSignal | undefined): Promise<boolean> {
    const { driver, slots, limits, diskMib } = this.#options;
    const goldenDir = template.goldenDir(goldenName(driver));
    if ((await findGolden(goldenDir, driver)) !== undefined) return false;
    await bakeGolden({
      rootfsDir: template.rootfsDir,
      settings: template.manifest,
      goldenDir,
      driver,
      slots,
      limits,
      diskMib,
      signal,
    });
    return true;
  }

  /** Makes `name` serve from the build `hash`: an older build's pool is ended, its leased machines live on. */
  async #replacePool(name: string, hash: string): Promise<void> {
    const current = await this.#open.get(name)?.catch(() => undefined);
    if (current?.template.hash === hash) return;
    this.#open.delete(name);
    await this.#pool(name);
    await current?.pool.stop();
  }

  async list(): Promise<Template[]> {
    const { store, log } = this.#options;
    const templates = await store.list((hash, error) =>
      log.error({ op: "template.list", template: hash, err: error }),
    );
    // A build that no name leads to is kept for the machines that stand on it, not offered.
    const named = await Promise.all(
      templates
        .filter(({ names }) => names.length > 0)
        .map(async (template) => {
          const described = await this.#describe(template);
          return template.names.map((name) => ({ ...described, name }));
        }),
    );
    return named.flat().sort((a, b) => a.name.localeCompare(b.name));
  }

  /**
   * Removes a name, and with its last name the template; see {@link TemplateStore.remove}.
   *
   * @param templatesInUse asked under the template's lock
   * @throws CodedError `template_not_found`, or `conflict` when a machine stands on it
   */
  async remove(nameOrHash: string, templatesInUse: () => Promise<ReadonlySet<string>>): Promise<void> {
    const { store } = this.#options;
    const { hash } = (await store.find(nameOrHash)) ?? (await store.resolve(nameOrHash));
    await this.#removeUnused(nameOrHash, hash, async () => (await templatesInUse()).has(hash));
    await this.#close(nameOrHash); // where other names lead on to the build
  }

  async #describe(template: StoredTemplate): Promise<Template> {
    const { driver } = this.#options;
    const golden = await findGolden(template.goldenDir(goldenName(driver)), driver);
    return {
      name: template.names[0] ?? template.name,
      hash: template.hash,
      description: template.manifest.description,
      size_bytes: template.manifest.sizeBytes,
      built_at: template.manifest.builtAt,
      golden: golden === undefined ? [] : [driver.info.name],
    };
  }

  /** Ends every waiting machine. */
  async stop(): Promise<void> {
    const settled = await Promise.allSettled(this.#open.values());
    this.#open.clear();
    for (const outcome of settled) if (outcome.status === "fulfilled") await outcome.value.pool.stop();
  }
}

function templateGone(hash: string): CodedError {
  return new CodedError(
    "image_incompatible",
    `the template it stands on (${hash.slice(0, 16)}) is not on this host any more; build it again`,
    { details: { template_hash: hash } },
  );
}

function progressOf(report: (event: TemplateBuildEvent) => void): (progress: BuildProgress) => void {
  return (progress) => report({ type: "progress", ...progress });
}
