import { BuildFailed } from "./build-failed.ts";

/** Images whose contents a template of this server has, and that template. */
const TEMPLATES: Readonly<Record<string, string>> = {
  "e2bdev/base": "base",
  "e2bdev/code-interpreter": "code-interpreter",
  "e2bdev/code-interpreter-v1": "code-interpreter",
  "debian:12": "base",
  "debian:bookworm": "base",
  "debian:12-slim": "base",
  "debian:bookworm-slim": "base",
};

/**
 * The template that stands for an image: images are not pulled, so that only those are known that one of our own templates
 * has all of.
 *
 * @throws BuildFailed for every other, saying what can be built from
 */
export function templateOfImage(image: string): string {
  const name = image
    .trim()
    .replace(/^docker\.io\/(library\/)?/, "")
    .replace(/:latest$/, "");
  const template = TEMPLATES[name];
  if (template !== undefined) return template;
  throw new BuildFailed(
    `image '${image.slice(0, 200)}' cannot be built from: this server pulls no container images. Use fromTemplate('base') (Debian 12 with Python 3, Node.js, npm, git and curl), fromTemplate('code-interpreter'), a template built before, or one of the images ${Object.keys(TEMPLATES).join(", ")}, which these stand for`,
  );
}
