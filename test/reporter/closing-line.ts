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
    const failures = listFailures(modules, errors);
    const counts = countTests(modules, failures);
    const path = process.env["TORPOR_TEST_COUNTS"];
    if (path !== undefined && path !== "")
      writeFileSync(path, `${JSON.stringify({ ...counts, failures })}\n`);
    // After the other reporters' own last words.
    process.on("exit", () => process.stdout.write(`${closingLine(counts)}\n`));
  }
}

function closingLine({ passed, failed, skipped }: TestCounts): string {
  return `${passed} passed, ${failed} failed, ${skipped} skipped`;
}

interface RunTest {
  fullName: string;
  result(): { state: string; errors?: readonly { message: string }[] | undefined };
}

/** What is read of vitest's modules. */
export interface RunModule {
  moduleId: string;
  errors(): readonly { message: string }[];
  children: {
    allTests(): Iterable<RunTest>;
    allSuites(): Iterable<{ fullName: string; errors(): readonly { message: string }[] }>;
  };
}

/**
 * Every failure by name: of a test, of what a file or a group does around its tests, and outside them all. What
 * somebody who sees only the end of the output needs.
 */
export function listFailures(modules: readonly RunModule[], otherErrors: readonly unknown[]): TestFailure[] {
  const failures: TestFailure[] = [];
  for (const module of modules) {
    const file = relative(process.cwd(), module.moduleId);
    for (const test of module.children.allTests()) {
      const { state, errors } = test.result();
      if (state !== "passed" && state !== "skipped")
        failures.push({ name: `${file} > ${test.fullName}`, message: errors?.[0]?.message ?? state });
    }
    for (const suite of module.children.allSuites())
      for (const { message } of suite.errors())
        failures.push({ name: `${file} > ${suite.fullName}`, message });
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

/** Counts tests by how they ended; whatever else failed counts as one each. */
export function countTests(modules: readonly RunModule[], failures: readonly TestFailure[]): TestCounts {
  const counts: TestCounts = { passed: 0, failed: failures.length, skipped: 0 };
  for (const module of modules) {
    for (const test of module.children.allTests()) {
      const { state } = test.result();
      if (state === "passed") counts.passed++;
      else if (state === "skipped") counts.skipped++;
    }
  }
  return counts;
}
