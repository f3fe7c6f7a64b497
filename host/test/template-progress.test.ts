import { expect, test } from "vitest";
import { type BuildProgress, MmdebstrapProgress, monotone } from "../src/template/build-progress.ts";

const LOG = `I: running apt-get update...
Get:1 http://archive.test/debian bookworm InRelease [151 kB]
I: downloading packages with apt...
0 upgraded, 2 newly installed, 0 to remove and 0 not upgraded.
Need to get 3,000 kB of archives.
Get:1 http://archive.test/debian bookworm/main amd64 libc6 amd64 2.36 [2000 kB]
Get:2 http://archive.test/debian bookworm/main amd64 bash amd64 5.2 [1000 kB]
I: extracting archives...
Unpacking libc6:amd64 (2.36) ...
Setting up libc6:amd64 (2.36) ...
Unpacking bash (5.2) ...
Setting up bash (5.2) ...
I: installing remaining packages inside the chroot...
0 upgraded, 4 newly installed, 0 to remove and 0 not upgraded.
Need to get 0 B/49.7 MB of archives.
Unpacking git (2.39) ...
Setting up git (2.39) ...
Unpacking jq (1.6) ...
Setting up jq (1.6) ...
I: cleaning package lists...`;

function follow(log: string): BuildProgress[] {
  const seen: BuildProgress[] = [];
  const progress = new MmdebstrapProgress(monotone((step) => seen.push(step)));
  for (const line of log.split("\n")) progress.line(line);
  return seen;
}

test("both rounds of an installation are told apart and counted", () => {
  const seen = follow(LOG);
  const fractions = (stage: string): number[] =>
    seen.filter((step) => step.stage === stage).map((step) => Number(step.fraction.toFixed(2)));
  expect(fractions("index")).toEqual([0, 0.5, 1]);
  expect(fractions("bootstrap")).toEqual([0.22, 0.33, 0.5, 0.67, 0.83, 1, 1]);
  expect(fractions("download")).toEqual([1]);
  expect(fractions("unpack")).toEqual([0.25, 0.5]);
  expect(fractions("configure")).toEqual([0.25, 0.5, 1]);
  expect(seen.map((step) => step.label)).toContain("Unpacking jq (2 of 4)");
});

test("output that makes no sense neither throws nor leaves 0 to 1", () => {
  const odd = [
    "",
    "Get:",
    "Need to get x MB of archives.",
    "Unpacking ",
    "Setting up",
    "I: ",
    "Get:9 a [1 TB]",
    "\u0000\uFFFD",
  ];
  for (const step of follow(
    `${odd.join("\n")}\nI: downloading packages with apt...\n${odd.join("\n")}\n${"Unpacking x (1) ...\n".repeat(9)}${LOG}`,
  )) {
    expect(step.fraction).toBeGreaterThanOrEqual(0);
    expect(step.fraction).toBeLessThanOrEqual(1);
  }
});
