import { type CreateSandboxRequest, snapshotIdSchema, templateNameSchema } from "@torpor/protocol";
import { e2bTemplateNotFound } from "./e2b-error.ts";
import { DEFAULT_TAG } from "./template/template-name.ts";

/** What a `templateID` of E2B's stands for, in the terms of a create. */
export type TemplateChoice = Partial<Pick<CreateSandboxRequest, "template" | "from_snapshot">>;

/** Names that E2B's clients send by themselves, and what they are here. */
const ALIASES: Readonly<Record<string, string>> = { "code-interpreter-v1": "code-interpreter" };
/** Ids of snapshots as these routes give them out, with the tag that E2B's have. */
const TAG_SUFFIX = `:${DEFAULT_TAG}`;

/** The id a snapshot has in E2B's API. */
export function shownSnapshotId(id: string): string {
  return `${id}${TAG_SUFFIX}`;
}

/** Our id in one of E2B's; undefined for what is no snapshot's. */
export function snapshotIdOf(reference: string): string | undefined {
  const id = reference.endsWith(TAG_SUFFIX) ? reference.slice(0, -TAG_SUFFIX.length) : reference;
  return snapshotIdSchema.safeParse(id).success ? id : undefined;
}

/** What a name of E2B's for a template of this server is called here; undefined for what can be none. */
export function ownTemplateOf(reference: string): string | undefined {
  const name = reference.endsWith(TAG_SUFFIX) ? reference.slice(0, -TAG_SUFFIX.length) : reference;
  const template = ALIASES[name] ?? name;
  return templateNameSchema.safeParse(template).success ? template : undefined;
}

/**
 * Reads a `templateID`: a snapshot's id, or the name of a template. Whether there is such a one, the create finds out.
 *
 * @throws CodedError template_not_found for what can be neither
 */
export function resolveTemplate(reference: string): TemplateChoice {
  const snapshot = snapshotIdOf(reference);
  if (snapshot !== undefined) return { from_snapshot: snapshot };
  const template = ownTemplateOf(reference);
  if (template === undefined) throw e2bTemplateNotFound(reference);
  return { template };
}
