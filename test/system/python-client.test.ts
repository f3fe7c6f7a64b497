import { execFile } from "node:child_process";
import { join } from "node:path";
import { promisify } from "node:util";
import { describe, expect, test } from "vitest";
import { repositoryRoot } from "../src/repository.ts";
import { useInstance } from "../src/use-instance.ts";

const pythonDir = join(repositoryRoot, "python");

interface Run {
  code: number;
  /** Standard output and error together: unittest reports on the latter. */
  said: string;
}

async function python(args: readonly string[], env: Record<string, string> = {}): Promise<Run> {
  const options = {
    cwd: pythonDir,
    env: { ...process.env, PYTHONDONTWRITEBYTECODE: "1", ...env },
    maxBuffer: 64 * 1024 * 1024,
    timeout: 400_000,
  };
  try {
    const { stdout, stderr } = await promisify(execFile)("python3", args, options);
    return { code: 0, said: stdout + stderr };
  } catch (error) {
    const { code, stdout = "", stderr = "" } = error as { code?: unknown; stdout?: string; stderr?: string };
    // No number: python3 is missing, or took too long.
    if (typeof code !== "number") throw error;
    return { code, said: stdout + stderr };
  }
}

/** Names of the tests that unittest's `-v` reports with this outcome. */
function testsThat(outcome: RegExp, said: string): string[] {
  return said.split("\n").flatMap((line) => {
    const match = /^(test_\w+) \((?:tests\.)?(\w+)\..*\) \.\.\. (.*)$/.exec(line);
    return match !== null && outcome.test(match[3] ?? "") ? [`${match[2]}.${match[1]}`] : [];
  });
}

describe("the Python client", () => {
  const torpor = useInstance({ server: true, pool: 2, shells: 1 });

  test("passes its own tests, against a stand-in and against this server", { timeout: 420_000 }, async () => {
    const env = { TORPOR_TEST_URL: torpor().url, TORPOR_TEST_KEY: torpor().apiKey };
    const { code, said } = await python(["-W", "error::ResourceWarning", "-m", "unittest", "-v"], env);
    const passed = testsThat(/^ok$/, said);
    const skipped = said.split("\n").filter((line) => line.includes("... skipped"));
    const closing = said.trimEnd().split("\n").slice(-3).join(" ");
    console.log(
      [...skipped, `Python: ${passed.length} passed, ${skipped.length} skipped: ${closing}`].join("\n"),
    );
    expect(code, said.slice(-8000)).toBe(0);
    expect(said).not.toContain("ResourceWarning");
    expect(passed.length).toBeGreaterThanOrEqual(115);
    expect(passed.filter((name) => name.startsWith("test_real_")).length).toBeGreaterThanOrEqual(16);
    // Only what this server or this Python does not have may be left out, and says so.
    for (const line of skipped)
      expect(line).toMatch(/does not have \/v1\/|this Python|this system|setuptools/);
  });

  test("is clean under mypy --strict, where it is installed", { timeout: 120_000 }, async (context) => {
    const { code, said } = await python(["-m", "mypy", "--strict", "--cache-dir=/dev/null", "torpor"]);
    context.skip(code !== 0 && said.includes("No module named mypy"), "mypy is not installed");
    expect(code, said).toBe(0);
  });
});
