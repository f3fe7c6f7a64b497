import { writeFileSync } from "node:fs";
import { relative } from "node:path";
import type { Reporter, TestModule } from "vitest/node";

/** How a run of tests went. */
export interface TestCounts {
  passed: number;
  failed: number;
  skipped: number;
}

/** What failed, and with what message. */
export interface TestFailure {
  name: string;
  message: string;
}

/**
 * A vitest reporter that closes with the line that automation reads: `N passed, N failed, N skipped`.
 *
 * A file that cannot be loaded and an error outside any test count as failed, since something that was to be tested
 * was not. With TORPOR_TEST_COUNTS the counts, and what failed, are also written to that file, as JSON, to be added to
 * others.
 */
export default class ClosingLine implements Reporter {
  onTestRunEnd(modules: readonly TestModule[], errors: readonly unknown[]): void {
    const counts = countTests(modules, errors.length);
    const path = process.env["TORPOR_TEST_COUNTS"];
    if (path !== undefined && path !== "")
      writeFileSync(path, `${JSON.stringify({ ...counts, failures: listFailures(modules, errors) })}\n`);
    // After the other reporters' own last words.
    process.on("exit", () => process.stdout.write(`${closingLine(counts)}\n`));
  }
}

/** The closing line itself. */
export function closingLine({ passed, failed, skipped }: TestCounts): string {
  return `${passed} passed, ${failed} failed, ${skipped} skipped`;
}

type CountedModule = Pick<TestModule, "errors"> & {
  children: { allTests(): Iterable<{ result(): { state: string } }> };
};

type NamedModule = Pick<TestModule, "errors" | "moduleId"> & {
  children: {
    allTests(): Iterable<{
      fullName: string;
      result(): { state: string; errors?: readonly { message: string }[] | undefined };
    }>;
  };
};

/** Every failed test, file and stray error by name: what somebody who sees only the end of the output needs. */
export function listFailures(
  modules: readonly NamedModule[],
  otherErrors: readonly unknown[],
): TestFailure[] {
  const failures: TestFailure[] = [];
  for (const module of modules) {
    const file = relative(process.cwd(), module.moduleId);
    for (const test of module.children.allTests()) {
      const { state, errors: found } = test.result();
      if (state !== "passed" && state !== "skipped")
        failures.push({ name: `${file} > ${test.fullName}`, message: found?.[0]?.message ?? state });
    }
    for (const { message } of module.errors()) failures.push({ name: file, message });
  }
  for (const error of otherErrors) failures.push({ name: "outside any test", message: messageOf(error) });
  return failures;
}

/** Vitest hands stray errors over as plain objects. */
function messageOf(error: unknown): string {
  return typeof error === "object" && error !== null && "message" in error
    ? String(error.message)
    : String(error);
}

/** Counts every test by how it ended; one that never ran because its file failed is a failure of the file. */
export function countTests(modules: readonly CountedModule[], otherErrors: number): TestCounts {
  const counts: TestCounts = { passed: 0, failed: otherErrors, skipped: 0 };
  for (const module of modules) {
    for (const test of module.children.allTests()) {
      const { state } = test.result();
      if (state === "passed") counts.passed++;
      else if (state === "skipped") counts.skipped++;
      else counts.failed++;
    }
    counts.failed += module.errors().length;
  }
  return counts;
}
