import { lstat, readFile, readdir, readlink } from "node:fs/promises";
import { join } from "node:path";
import { CodedError } from "@torpor/protocol";
import { z } from "zod";

/** What a template may be called: also a folder name and a link name. */
export const TEMPLATE_NAME = /^[a-z][a-z0-9-]{0,62}$/;

const packageName = z.string().regex(/^[a-z0-9][a-z0-9+.-]+$/, "must be a Debian package name");
const absolutePath = z
  .string()
  .max(4096)
  .regex(/^\/[^\0\n]*$/, "must be an absolute path on one line")
  .refine((path) => !path.split("/").includes(".."), "must not contain `..`");
const envName = z.string().regex(/^[A-Za-z_][A-Za-z0-9_]*$/, "must be a variable name");
const oneLine = z.string().regex(/^[^\0\n]*$/, "must be one line without NUL");

const npmPackageSchema = z.strictObject({
  name: z.string().regex(/^(@[a-z0-9._-]+\/)?[a-z0-9._-]+$/),
  /** Exact, so that the tree is the same next year. */
  version: z.string().regex(/^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$/, "must be an exact version"),
  /** As `npm view NAME@VERSION dist.integrity` prints it. */
  integrity: z.string().regex(/^sha512-[A-Za-z0-9+/]{86}==$/, "must be a sha512 integrity"),
  /** Where the package is unpacked in the root. Its own dependencies must be bundled in it. */
  directory: absolutePath,
});

const serviceSchema = z.strictObject({
  /** Also names its log, /var/log/torpor/NAME.log. */
  name: z.string().regex(/^[a-z][a-z0-9-]{0,62}$/, "must be lower-case letters, digits and hyphens"),
  /** Started before the golden snapshot is taken, so that every sandbox has it running from the start. */
  command: z.array(z.string().min(1)).min(1),
  /** Who it runs as; default: the template's `user`. */
  user: z
    .string()
    .regex(/^[a-z_][a-z0-9_-]*$/)
    .optional(),
  /** Where it answers HTTP with 2xx once it serves; the snapshot waits for that. */
  ready: z
    .strictObject({
      port: z.number().int().min(1).max(65535),
      path: z.string().regex(/^\/[^\s]*$/, "must begin with a slash"),
    })
    .optional(),
});

/** `template.json`, as written. Every field but `name` may come from the recipe named by `extends`. */
const recipeFileSchema = z.strictObject({
  name: z.string().regex(TEMPLATE_NAME, "must be lower-case letters, digits and hyphens"),
  extends: z.string().regex(TEMPLATE_NAME).optional(),
  description: z.string().max(500).optional(),
  /** Debian release code name. */
  suite: z
    .string()
    .regex(/^[a-z]+$/)
    .optional(),
  /** mmdebstrap's starting set. */
  variant: z.enum(["essential", "apt", "required", "minbase", "important", "standard"]).optional(),
  components: z.array(z.string().regex(/^[a-z-]+$/)).optional(),
  /** Seconds. Newer time stamps are set back to it. Change it to make a new template with today's package versions. */
  sourceDateEpoch: z.number().int().min(0).max(4_102_444_800).optional(),
  packages: z.array(packageName).optional(),
  npmPackages: z.array(npmPackageSchema).optional(),
  /** dpkg path patterns left out at build and by every later install inside. */
  excludePaths: z.array(absolutePath).optional(),
  /** Exceptions to `excludePaths`. */
  includePaths: z.array(absolutePath).optional(),
  /** Environment of every process the guest agent starts. */
  env: z.record(envName, oneLine).optional(),
  /** User that commands run as unless told otherwise; default `root`. */
  user: z
    .string()
    .regex(/^[a-z_][a-z0-9_-]*$/)
    .optional(),
  /** Where commands start; default `/`. */
  workdir: absolutePath.optional(),
  /** The setup script may use the network. The result then depends on the day it is built; default false. */
  setupNetwork: z.boolean().optional(),
  services: z.array(serviceSchema).max(16).optional(),
});
export type RecipeFile = z.infer<typeof recipeFileSchema>;
export type NpmPackage = z.infer<typeof npmPackageSchema>;
type TemplateService = z.infer<typeof serviceSchema>;

/** One entry of a recipe's `files/`, to be owned by root in the template. */
interface RecipeEntry {
  /** Absolute in the new root. */
  path: string;
  kind: "file" | "link" | "folder";
  /** Files only: 0755 if the owner may execute it, else 0644; git keeps no more than that. */
  mode: number;
  /** Content of a file, target of a link, empty for a folder. */
  content: Buffer;
}

/** One recipe folder's share of a template: the merged recipe has one layer per folder, the extended one first. */
export interface RecipeLayer {
  name: string;
  entries: RecipeEntry[];
  /** The `setup` script, if there is one. */
  setup: Buffer | undefined;
}

/** A recipe with everything it extends merged in and every default filled. */
export interface Recipe {
  name: string;
  description: string;
  suite: string;
  variant: NonNullable<RecipeFile["variant"]>;
  components: string[];
  sourceDateEpoch: number;
  packages: string[];
  npmPackages: NpmPackage[];
  excludePaths: string[];
  includePaths: string[];
  env: Record<string, string>;
  user: string;
  workdir: string;
  setupNetwork: boolean;
  services: TemplateService[];
  layers: RecipeLayer[];
}

const EXTENDS_DEPTH_MAX = 8;

/**
 * Reads the recipe `name` from the first of `recipeDirs` that has a folder of that name, with all it extends.
 *
 * @throws CodedError `template_not_found` when no folder has it, `invalid_request` naming file and field when it is wrong.
 */
export async function loadRecipe(name: string, recipeDirs: readonly string[]): Promise<Recipe> {
  const chain: { file: RecipeFile; layer: RecipeLayer }[] = [];
  const seen: string[] = [];
  for (let next: string | undefined = name; next !== undefined;) {
    if (seen.includes(next) || seen.length === EXTENDS_DEPTH_MAX) {
      throw new CodedError(
        "invalid_request",
        `Template ${name} extends itself or more than ${EXTENDS_DEPTH_MAX} others: ${[...seen, next].join(" -> ")}. Break the chain in one of their template.json files.`,
      );
    }
    seen.push(next);
    const part = await readRecipeFolder(next, recipeDirs);
    chain.unshift(part);
    next = part.file.extends;
  }
  return merge(chain);
}

/** Names of all recipe folders, sorted. A folder without `template.json` is not one. */
export async function listRecipes(recipeDirs: readonly string[]): Promise<string[]> {
  const names = new Set<string>();
  for (const dir of recipeDirs) {
    for (const entry of await readdir(dir, { withFileTypes: true })) {
      if (
        entry.isDirectory() &&
        TEMPLATE_NAME.test(entry.name) &&
        (await exists(join(dir, entry.name, "template.json")))
      )
        names.add(entry.name);
    }
  }
  return [...names].sort();
}

async function readRecipeFolder(
  name: string,
  recipeDirs: readonly string[],
): Promise<{ file: RecipeFile; layer: RecipeLayer }> {
  let folder: string | undefined;
  for (const dir of TEMPLATE_NAME.test(name) ? recipeDirs : []) {
    if (await exists(join(dir, name, "template.json"))) {
      folder = join(dir, name);
      break;
    }
  }
  if (folder === undefined) {
    throw new CodedError(
      "template_not_found",
      `There is no recipe for template ${JSON.stringify(name)}: looked for ${JSON.stringify(name)}/template.json in ${recipeDirs.join(", ")}. Check the name, or add the folder.`,
    );
  }
  const path = join(folder, "template.json");
  const file = parseRecipeFile(await readFile(path, "utf8"), path);
  if (file.name !== name) {
    throw new CodedError(
      "invalid_request",
      `${path} names its template ${file.name}, but its folder is called ${name}. Make them the same.`,
    );
  }
  const entries = (await exists(join(folder, "files"))) ? await readEntries(join(folder, "files"), "") : [];
  const setup = (await exists(join(folder, "setup"))) ? await readFile(join(folder, "setup")) : undefined;
  return { file, layer: { name, entries, setup } };
}

/** Parses `template.json` text; `path` is named in errors. @throws CodedError `invalid_request` listing every problem */
export function parseRecipeFile(text: string, path: string): RecipeFile {
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (error) {
    throw new CodedError("invalid_request", `${path} is not JSON: ${String(error)}`, { cause: error });
  }
  const parsed = recipeFileSchema.safeParse(json);
  if (!parsed.success) {
    const problems = parsed.error.issues.map(
      (issue) => `${issue.path.join(".") || "(top level)"}: ${issue.message}`,
    );
    throw new CodedError("invalid_request", `${path} is not a template recipe: ${problems.join("; ")}`, {
      details: { path, problems },
    });
  }
  return parsed.data;
}

async function readEntries(dir: string, below: string): Promise<RecipeEntry[]> {
  const entries: RecipeEntry[] = [];
  for (const entry of await readdir(dir, { withFileTypes: true })) {
    const source = join(dir, entry.name);
    const path = `${below}/${entry.name}`;
    if (entry.isDirectory()) {
      entries.push(
        { path, kind: "folder", mode: 0o755, content: Buffer.alloc(0) },
        ...(await readEntries(source, path)),
      );
    } else if (entry.isSymbolicLink()) {
      entries.push({ path, kind: "link", mode: 0o777, content: Buffer.from(await readlink(source)) });
    } else if (entry.isFile()) {
      const { mode } = await lstat(source);
      entries.push({
        path,
        kind: "file",
        mode: (mode & 0o100) === 0 ? 0o644 : 0o755,
        content: await readFile(source),
      });
    } else {
      throw new CodedError(
        "invalid_request",
        `${source} is neither a file, a folder nor a link. A recipe's files/ can hold nothing else.`,
      );
    }
  }
  return entries.sort((a, b) => (a.path < b.path ? -1 : 1));
}

function merge(chain: { file: RecipeFile; layer: RecipeLayer }[]): Recipe {
  const files = chain.map((part) => part.file);
  const last = files.at(-1);
  if (last === undefined) throw new Error("merge of no recipes");
  const lastOf = <T>(pick: (file: RecipeFile) => T | undefined): T | undefined =>
    files.map(pick).findLast((value) => value !== undefined);
  const listOf = <T>(pick: (file: RecipeFile) => T[] | undefined): T[] =>
    files.flatMap((file) => pick(file) ?? []);
  return {
    name: last.name,
    description: last.description ?? "",
    suite: lastOf((file) => file.suite) ?? "bookworm",
    variant: lastOf((file) => file.variant) ?? "apt",
    components: lastOf((file) => file.components) ?? ["main"],
    sourceDateEpoch: lastOf((file) => file.sourceDateEpoch) ?? 0,
    packages: [...new Set(listOf((file) => file.packages))].sort(),
    npmPackages: listOf((file) => file.npmPackages),
    excludePaths: [...new Set(listOf((file) => file.excludePaths))],
    includePaths: [...new Set(listOf((file) => file.includePaths))],
    env: Object.assign({}, ...files.map((file) => file.env ?? {})) as Record<string, string>,
    user: lastOf((file) => file.user) ?? "root",
    workdir: lastOf((file) => file.workdir) ?? "/",
    setupNetwork: lastOf((file) => file.setupNetwork) ?? false,
    services: listOf((file) => file.services),
    layers: chain.map((part) => part.layer),
  };
}

async function exists(path: string): Promise<boolean> {
  try {
    await lstat(path);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return false;
    throw error;
  }
}
