export * from "./apt-sources.ts";
export * from "./build.ts";
export { BUILD_STAGES, type BuildProgress } from "./build-progress.ts";
export { contentHash } from "./content-hash.ts";
export type { TemplateManifest } from "./manifest.ts";
export { type Recipe, listRecipes, loadRecipe, TEMPLATE_NAME } from "./recipe.ts";
export { type StoredTemplate, TemplateStore } from "./template-store.ts";
export { digestTree } from "./tree-digest.ts";
