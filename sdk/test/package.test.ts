import { execFile } from "node:child_process";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { promisify } from "node:util";
import { build } from "esbuild";
import { expect, it } from "vitest";
import { VERSION } from "@torpor/sdk";
import { shapesAgree } from "./wire-shapes.ts";

const sdkFolder = fileURLToPath(new URL("..", import.meta.url));
const run = promisify(execFile);

it(
  "has types that agree with the protocol, and examples and tests that compile",
  { timeout: 60_000 },
  async () => {
    // True by its type alone: the compiler is what checks it.
    expect(shapesAgree).not.toContain(false);
    const tsc = join(sdkFolder, "../node_modules/typescript/bin/tsc");
    const failure = await run(process.execPath, [tsc, "-p", join(sdkFolder, "test/tsconfig.json")]).catch(
      (error: { stdout?: string; message: string }) => error.stdout ?? error.message,
    );
    expect(failure).toMatchObject({ stdout: "" });
  },
);

it("names its own version and depends on nothing", async () => {
  const manifest = JSON.parse(await readFile(join(sdkFolder, "package.json"), "utf8")) as Record<
    string,
    unknown
  >;
  expect(manifest["version"]).toBe(VERSION);
  expect(manifest["dependencies"]).toBeUndefined();
});

it("bundles for the browser without a module of Node, and works without Node's globals", async () => {
  const folder = await mkdtemp(join(tmpdir(), "torpor-sdk-"));
  try {
    const outfile = join(folder, "bundle.mjs");
    const result = await build({
      entryPoints: [join(sdkFolder, "src/index.ts")],
      bundle: true,
      platform: "browser",
      format: "esm",
      outfile,
      metafile: true,
      logLevel: "silent",
      // Node's own Response cannot do without Buffer; only the client is to.
      define: { "globalThis.Buffer": "undefined" },
    });
    expect(result.warnings).toEqual([]);
    const inputs = Object.keys(result.metafile.inputs);
    expect(inputs.every((input) => input.includes("sdk/src/"))).toBe(true);
    const text = await readFile(outfile, "utf8");
    expect(text).not.toMatch(/\bBuffer\b|\brequire\(|from "node:|import\("node:/);

    const program = `
      const answer = (body) => new Response(body, { headers: { "content-type": "application/x-ndjson" } });
      const lines = [{ type: "start", exec_id: "x", pid: 1 }, { type: "stdout", data: btoa("hi") },
        { type: "end", exec_id: "x", exit_code: 0, signal: null, outcome: "exited", truncated: false, stdout_bytes: 2, stderr_bytes: 0, duration_ms: 1 }];
      const fake = async (url) => url.endsWith("/exec") ? answer(lines.map((line) => JSON.stringify(line)).join("\\n"))
        : Response.json({ id: "s1", metadata: {}, created_at: "2026-11-29T16:00:00Z" });
      const log = console.log;
      delete globalThis.process;
      const { Sandbox } = await import(${JSON.stringify(pathToFileURL(outfile).href)});
      const sandbox = await Sandbox.create({ url: "https://torpor.test", apiKey: "tp_x", fetch: fake });
      log((await sandbox.execStream("echo hi").result).stdout);
      log(await Sandbox.create({ url: "https://torpor.test", fetch: fake }).catch((error) => error.name));
    `;
    const { stdout } = await run(process.execPath, ["--input-type=module", "--eval", program]);
    expect(stdout).toBe("hi\nConfigurationError\n");
  } finally {
    await rm(folder, { recursive: true });
  }
});
