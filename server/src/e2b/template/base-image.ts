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

/** An image's name without what may be left out of it: the default registry. */
export function shortImageName(image: string): string {
  return image.trim().replace(/^docker\.io\/(library\/)?/, "");
}

/** The template that stands for an image; undefined for one that has to be had itself. */
export function templateOfImage(image: string): string | undefined {
  return TEMPLATES[shortImageName(image).replace(/:latest$/, "")];
}
