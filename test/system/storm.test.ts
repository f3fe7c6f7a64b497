import { describe, expect, test } from "vitest";
import { storm } from "../src/storm.ts";
import { useInstance } from "../src/use-instance.ts";

/** `TORPOR_STORM_SECONDS` and `TORPOR_STORM_SEED` make it longer, or the same again. */
const seconds = Number(process.env.TORPOR_STORM_SECONDS || 60);
const seed = Number(process.env.TORPOR_STORM_SEED || Date.now() % 1_000_000);

describe("kill -9 of host, server and runtimes, in random order, under load", () => {
  const torpor = useInstance({ server: true, pool: 2, shells: 1 });

  test(
    "loses no sandbox whose own runtime was not killed, leaves nothing behind, and every end has a reason",
    async () => {
      process.stdout.write(`storm of ${seconds} s, TORPOR_STORM_SEED=${seed}\n`);
      const outcome = await storm(torpor(), { sandboxes: 30, durationMs: seconds * 1000, seed });
      process.stdout.write(`${JSON.stringify({ ...outcome, wrongs: outcome.wrongs.length })}\n`);
      expect(outcome.wrongs).toEqual([]);
      expect(outcome.unharmed, "sandboxes found with their data").toBeGreaterThan(0);
      expect(outcome.kills.host + outcome.kills.server).toBeGreaterThan(0);
    },
    (seconds + 420) * 1000,
  );
});
