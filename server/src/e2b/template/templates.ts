import type { Clock } from "@torpor/base";
import { CodedError, LIMITS } from "@torpor/protocol";
import type { TenantScope } from "../../auth/tenant-scope.ts";
import type { Placement } from "../../host/placement.ts";
import type { SnapshotStore } from "../../store/snapshot-store.ts";
import type { BuildLogEntry, BuildLogLevel, BuildLogStore } from "../../store/build-log-store.ts";
import type { BuildRecord, BuiltTemplate, TemplateStore, TemplateTag } from "../../store/template-store.ts";
import { e2bTemplateNotFound } from "../e2b-error.ts";
import type { TemplateChoice } from "../template-reference.ts";
import type { Builds } from "./builds.ts";
import { chooseTemplate, findTemplate, taggedBuild } from "./choose-template.ts";
import { DEFAULT_TAG, requireNewName, requireTags } from "./template-name.ts";
import { requireFewUnfinished } from "./unfinished-builds.ts";

export interface TemplatesOptions {
  store: TemplateStore;
  snapshotStore: Pick<SnapshotStore, "list" | "ofBuild">;
  placement: Pick<Placement, "choose">;
  logStore: BuildLogStore;
  builds: Pick<Builds, "cancel" | "remove" | "dropUntagged">;
  clock: Clock;
}

const MAX_LISTED = 1_000;

/** Templates that were built here, as their owners see them. */
export class Templates {
  readonly #options: TemplatesOptions;

  constructor(options: TemplatesOptions) {
    this.#options = options;
  }

  /**
   * Asks for a build of the template of that name, made if it is new.
   *
   * @param asked `name` with or without a tag; without any the build gets the default tag
   * @throws CodedError invalid_request; rate_limited where too many builds are unfinished
   */
  async request(
    scope: TenantScope,
    asked: {
      name: string;
      tags: readonly string[];
      cpu: number | null;
      memoryMb: number | null;
      minFreeDiskMb: number | null;
    },
  ): Promise<{ template: BuiltTemplate; build: BuildRecord }> {
    const { name, tag } = requireNewName(asked.name);
    const named = requireTags(tag === undefined ? asked.tags : [tag, ...asked.tags]);
    const tags = named.length === 0 ? [DEFAULT_TAG] : named;
    await requireFewUnfinished(this.#options.store, scope, ["waiting", "building"]);
    return await this.#options.store.request(scope, { ...asked, name, tags }, this.#options.clock.now());
  }

  /** The caller's template of that name or id, a tag ignored. @throws CodedError template_not_found */
  async require(scope: TenantScope, idOrName: string): Promise<BuiltTemplate> {
    const template = await this.find(scope, idOrName);
    if (template === undefined) throw e2bTemplateNotFound(idOrName);
    return template;
  }

  /** As {@link Templates.require}, undefined where there is none. */
  async find(scope: TenantScope, idOrName: string): Promise<BuiltTemplate | undefined> {
    return await findTemplate(this.#options.store, scope, idOrName);
  }

  /** A build of the caller's. @throws CodedError template_not_found */
  async requireBuild(scope: TenantScope, templateId: string, buildId: string): Promise<BuildRecord> {
    const template = await this.require(scope, templateId);
    const build = await this.#options.store.findBuild(template, buildId);
    if (build === undefined)
      throw new CodedError(
        "template_not_found",
        `template '${templateId.slice(0, 80)}' has no build '${buildId.slice(0, 80)}'`,
      );
    return build;
  }

  /** What a `templateID` means in a create, see {@link chooseTemplate}. @throws CodedError template_not_found */
  async choose(scope: TenantScope, reference: string, tenant?: string): Promise<TemplateChoice> {
    return await chooseTemplate(this.#options, scope, reference, tenant);
  }

  /** The caller's templates with their builds, the newest first. */
  async list(scope: TenantScope): Promise<BuiltTemplate[]> {
    return await this.#options.store.list(scope, MAX_LISTED);
  }

  /** Its builds, the newest first. */
  async builds(template: BuiltTemplate): Promise<BuildRecord[]> {
    return await this.#options.store.builds(template);
  }

  /** Cores and MiB of the sandboxes that are made from a build; those of a create that names none while it has no image. */
  async resources(build: BuildRecord): Promise<{ cpu: number; memoryMb: number }> {
    const image = await this.#options.snapshotStore.ofBuild(build);
    return {
      cpu: image?.cpu ?? build.cpu ?? LIMITS.defaultCpu,
      memoryMb: image?.memoryMb ?? build.memoryMb ?? LIMITS.defaultMemoryMb,
    };
  }

  /** Its tags, by name. */
  async tags(template: BuiltTemplate): Promise<TemplateTag[]> {
    return await this.#options.store.tags(template);
  }

  /** Has more tags stand for the build that `name[:tag]` stands for. @throws CodedError template_not_found, invalid_request */
  async assign(scope: TenantScope, target: string, tags: readonly string[]): Promise<BuildRecord> {
    const named = requireTags(tags);
    const template = await this.require(scope, target);
    const build = await taggedBuild(this.#options.store, template, target);
    await this.#options.store.assign(build, named, this.#options.clock.now());
    await this.#options.builds.dropUntagged(template);
    return build;
  }

  /** Takes tags away; a build without any is no more. @throws CodedError template_not_found, invalid_request */
  async unassign(scope: TenantScope, name: string, tags: readonly string[]): Promise<void> {
    const template = await this.require(scope, name);
    if (tags.includes(DEFAULT_TAG))
      throw new CodedError(
        "invalid_request",
        `the tag '${DEFAULT_TAG}' cannot be removed: it is what ${template.name} without a tag means; delete the template`,
      );
    await this.#options.store.unassign(template, tags);
    await this.#options.builds.dropUntagged(template);
  }

  /** Removes a template with all its builds; sandboxes made from it live on. */
  async remove(template: BuiltTemplate, actor: string): Promise<void> {
    const { store, builds } = this.#options;
    await builds.cancel(template);
    for (const build of await store.builds(template)) await builds.remove(build, actor);
    await store.remove(template);
  }

  /** Lines of a build's log. */
  async log(
    build: BuildRecord,
    range: { from: number; limit: number; level: BuildLogLevel },
  ): Promise<BuildLogEntry[]> {
    return await this.#options.logStore.read(build, range);
  }
}
