// Adds up the counts that the test steps left behind, names what failed, and prints the closing line.
//   node bin/lib/sum-test-counts.mjs DIRECTORY STEP...
import { readFileSync } from "node:fs";
import { join } from "node:path";

/** Failures named, and lines and characters shown of each message: the end of the output must show them all. */
const SHOWN = { failures: 20, lines: 3, lineCharacters: 200 };

const [directory = ".", ...steps] = process.argv.slice(2);
const sum = { passed: 0, failed: 0, skipped: 0 };
const failures = [];
for (const step of steps) {
  try {
    const counts = JSON.parse(readFileSync(join(directory, `${step}.json`), "utf8"));
    for (const key of Object.keys(sum)) sum[key] += counts[key];
    failures.push(...(counts.failures ?? []).map((failure) => ({ step, ...failure })));
  } catch {
    console.log(`the step '${step}' ended without counting its tests: one failure`);
    sum.failed++;
  }
}
for (const { step, name, message } of failures.slice(0, SHOWN.failures)) {
  console.log(`failed in ${step}: ${name}`);
  const lines = message.split("\n").filter((line) => line.trim() !== "");
  for (const line of lines.slice(0, SHOWN.lines)) console.log(`    ${line.slice(0, SHOWN.lineCharacters)}`);
}
if (failures.length > SHOWN.failures) console.log(`and ${failures.length - SHOWN.failures} more; see above`);
console.log(`${sum.passed} passed, ${sum.failed} failed, ${sum.skipped} skipped`);
