import { CodedError } from "@torpor/protocol";
import type { TenantScope } from "../../auth/tenant-scope.ts";
import type { BuildRecord, BuiltTemplate, TemplateStore } from "../../store/template-store.ts";
import { e2bTemplateNotFound } from "../e2b-error.ts";
import { resolveTemplate, type TemplateChoice } from "../template-reference.ts";
import { DEFAULT_TAG, readReference } from "./template-name.ts";

/**
 * What a `templateID` means in a create: the image of a template that was built here, by its name or id and a tag, else a
 * snapshot or a template of this server.
 *
 * @throws CodedError template_not_found
 */
export async function chooseTemplate(
  store: TemplateStore,
  scope: TenantScope,
  reference: string,
): Promise<TemplateChoice> {
  const template = await findTemplate(store, scope, reference);
  if (template === undefined) return resolveTemplate(reference);
  const { snapshotId } = await taggedBuild(store, template, reference);
  if (snapshotId === null) throw e2bTemplateNotFound(reference);
  return { from_snapshot: snapshotId };
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
