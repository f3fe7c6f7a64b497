// Builds a small template until it is killed. Arguments: templates folder, cache folder. Prints each stage it reaches.
import { buildTemplate } from "../src/template/index.ts";
import { smallRecipe } from "./template-small-recipe.ts";

const [templatesDir = "", cacheDir = ""] = process.argv.slice(2);
await buildTemplate({
  recipe: smallRecipe("killed"),
  guestBinaryPath: process.execPath,
  driverVersion: "test/1",
  templatesDir,
  cacheDir,
  onProgress: ({ stage }) => console.log(stage),
});
