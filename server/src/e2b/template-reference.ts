import { type CreateSandboxRequest, snapshotIdSchema, templateNameSchema } from "@torpor/protocol";
import type { TenantScope } from "../auth/tenant-scope.ts";
import { e2bTemplateNotFound } from "./e2b-error.ts";

/** What a `templateID` of E2B's stands for, in the terms of a create. */
export type TemplateChoice = Partial<Pick<CreateSandboxRequest, "template" | "from_snapshot">>;

/** Names that E2B's clients send by themselves, and what they are here. */
const ALIASES: Readonly<Record<string, string>> = { "code-interpreter-v1": "code-interpreter" };
/** Ids of snapshots as these routes give them out, with the tag that E2B's have. */
const DEFAULT_TAG = ":default";

/** The id a snapshot has in E2B's API. */
export function shownSnapshotId(id: string): string {
  return `${id}${DEFAULT_TAG}`;
}

/** Our id in one of E2B's; undefined for what is no snapshot's. */
export function snapshotIdOf(reference: string): string | undefined {
  const id = reference.endsWith(DEFAULT_TAG) ? reference.slice(0, -DEFAULT_TAG.length) : reference;
  return snapshotIdSchema.safeParse(id).success ? id : undefined;
}

/** What a name of E2B's for a template of this server is called here; undefined for what can be none. */
export function ownTemplateOf(reference: string): string | undefined {
  const name = reference.endsWith(DEFAULT_TAG) ? reference.slice(0, -DEFAULT_TAG.length) : reference;
  const template = ALIASES[name] ?? name;
  return templateNameSchema.safeParse(template).success ? template : undefined;
}

/**
 * Reads a `templateID`: a snapshot's id, or the name of a template. Whether there is such a one, the create finds out.
 *
 * @throws CodedError template_not_found for what can be neither
 */
export function resolveTemplate(_scope: TenantScope, reference: string): Promise<TemplateChoice> {
  const snapshot = snapshotIdOf(reference);
  if (snapshot !== undefined) return Promise.resolve({ from_snapshot: snapshot });
  const template = ownTemplateOf(reference);
  if (template === undefined) return Promise.reject(e2bTemplateNotFound(reference));
  return Promise.resolve({ template });
}
