import { CodedError } from "@torpor/protocol";

/** An image's name, taken apart as container tools do it. */
export interface ImageReference {
  /** As it was asked for. */
  text: string;
  /** As a registry is asked for it: a digest says all, and tools refuse a tag beside it. */
  asked: string;
  /** Host and port of the registry; undefined where the name has none. */
  registry: string | undefined;
  /** The name without registry, tag and digest; `library/` in front says nothing and is left out. */
  repository: string;
  /** `latest` where neither tag nor digest is named; undefined beside a digest. */
  tag: string | undefined;
  /** `sha256:...`. */
  digest: string | undefined;
}

const DOMAIN = /^(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::\d{1,5})?$/;
const REPOSITORY = /^[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*(?:\/[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*)*$/;
const TAG = /^\w[\w.-]{0,127}$/;
const DIGEST = /^sha256:[0-9a-f]{64}$/;
const MAX_CHARACTERS = 512;

/** Hosts that stand for the registry of names without one (`docker.io` of distribution/reference, and what it was before). */
const DEFAULT_REGISTRIES: readonly string[] = ["docker.io", "index.docker.io"];

/** What an operator's list calls a registry: `default` where a name has none, or has the one in front that this means. */
export function listedRegistry(registry: string | undefined): string {
  return registry === undefined || DEFAULT_REGISTRIES.includes(registry) ? "default" : registry;
}

/**
 * Takes a reference apart by the rules of distribution/reference: what stands before the first slash is a registry if it
 * has a dot, a colon or a capital letter, or is `localhost`.
 *
 * @throws CodedError `invalid_request`
 */
export function parseImageReference(text: string): ImageReference {
  const refuse = (why: string): never => {
    throw new CodedError(
      "invalid_request",
      `image '${text.slice(0, 200)}' is no image's name: ${why}; name one as in 'python:3.12' or 'team/app@sha256:...'`,
    );
  };
  if (text.length > MAX_CHARACTERS) refuse(`it is longer than ${MAX_CHARACTERS} characters`);
  let rest = text.trim();
  const at = rest.indexOf("@");
  const digest = at === -1 ? undefined : rest.slice(at + 1);
  if (digest !== undefined && !DIGEST.test(digest)) refuse("its digest is not 'sha256:' and 64 digits");
  if (at !== -1) rest = rest.slice(0, at);
  const colon = rest.indexOf(":", rest.lastIndexOf("/") + 1);
  const tag = colon === -1 ? undefined : rest.slice(colon + 1);
  if (tag !== undefined && !TAG.test(tag)) refuse("its tag has characters that a tag cannot have");
  if (colon !== -1) rest = rest.slice(0, colon);
  const slash = rest.indexOf("/");
  const first = slash === -1 ? "" : rest.slice(0, slash);
  const registry = /[.:A-Z]/.test(first) || first === "localhost" ? first : undefined;
  if (registry !== undefined && !DOMAIN.test(registry)) refuse("its registry is not a host");
  const repository = (registry === undefined ? rest : rest.slice(slash + 1)).replace(/^library\//, "");
  if (!REPOSITORY.test(repository))
    refuse("a repository is lower-case letters, digits and . _ - between slashes");
  return {
    text: text.trim(),
    asked: digest === undefined ? text.trim() : `${rest}@${digest}`,
    registry,
    repository,
    tag: digest === undefined ? (tag ?? "latest") : undefined,
    digest,
  };
}
