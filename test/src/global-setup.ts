import { existsSync } from "node:fs";
import { dirname, join } from "node:path";
import { run } from "@torpor/base";
import { guestBinaryPath, repositoryRoot } from "./repository.ts";
import { ensureTemplates, templatesAreFixed } from "./template-cache.ts";

/** Templates the system suites stand on. */
const TEMPLATES = ["base", "code-interpreter"];

/** Run once before the system suites: guest agent and templates as this checkout has them. */
export default async function setUp(): Promise<void> {
  if (process.getuid?.() !== 0)
    throw new Error(
      "the system suites run machines and networks and need root: run bin/test, or sudo -E npx vitest run --project system",
    );
  const guest = guestBinaryPath();
  if (!existsSync(guest)) {
    const flags = ["-trimpath", "-ldflags=-s -w -buildid=", "-o", guest, "./cmd/torpor-guest"];
    await run(["mkdir", "-p", dirname(guest)]);
    await run(["go", "build", ...flags], {
      cwd: join(repositoryRoot, "guest"),
      env: { ...process.env, CGO_ENABLED: "0" },
      timeoutMs: 300_000,
    });
  }
  if (templatesAreFixed()) return;
  await ensureTemplates(TEMPLATES, (line) => process.stdout.write(`${line}\n`));
  // The run has two projects of system suites: the second need not look once more.
  process.env.TORPOR_TEST_TEMPLATES_FIXED = "1";
}
