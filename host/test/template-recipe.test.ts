import { chmod, mkdir, mkdtemp, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { CodedError } from "@torpor/protocol";
import { afterEach, beforeEach, expect, test } from "vitest";
import { contentHash, listRecipes, loadRecipe, type Recipe } from "../src/template/index.ts";
import { parseRecipeFile } from "../src/template/recipe.ts";

const repositoryTemplates = join(import.meta.dirname, "../../templates");
let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "torpor-recipes-"));
});
afterEach(async () => {
  await rm(dir, { recursive: true, force: true });
});

async function writeRecipe(name: string, content: Record<string, unknown> | string): Promise<string> {
  await mkdir(join(dir, name, "files/etc"), { recursive: true });
  await writeFile(
    join(dir, name, "template.json"),
    typeof content === "string" ? content : JSON.stringify({ name, ...content }),
  );
  return join(dir, name);
}

async function refusal(promise: Promise<unknown>): Promise<CodedError> {
  const error = await promise.then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  if (!(error instanceof CodedError)) throw new Error(`expected a CodedError, got ${String(error)}`);
  return error;
}

test("the repository's recipes load, and code-interpreter holds all of base", async () => {
  expect(await listRecipes([repositoryTemplates])).toEqual(["base", "code-interpreter"]);
  const base = await loadRecipe("base", [repositoryTemplates]);
  const interpreter = await loadRecipe("code-interpreter", [repositoryTemplates]);
  expect(interpreter.packages).toEqual(expect.arrayContaining(base.packages));
  expect(interpreter.packages).toContain("python3-ipykernel");
  expect(interpreter.env).toMatchObject(base.env);
  expect(interpreter.layers.map((layer) => layer.name)).toEqual(["base", "code-interpreter"]);
  expect(interpreter.user).toBe("user");
  expect(base.layers[0]?.entries.find((entry) => entry.path === "/usr/sbin/policy-rc.d")?.mode).toBe(0o755);
});

test("no recipe in the repository names a host", async () => {
  for (const name of await listRecipes([repositoryTemplates])) {
    const { layers, ...declared } = await loadRecipe(name, [repositoryTemplates]);
    const text = [
      JSON.stringify(declared),
      ...layers.flatMap((layer) => [layer.setup ?? "", ...layer.entries.map((entry) => entry.content)]),
    ].join("\n");
    expect(text).not.toMatch(/https?:\/\//);
  }
});

test("what a recipe says wins over what it extends, lists are added up", async () => {
  await writeRecipe("parent", {
    packages: ["curl", "bash"],
    env: { A: "1", B: "1" },
    user: "user",
    excludePaths: ["/usr/share/doc/*"],
  });
  await writeRecipe("child", {
    extends: "parent",
    packages: ["git", "curl"],
    env: { B: "2" },
    workdir: "/srv",
  });
  const recipe = await loadRecipe("child", [dir]);
  expect(recipe).toMatchObject({
    packages: ["bash", "curl", "git"],
    env: { A: "1", B: "2" },
    user: "user",
    workdir: "/srv",
    excludePaths: ["/usr/share/doc/*"],
    suite: "bookworm",
    variant: "apt",
    components: ["main"],
  });
});

test("an unknown template is not found, whatever its name", async () => {
  await writeRecipe("known", {});
  for (const name of ["missing", "..", "../known", "", "Known", "a".repeat(100), "known\0", "known/"]) {
    const error = await refusal(loadRecipe(name, [dir]));
    expect(error.code).toBe("template_not_found");
    expect(error.message).toContain(dir);
  }
});

test.each([
  ["an unknown field", { packges: ["x"] }, "packges"],
  ["a package name with an option in it", { packages: ["--purge"] }, "packages.0"],
  ["a package name with a comma", { packages: ["a,b"] }, "packages.0"],
  ["a path with ..", { excludePaths: ["/usr/../etc"] }, "excludePaths.0"],
  ["a path with a newline", { excludePaths: ["/usr\nx"] }, "excludePaths.0"],
  ["a variable with a newline", { env: { A: "1\nB=2" } }, "env.A"],
  ["a variable without a name", { env: { "": "1" } }, "env"],
  [
    "an npm version that is a range",
    {
      npmPackages: [
        { name: "npm", version: "^10", integrity: `sha512-${"A".repeat(86)}==`, directory: "/x" },
      ],
    },
    "npmPackages.0.version",
  ],
  [
    "an npm package without hash",
    { npmPackages: [{ name: "npm", version: "1.0.0", integrity: "", directory: "/x" }] },
    "npmPackages.0.integrity",
  ],
  ["a negative epoch", { sourceDateEpoch: -1 }, "sourceDateEpoch"],
  ["a service without a command", { services: [{ name: "x", command: [] }] }, "services.0.command"],
  [
    "a service on no port",
    { services: [{ name: "x", command: ["x"], ready: { port: 0, path: "/" } }] },
    "services.0.ready.port",
  ],
])("%s is refused by name", async (_, content, field) => {
  await writeRecipe("bad", content);
  const error = await refusal(loadRecipe("bad", [dir]));
  expect(error.code).toBe("invalid_request");
  expect(error.message).toContain(field);
});

test("text that is no JSON, no object or names another template is refused", async () => {
  for (const text of ["", "{", "null", "[]", '"x"', "{}"]) {
    expect(() => parseRecipeFile(text, "template.json")).toThrowError(CodedError);
  }
  await writeRecipe("here", '{"name": "elsewhere"}');
  expect((await refusal(loadRecipe("here", [dir]))).message).toContain("elsewhere");
});

test("a recipe that extends itself, by whatever way, is refused", async () => {
  await writeRecipe("self", { extends: "self" });
  await writeRecipe("one", { extends: "two" });
  await writeRecipe("two", { extends: "one" });
  expect((await refusal(loadRecipe("self", [dir]))).code).toBe("invalid_request");
  expect((await refusal(loadRecipe("one", [dir]))).message).toContain("one -> two -> one");
});

test("files are taken with their executable bit only, links as links, and other things are refused", async () => {
  const folder = await writeRecipe("files", {});
  await writeFile(join(folder, "files/etc/plain"), "p", { mode: 0o666 });
  await writeFile(join(folder, "files/etc/program"), Buffer.from([0, 255]));
  await chmod(join(folder, "files/etc/program"), 0o700);
  await symlink("/nowhere", join(folder, "files/etc/link"));
  const [layer] = (await loadRecipe("files", [dir])).layers;
  expect(layer?.entries).toEqual([
    { path: "/etc", kind: "folder", mode: 0o755, content: Buffer.alloc(0) },
    { path: "/etc/link", kind: "link", mode: 0o777, content: Buffer.from("/nowhere") },
    { path: "/etc/plain", kind: "file", mode: 0o644, content: Buffer.from("p") },
    { path: "/etc/program", kind: "file", mode: 0o755, content: Buffer.from([0, 255]) },
  ]);
});

test("every input changes the content hash, the order of keys does not", async () => {
  const folder = await writeRecipe("hashed", { packages: ["git"], env: { A: "1", B: "2" } });
  await writeFile(join(folder, "setup"), "#!/bin/sh\n");
  await writeFile(join(folder, "files/etc/x"), "1");
  const inputs = { guestSha256: "aa", driverVersion: "gvisor/1", architecture: "amd64" };
  const hashOf = (recipe: Recipe, other: Partial<typeof inputs> = {}): string =>
    contentHash({ recipe, ...inputs, ...other });
  const recipe = await loadRecipe("hashed", [dir]);
  const original = hashOf(recipe);
  expect(original).toMatch(/^[0-9a-f]{64}$/);
  expect(hashOf({ ...recipe, env: { B: "2", A: "1" } })).toBe(original);

  const variants = [
    hashOf({ ...recipe, packages: ["git", "jq"] }),
    hashOf({ ...recipe, sourceDateEpoch: recipe.sourceDateEpoch + 1 }),
    hashOf({ ...recipe, env: { A: "1", B: "3" } }),
    hashOf({ ...recipe, services: [{ name: "x", command: ["true"] }] }),
    hashOf(recipe, { guestSha256: "ab" }),
    hashOf(recipe, { driverVersion: "gvisor/2" }),
    hashOf(recipe, { architecture: "arm64" }),
  ];
  await writeFile(join(folder, "files/etc/x"), "2");
  variants.push(hashOf(await loadRecipe("hashed", [dir])));
  await chmod(join(folder, "files/etc/x"), 0o755);
  variants.push(hashOf(await loadRecipe("hashed", [dir])));
  await writeFile(join(folder, "setup"), "#!/bin/sh\nexit\n");
  variants.push(hashOf(await loadRecipe("hashed", [dir])));
  expect(new Set([original, ...variants]).size).toBe(variants.length + 1);
});
