// Checks that imports between the workspaces point down only, and that each uses only packages it lists.
//   node bin/lib/check-layers.mjs [ROOT]
import { readdirSync, readFileSync, existsSync } from "node:fs";
import { builtinModules } from "node:module";
import { dirname, join, relative, resolve, sep } from "node:path";
import { fileURLToPath } from "node:url";

/** What each workspace may import of the others. A workspace that is not named here may import none. */
const BELOW = {
  protocol: [],
  base: [],
  host: ["protocol", "base"],
  server: ["protocol", "base"],
  sdk: [],
  cli: ["protocol", "base", "sdk"],
  web: ["protocol", "sdk"],
  bench: ["protocol", "base", "host", "server", "sdk", "cli", "test"],
  test: ["protocol", "base", "host", "server", "sdk", "cli"],
};

/** Runs in browsers: not even Node's own modules. */
const WITHOUT_NODE = ["protocol"];

const IMPORT =
  /(?:^|[\s;])(?:import|export)\s+(?:[^"'();]*?\sfrom\s+)?["']([^"']+)["']|\bimport\(\s*["']([^"']+)["']/g;

/** Every module name a source text imports. */
export function importsOf(text) {
  const code = text.replace(/\/\*[\s\S]*?\*\//g, "").replace(/^\s*\/\/.*$/gm, "");
  return [...code.matchAll(IMPORT)].map((match) => match[1] ?? match[2]);
}

/** The violations of one workspace, as sentences. */
export function violationsOf(root, workspace) {
  const found = [];
  const directory = join(root, workspace);
  const manifest = JSON.parse(readFileSync(join(directory, "package.json"), "utf8"));
  const listed = new Set([
    ...Object.keys(manifest.dependencies ?? {}),
    ...Object.keys(manifest.peerDependencies ?? {}),
    ...(workspace === "test" ? ["vitest"] : []), // the root's, which runs the tests
  ]);
  for (const file of sourcesBelow(join(directory, "src"))) {
    const name = relative(root, file);
    for (const specifier of importsOf(readFileSync(file, "utf8"))) {
      if (specifier.startsWith(".")) {
        const target = resolve(dirname(file), specifier);
        if (!target.startsWith(directory + sep))
          found.push(`${name} reaches out of its workspace: ${specifier}`);
        continue;
      }
      const bare = specifier.replace(/^node:/, "");
      if (specifier.startsWith("node:") || builtinModules.includes(bare)) {
        if (WITHOUT_NODE.includes(workspace))
          found.push(`${name} imports ${specifier}, but ${workspace} must run in browsers`);
        continue;
      }
      const packageName = specifier
        .split("/")
        .slice(0, specifier.startsWith("@") ? 2 : 1)
        .join("/");
      if (packageName.startsWith("@torpor/")) {
        const other = packageName.slice("@torpor/".length);
        if (!(BELOW[workspace] ?? []).includes(other))
          found.push(
            `${name} imports ${packageName}: ${workspace} may import ${BELOW[workspace]?.join(", ") || "none of the others"}`,
          );
      } else if (!listed.has(packageName)) {
        found.push(`${name} imports ${packageName}, which ${workspace}/package.json does not list`);
      }
    }
  }
  return found;
}

function sourcesBelow(directory) {
  if (!existsSync(directory)) return [];
  return readdirSync(directory, { withFileTypes: true }).flatMap((entry) => {
    const path = join(directory, entry.name);
    if (entry.isDirectory())
      return entry.name === "node_modules" || entry.name === "dist" ? [] : sourcesBelow(path);
    return /\.tsx?$/.test(entry.name) ? [path] : [];
  });
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const root = resolve(process.argv[2] ?? ".");
  const { workspaces } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
  const violations = workspaces.flatMap((workspace) => violationsOf(root, workspace));
  for (const violation of violations) console.error(violation);
  if (violations.length > 0) process.exitCode = 1;
  else console.log(`${workspaces.length} workspaces, every arrow points down`);
}
