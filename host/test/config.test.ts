import { describe, expect, test } from "vitest";
import { readConfig } from "../src/config.ts";

const COMPLETE = {
  TORPOR_HOST_TOKEN: "0123456789abcdef",
  TORPOR_GUEST_BINARY: "/opt/guest",
  TORPOR_TEMPLATES_SOURCE: "/opt/templates",
};

describe("the host's configuration", () => {
  test("has a default for all but what only the caller knows", () => {
    expect(readConfig(COMPLETE)).toEqual({
      stateDir: "/var/lib/torpor",
      token: "0123456789abcdef",
      guestBinaryPath: "/opt/guest",
      recipesDir: "/opt/templates",
      socketGid: 0,
      logLevel: "info",
      runscPath: undefined,
      platform: "systrap",
      poolTarget: 3,
      poolShells: 2,
      poolDemandMs: 60_000,
      aptMirror: undefined,
      agentPatienceMs: 30_000,
      diskWatermarkPercent: 90,
      images: {
        dir: "/var/lib/torpor/images",
        registries: ["default"],
        caFile: undefined,
        maxMib: 20_480,
        proxyEnv: {},
      },
    });
  });

  test("takes an empty variable as an unset one", () => {
    expect(readConfig({ ...COMPLETE, TORPOR_POOL_TARGET: "", TORPOR_STATE_DIR: "" })).toMatchObject({
      poolTarget: 3,
      stateDir: "/var/lib/torpor",
    });
  });

  test("reports all problems at once, each by its variable", () => {
    const wrong = {
      TORPOR_HOST_TOKEN: "short",
      TORPOR_STATE_DIR: "relative",
      TORPOR_PLATFORM: "kvm",
      TORPOR_POOL_TARGET: "many",
      TORPOR_POOL_SHELLS: "-1",
      TORPOR_LOG_LEVEL: "loud",
    };
    let message = "";
    try {
      readConfig(wrong);
    } catch (error) {
      message = String(error);
    }
    for (const name of [...Object.keys(wrong), "TORPOR_GUEST_BINARY", "TORPOR_TEMPLATES_SOURCE"])
      expect(message).toContain(`${name}: `);
  });

  test.each(["65", "1.5", "NaN", "1e9"])("refuses %s as a pool size", (value) => {
    expect(() => readConfig({ ...COMPLETE, TORPOR_POOL_TARGET: value })).toThrow("TORPOR_POOL_TARGET");
  });

  test("does not show the token in what it complains about", () => {
    expect(() => readConfig({ ...COMPLETE, TORPOR_HOST_TOKEN: "s3cret" })).toThrow(
      expect.not.stringContaining("s3cret") as string,
    );
  });
});
