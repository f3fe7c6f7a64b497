import { writeFileSync } from "node:fs";
import type { Reporter, TestModule } from "vitest/node";

/** How a run of tests went. */
export interface TestCounts {
  passed: number;
  failed: number;
  skipped: number;
}

/**
 * A vitest reporter that closes with the line that automation reads: `N passed, N failed, N skipped`.
 *
 * A file that cannot be loaded and an error outside any test count as failed, since something that was to be tested
 * was not. With TORPOR_TEST_COUNTS the counts are also written to that file, as JSON, to be added to others.
 */
export default class ClosingLine implements Reporter {
  onTestRunEnd(modules: readonly TestModule[], errors: readonly unknown[]): void {
    const counts = countTests(modules, errors.length);
    const path = process.env["TORPOR_TEST_COUNTS"];
    if (path !== undefined && path !== "") writeFileSync(path, `${JSON.stringify(counts)}\n`);
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
