import type { Clock } from "@torpor/base";
import { CodedError } from "@torpor/protocol";
import type { TenantScope } from "../../auth/tenant-scope.ts";
import type { Placement } from "../../host/placement.ts";
import type { SnapshotRecord, SnapshotStore } from "../../store/snapshot-store.ts";
import {
  type BuildRecord,
  type BuiltTemplate,
  type TemplateStore,
  tenantOf,
} from "../../store/template-store.ts";
import { e2bTemplateNotFound } from "../e2b-error.ts";
import { ownTemplateOf, resolveTemplate, snapshotIdOf, type TemplateChoice } from "../template-reference.ts";
import { DEFAULT_TAG, isEveryServers, readReference } from "./template-name.ts";

/** Where what a `templateID` may mean is looked up. */
export interface ChoiceParts {
  store: TemplateStore;
  snapshotStore: Pick<SnapshotStore, "list">;
  placement: Pick<Placement, "choose">;
  clock: Clock;
}

/**
 * What a `templateID` means in a create: the image of a template that was built here, by its name or id and a tag; a snapshot
 * by its id; a template of this server; the newest snapshot of that name. In this order, so that a snapshot's name never
 * takes the place of a template.
 *
 * @param tenant whose sandbox it is for, where the create names one: a name means a snapshot of that tenant's and of no other,
 * also to a key that may see them all. Default: the tenant of what the caller makes
 * @throws CodedError template_not_found
 */
export async function chooseTemplate(
  parts: ChoiceParts,
  scope: TenantScope,
  reference: string,
  tenant?: string,
): Promise<TemplateChoice> {
  const template = await findTemplate(parts.store, scope, reference);
  if (template === undefined)
    return (await namedSnapshot(parts, scope, reference, tenant)) ?? resolveTemplate(reference);
  const { snapshotId } = await taggedBuild(parts.store, template, reference);
  if (snapshotId === null) throw e2bTemplateNotFound(reference);
  return { from_snapshot: snapshotId };
}

async function namedSnapshot(
  { snapshotStore, placement, clock }: ChoiceParts,
  scope: TenantScope,
  reference: string,
  namedTenant: string | undefined,
): Promise<TemplateChoice | undefined> {
  const read = readReference(reference);
  if (snapshotIdOf(reference) !== undefined || (read !== undefined && isEveryServers(read))) return undefined;
  const tenant = scope.tenant ?? namedTenant ?? tenantOf(scope);
  const ofName = async (name: string): Promise<SnapshotRecord | undefined> =>
    (await snapshotStore.list(scope, { name, tenant, limit: 1, now: clock.now() })).items[0];
  const withoutTag = reference.endsWith(`:${DEFAULT_TAG}`)
    ? reference.slice(0, -DEFAULT_TAG.length - 1)
    : undefined;
  const snapshot =
    (await ofName(reference)) ?? (withoutTag === undefined ? undefined : await ofName(withoutTag));
  if (snapshot === undefined) return undefined;
  const own = ownTemplateOf(reference);
  return own !== undefined && (await serverHas(placement, own)) ? undefined : { from_snapshot: snapshot.id };
}

/** Whether the server has a template of that name. */
export async function serverHas(placement: Pick<Placement, "choose">, name: string): Promise<boolean> {
  const host = await placement.choose({ cpu: 0, memoryMb: 0, diskMb: 0 });
  return (await host.client.listTemplates()).some((template) => template.name === name);
}

/** The caller's template of that name or id, whatever tag stands behind it. */
export async function findTemplate(
  store: TemplateStore,
  scope: TenantScope,
  reference: string,
): Promise<BuiltTemplate | undefined> {
  const read = readReference(reference);
  return read === undefined ? undefined : await store.find(scope, read.name);
}

/** The build that the tag of a reference stands for, or the default tag without one. @throws CodedError template_not_found */
export async function taggedBuild(
  store: TemplateStore,
  template: BuiltTemplate,
  reference: string,
): Promise<BuildRecord> {
  const tag = readReference(reference)?.tag ?? DEFAULT_TAG;
  const build = await store.tagged(template, tag);
  if (build === undefined)
    throw new CodedError(
      "template_not_found",
      `template '${reference.slice(0, 200)}' not found: no build of ${template.name} that is ready has the tag '${tag}'`,
    );
  return build;
}
