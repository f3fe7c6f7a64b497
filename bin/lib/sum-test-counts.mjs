// Adds up the counts that the test steps left behind and prints the closing line.
//   node bin/lib/sum-test-counts.mjs DIRECTORY STEP...
import { readFileSync } from "node:fs";
import { join } from "node:path";

const [directory = ".", ...steps] = process.argv.slice(2);
const sum = { passed: 0, failed: 0, skipped: 0 };
for (const step of steps) {
  try {
    const counts = JSON.parse(readFileSync(join(directory, `${step}.json`), "utf8"));
    for (const key of Object.keys(sum)) sum[key] += counts[key];
  } catch {
    console.log(`the step '${step}' ended without counting its tests: one failure`);
    sum.failed++;
  }
}
console.log(`${sum.passed} passed, ${sum.failed} failed, ${sum.skipped} skipped`);
