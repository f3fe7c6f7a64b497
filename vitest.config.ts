import { availableParallelism } from "node:os";
import { defineConfig } from "vitest/config";

/**
 * System suites that have the machine to themselves: they hold figures against bounds, put a load on it that others would
 * feel, or change what there is once, as the routes to the fake internet.
 */
const ALONE = [
  "crash",
  "egress-policy",
  "escape",
  "gvisor-driver",
  "host-failures",
  "leak-check",
  "network-isolation",
  "notebook-clones",
  "notebook-contexts",
  "sleep-copies",
  "sleep-endurance",
  "sleep-failures",
  "slot-reuse",
  "stateful",
  "storm",
  "usage",
].map((name) => `test/system/${name}.test.ts`);

const SYSTEM = {
  globalSetup: ["test/src/global-setup.ts"],
  testTimeout: 120_000,
  hookTimeout: 600_000,
};

// Unit suites live beside their package (`<package>/test`), as many at once as there are processors. System suites need
// root, runsc and a built template, and live in `test/system`: most wait more than they compute and run two at a time.
export default defineConfig({
  resolve: { conditions: ["source"] },
  ssr: { resolve: { conditions: ["source"] } },
  test: {
    projects: [
      {
        extends: true,
        test: {
          name: "unit",
          include: ["{protocol,base,host,server,sdk,cli}/test/**/*.test.ts"],
          testTimeout: 20_000,
          // By default one fewer: half of a machine of two.
          maxWorkers: availableParallelism(),
        },
      },
      {
        extends: true,
        test: {
          ...SYSTEM,
          name: "system",
          include: ["test/system/**/*.test.ts"],
          exclude: ALONE,
          maxWorkers: 2,
          sequence: { groupOrder: 1 },
        },
      },
      {
        extends: true,
        test: {
          ...SYSTEM,
          name: "system-alone",
          include: ALONE,
          fileParallelism: false,
          maxWorkers: 1,
          sequence: { groupOrder: 2 },
        },
      },
    ],
  },
});
