import { availableParallelism } from "node:os";
import { defineConfig } from "vitest/config";

// Unit suites live beside their package (`<package>/test`), as many at once as there are processors; system suites that need root,
// runsc and a built template live in `test/system` and run one file at a time.
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
          name: "system",
          include: ["test/system/**/*.test.ts"],
          globalSetup: ["test/src/global-setup.ts"],
          fileParallelism: false,
          maxWorkers: 1,
          testTimeout: 120_000,
          hookTimeout: 600_000,
        },
      },
    ],
  },
});
