import { CodedError } from "@torpor/protocol";

/** The tag that a build gets, and a create means, when none is named. */
export const DEFAULT_TAG = "default";

const NAME = /^[a-z0-9][a-z0-9._-]{0,127}$/;
const TAG = /^[a-z0-9A-Z][a-zA-Z0-9._-]{0,127}$/;
/** Templates of this server and what clients call them: none that is built may be taken for one. */
const OWN = new Set(["base", "code-interpreter", "code-interpreter-v1"]);

export interface TemplateReference {
  /** Name or id. */
  name: string;
  /** Undefined when none was named. */
  tag: string | undefined;
}

/** Reads `name[:tag]`; names are not case-sensitive. Undefined for what is no such thing. */
export function readReference(text: string): TemplateReference | undefined {
  const [name = "", tag, ...more] = text.trim().split(":");
  const lower = name.toLowerCase();
  if (more.length > 0 || !NAME.test(lower) || (tag !== undefined && !TAG.test(tag))) return undefined;
  return { name: lower, tag };
}

/** Whether it is what every server has: no name given by anybody is taken for it. */
export function isEveryServers({ name }: TemplateReference): boolean {
  return OWN.has(name);
}

/** @throws CodedError invalid_request for what is no name of a template to be built */
export function requireNewName(text: string): TemplateReference {
  const reference = readReference(text);
  if (reference === undefined)
    throw new CodedError(
      "invalid_request",
      `name '${text.slice(0, 200)}' is not a template name: 'name' or 'name:tag' of letters, digits, '.', '_' and '-', starting with a letter or digit`,
    );
  if (isEveryServers(reference))
    throw new CodedError(
      "invalid_request",
      `name '${reference.name}' is taken by a template of this server; choose another`,
    );
  return reference;
}

/** @throws CodedError invalid_request naming the first that is no tag */
export function requireTags(tags: readonly string[]): string[] {
  const wrong = tags.find((tag) => !TAG.test(tag));
  if (wrong !== undefined)
    throw new CodedError(
      "invalid_request",
      `tag '${wrong.slice(0, 200)}' is not a tag: letters, digits, '.', '_' and '-', starting with a letter or digit, at most 128`,
    );
  return [...new Set(tags)];
}
