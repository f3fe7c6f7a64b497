import { spawn } from "node:child_process";
import { mkdir, mkdtemp, readdir, readFile, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { run } from "@torpor/base";
import { afterAll, beforeAll, expect, test } from "vitest";
import {
  type BuildProgress,
  BUILD_STAGES,
  buildTemplate,
  type BuildTemplateOptions,
  TemplateStore,
} from "../src/template/index.ts";
import { mountsBelow } from "../src/template/mounts.ts";
import { runSetup } from "../src/template/run-setup.ts";
import { smallRecipe } from "./template-small-recipe.ts";

const missing = await (async (): Promise<string | undefined> => {
  if (process.getuid?.() !== 0) return "it needs root";
  return run(["mmdebstrap", "--version"]).then(
    () => undefined,
    () => "mmdebstrap is not installed",
  );
})();
if (missing !== undefined) console.log(`skipped: real template builds, because ${missing}`);
const real = test.skipIf(missing !== undefined);

let dir: string;
let guestBinaryPath: string;
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), "torpor-build-"));
  guestBinaryPath = join(dir, "guest");
  await writeFile(guestBinaryPath, "#!/bin/sh\n");
});
afterAll(async () => {
  await rm(dir, { recursive: true, force: true });
});

function options(folder: string, name = "small"): BuildTemplateOptions {
  return {
    recipe: smallRecipe(name),
    guestBinaryPath,
    driverVersion: "test/1",
    templatesDir: join(dir, folder, "templates"),
    cacheDir: join(dir, "cache"),
  };
}

/** Command lines of all processes that work below a folder. */
async function processesBelow(folder: string): Promise<string[]> {
  const found: string[] = [];
  for (const pid of (await readdir("/proc")).filter((name) => /^\d+$/.test(name))) {
    const line = await readFile(`/proc/${pid}/cmdline`, "utf8").catch(() => "");
    if (line.includes(folder) && Number(pid) !== process.pid) found.push(line.replaceAll("\0", " "));
  }
  return found;
}

real(
  "two builds of one recipe give the same tree, whole and clean; one asked for meanwhile or later is the same build",
  async () => {
    const seen: BuildProgress[][] = [[], []];
    const [one, joined, two] = await Promise.all([
      buildTemplate({ ...options("one"), onProgress: (step) => seen[0]?.push(step) }),
      buildTemplate({ ...options("one"), onProgress: (step) => seen[1]?.push(step) }),
      buildTemplate(options("two")),
    ]);
    const progress = (one.cached ? seen[1] : seen[0]) ?? []; // either may have been first
    expect(one.manifest.treeDigest).toBe(two.manifest.treeDigest);
    expect(one.hash).toBe(two.hash);
    expect(two.cached).toBe(false);
    expect([one.cached, joined.cached].filter(Boolean)).toHaveLength(1);

    const read = (path: string): Promise<string> => readFile(join(one.rootfsDir, path), "utf8");
    expect(await read("etc/from-recipe")).toBe("content");
    expect(await read("etc/made-by-setup")).toBe("made\n");
    expect(await read("etc/setup-user")).toBe("0\n");
    expect(await read("etc/machine-id")).toBe("");
    expect(await read("etc/resolv.conf")).toBe("");
    expect(await read("etc/hostname")).toBe("torpor\n");
    expect(await read("etc/apt/sources.list.d/debian.sources")).toContain("bookworm");
    expect(await read("usr/local/lib/torpor/torpor-guest")).toBe("#!/bin/sh\n");
    expect((await stat(join(one.rootfsDir, "usr/local/lib/torpor/torpor-guest"))).mode & 0o7777).toBe(0o755);
    // Not quite empty, so that gVisor leaves it on disk.
    expect(await readdir(join(one.rootfsDir, "tmp"))).toEqual([".torpor-on-disk"]);
    for (const empty of ["var/lib/apt/lists", "var/cache/apt", "var/log", "etc/torpor/on-restore.d"]) {
      expect(await readdir(join(one.rootfsDir, empty)), empty).toEqual([]);
    }
    expect(await readdir(join(one.rootfsDir, "etc/dpkg/dpkg.cfg.d"))).toEqual(["torpor-paths"]);
    expect(one.manifest.packages.find((found) => found.name === "bash")?.version).toMatch(/^5/);

    // A setup script that fails is shown with its own words; run on this root, since bootstrapping one more takes long.
    const failing = smallRecipe("failing", "#!/bin/sh\necho out of cheese >&2\nexit 3\n");
    const [layer] = failing.layers;
    await expect(
      layer && runSetup(two.rootfsDir, failing, layer, {}, { onProgress: () => {} }),
    ).rejects.toMatchObject({
      code: "template_not_ready",
      message: expect.stringContaining("out of cheese") as string,
    });

    const stages = progress.map((step) => step.stage);
    expect(stages).toEqual(
      expect.arrayContaining(["prepare", "index", "bootstrap", "setup", "finish", "digest", "commit"]),
    );
    expect(stages.map((stage) => BUILD_STAGES.indexOf(stage))).toEqual(
      stages.map((stage) => BUILD_STAGES.indexOf(stage)).sort((a, b) => a - b),
    );
    expect(progress.at(-1)).toMatchObject({ stage: "commit", fraction: 1 });

    const again = await buildTemplate(options("one"));
    expect(again).toMatchObject({ hash: one.hash, cached: true });
    expect((await readdir(join(dir, "one/templates"))).sort()).toEqual(
      [".locks", one.hash, "by-name"].sort(),
    );
  },
  300_000,
);

real(
  "an aborted build leaves no folder, process or mount",
  async () => {
    const controller = new AbortController();
    const building = buildTemplate({
      ...options("aborted"),
      signal: controller.signal,
      onProgress: ({ stage }) => {
        if (stage === "bootstrap") controller.abort(new Error("changed my mind"));
      },
    });
    await expect(building).rejects.toThrow("changed my mind");
    const templatesDir = join(dir, "aborted/templates");
    expect((await readdir(templatesDir)).sort()).toEqual([".locks", "by-name"]);
    expect(await processesBelow(templatesDir)).toEqual([]);
    expect(await mountsBelow(templatesDir)).toEqual([]);
  },
  180_000,
);

real(
  "a build whose process is killed takes its children and mounts along, and the sweep clears the rest",
  async () => {
    const templatesDir = join(dir, "killed/templates");
    const script = join(import.meta.dirname, "template-build-child.ts");
    const child = spawn(
      process.execPath,
      ["--conditions=source", "--import", "tsx", script, templatesDir, join(dir, "cache")],
      { stdio: ["ignore", "pipe", "inherit"] },
    );
    await new Promise<void>((resolve) =>
      child.stdout.on("data", (text: Buffer) => text.includes("bootstrap") && resolve()),
    );
    child.kill("SIGKILL");
    await expect.poll(() => processesBelow(templatesDir), { timeout: 10_000 }).toEqual([]);
    expect(await mountsBelow(templatesDir)).toEqual([]);
    const store = new TemplateStore(templatesDir);
    expect(await store.list()).toEqual([]);
    expect(await store.sweep()).toHaveLength(1);
    expect((await readdir(templatesDir)).sort()).toEqual([".locks", "by-name"]);
  },
  180_000,
);

real(
  "a package that does not exist is named",
  async () => {
    const recipe = { ...smallRecipe("wrong"), packages: ["no-such-package-anywhere"] };
    await expect(buildTemplate({ ...options("wrong"), recipe })).rejects.toMatchObject({
      code: "invalid_request",
      message: expect.stringContaining("no-such-package-anywhere") as string,
    });
  },
  180_000,
);

real(
  "an archive that cannot be reached is told from a broken recipe",
  async () => {
    await expect(
      buildTemplate({ ...options("unreachable"), mirror: "http://127.0.0.1:9/debian" }),
    ).rejects.toMatchObject({
      code: "template_not_ready",
      message: expect.stringContaining("apt-get update") as string,
    });
  },
  180_000,
);

real("too little free space is refused before anything is made", async () => {
  await expect(buildTemplate({ ...options("full"), freeBytesMin: 2 ** 60 })).rejects.toMatchObject({
    code: "no_space",
  });
  expect((await readdir(join(dir, "full/templates"))).sort()).toEqual([".locks", "by-name"]);
});

real("a guest agent that was not built is named", async () => {
  await mkdir(join(dir, "guestless"), { recursive: true });
  await expect(
    buildTemplate({ ...options("guestless"), guestBinaryPath: join(dir, "nothing") }),
  ).rejects.toMatchObject({ code: "unsupported", message: expect.stringContaining("go build") as string });
});
