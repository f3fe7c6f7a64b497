export * from "./apt-sources.ts";
export * from "./build.ts";
export { BUILD_STAGES, type BuildProgress, type BuildStage } from "./build-progress.ts";
export { contentHash, shortId } from "./content-hash.ts";
export { GUEST_PATH } from "./finish-root.ts";
export type { TemplateManifest } from "./manifest.ts";
export { type Recipe, listRecipes, loadRecipe } from "./recipe.ts";
export { type StoredTemplate, TemplateStore } from "./template-store.ts";
export { type TreeDigest, digestTree } from "./tree-digest.ts";
