import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

/** Root of the checkout these tests belong to. */
export const repositoryRoot = dirname(dirname(dirname(fileURLToPath(import.meta.url))));

/** Guest agent binary the tests run with: `TORPOR_GUEST_BINARY`, else the checkout's own build. */
export function guestBinaryPath(): string {
  return process.env.TORPOR_GUEST_BINARY || join(repositoryRoot, "guest", "dist", "torpor-guest");
}

/** Where built templates are kept between runs: `TORPOR_TEST_TEMPLATES`, else a folder git ignores. */
export function templateCacheDir(): string {
  return process.env.TORPOR_TEST_TEMPLATES || join(repositoryRoot, ".torpor", "test-templates");
}

/** How to run a program's main module: from source, or from `dist` when `TORPOR_TEST_DIST=1`. */
export function programArgv(name: "host" | "server"): [string, ...string[]] {
  if (process.env.TORPOR_TEST_DIST === "1")
    return [process.execPath, join(repositoryRoot, name, "dist", "main.js")];
  return [
    process.execPath,
    "--conditions=source",
    "--import",
    "tsx",
    join(repositoryRoot, name, "src", "main.ts"),
  ];
}
