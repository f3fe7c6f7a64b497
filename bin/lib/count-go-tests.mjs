// Reads `go test -json` on standard input: shows what failed with its output, and writes the counts as JSON.
//   go test -json ./... | node bin/lib/count-go-tests.mjs COUNTS_FILE
import { writeFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

/** Output kept for a test in case it fails, characters: its last part. */
const KEPT_OUTPUT = 20_000;

/** Counts tests and gathers the output of the failed ones. A package that fails by itself (build, panic) counts as one. */
export class GoTestCounter {
  counts = { passed: 0, failed: 0, skipped: 0 };
  failures = [];
  #outputs = new Map();
  #failedPackages = new Set();

  /** One line of the stream. */
  read(line) {
    let event;
    try {
      event = JSON.parse(line);
    } catch {
      if (line.trim() !== "") this.#keep("", `${line}\n`);
      return;
    }
    const key = `${event.Package ?? event.ImportPath ?? ""} ${event.Test ?? ""}`.trim();
    if (event.Action === "output" || event.Action === "build-output") this.#keep(key, event.Output ?? "");
    if (event.Test !== undefined) this.#readTest(event, key);
    else if (event.Action === "fail" && !this.#failedPackages.has(event.Package)) this.#fail(key);
  }

  #readTest(event, key) {
    if (event.Action === "pass") this.counts.passed++;
    if (event.Action === "skip") this.counts.skipped++;
    if (event.Action === "fail") {
      this.#failedPackages.add(event.Package);
      this.#fail(key);
    }
    if (event.Action === "pass" || event.Action === "skip") this.#outputs.delete(key);
  }

  #fail(key) {
    this.counts.failed++;
    this.failures.push({ name: key, output: this.#outputs.get(key) ?? this.#outputs.get("") ?? "" });
  }

  #keep(key, text) {
    this.#outputs.set(key, ((this.#outputs.get(key) ?? "") + text).slice(-KEPT_OUTPUT));
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const counter = new GoTestCounter();
  for await (const line of createInterface({ input: process.stdin })) counter.read(line);
  for (const { name, output } of counter.failures) console.log(`--- FAIL: ${name}\n${output}`);
  const { passed, failed, skipped } = counter.counts;
  console.log(`Go: ${passed} passed, ${failed} failed, ${skipped} skipped`);
  const failures = counter.failures.map(({ name, output }) => ({ name, message: output }));
  if (process.argv[2] !== undefined)
    writeFileSync(process.argv[2], `${JSON.stringify({ ...counter.counts, failures })}\n`);
  if (failed > 0) process.exitCode = 1;
}
